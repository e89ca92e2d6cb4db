//! How long the tests may take, and what chance makes of them: the same tests, with more rounds or with other seeds.

use std::env;

/// The variable that `script/slow` sets.
pub(crate) const VARIABLE: &str = "STENTOR_SLOW";

/// The variable that makes the tests take other seeds than their own.
pub(crate) const SEED_VARIABLE: &str = "STENTOR_SEED";

/// The seed of a test, which is the same every time unless the environment asks for another history.
pub(crate) fn seed(of_the_test: u64) -> u64 {
    let other = env::var(SEED_VARIABLE).map_or(0, |text| text.parse::<u64>().expect("STENTOR_SEED is a whole number"));
    of_the_test ^ other.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How much work a test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scale {
    /// With every `cargo test`.
    Quick,
    /// `script/slow short`: before a change lands.
    Short,
    /// `script/slow long`: the figures that the project promises.
    Long,
}

impl Scale {
    /// What the environment asks for.
    pub(crate) fn of_this_run() -> Self {
        match env::var(VARIABLE).as_deref() {
            Ok("long") => Self::Long,
            Ok("short") => Self::Short,
            Ok(other) => panic!("{VARIABLE}={other}: it is `short` or `long`"),
            Err(_) => Self::Quick,
        }
    }

    /// One of three, by the scale.
    pub(crate) fn pick<T>(self, quick: T, short: T, long: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// One of three, by the scale of this run.
pub(crate) fn scaled<T>(quick: T, short: T, long: T) -> T {
    Scale::of_this_run().pick(quick, short, long)
}
