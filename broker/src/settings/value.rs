//! The types of settings and their text forms.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use stentor_core::Durability;
use stentor_core::storage::WhenFull;

/// A type that a setting can have: read from text, written as text that reads back as the same.
pub(super) trait SettingValue: Sized {
    /// What a user may write, for the error when it is something else.
    const EXPECTED: &'static str;

    fn parse(text: &str) -> Option<Self>;

    fn show(&self) -> String;
}

/// Which backend keeps a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageKind {
    /// In memory.
    Memory,
    /// On a local LSM store.
    Lsm,
    /// On several nodes.
    Replicated,
}

impl StorageKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Lsm, Self::Replicated];

    /// The word for it in configuration and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lsm => "lsm",
            Self::Replicated => "replicated",
        }
    }

    /// The durabilities that a topic of this kind may have, the default first.
    #[must_use]
    pub const fn durabilities(self) -> &'static [Durability] {
        match self {
            Self::Memory => &[Durability::Memory],
            Self::Lsm => &[Durability::Synced, Durability::Buffered],
            Self::Replicated => &[Durability::Quorum],
        }
    }
}

impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl SettingValue for StorageKind {
    const EXPECTED: &'static str = "memory, lsm or replicated";

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

/// The durability of a topic, or `auto`: the storage's own.
impl SettingValue for Option<Durability> {
    const EXPECTED: &'static str = "auto, memory, buffered, synced or quorum";

    fn parse(text: &str) -> Option<Self> {
        if text == "auto" { Some(None) } else { Durability::from_str(text).ok().map(Some) }
    }

    fn show(&self) -> String {
        self.map_or("auto", Durability::as_str).to_owned()
    }
}

impl SettingValue for WhenFull {
    const EXPECTED: &'static str = "reject or drop-oldest";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "reject" => Some(Self::Reject),
            "drop-oldest" => Some(Self::DropOldest),
            _ => None,
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Reject => "reject",
            Self::DropOldest => "drop-oldest",
        }
        .to_owned()
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The units that a size is written in, the largest first.
const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl fmt::Display for Size {
    /// Exact: in the largest unit of which it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |shift: u32| self.0 != 0 && self.0.trailing_zeros() >= shift;
        match UNITS.iter().find(|(_, shift)| whole(*shift)) {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl SettingValue for Size {
    const EXPECTED: &'static str = "a size such as 64KiB";

    fn parse(text: &str) -> Option<Self> {
        text.parse::<ByteSize>().ok().map(|size| Self(size.as_u64()))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for Option<Size> {
    const EXPECTED: &'static str = "a size such as 64KiB, or none";

    fn parse(text: &str) -> Option<Self> {
        if text == "none" { Some(None) } else { Size::parse(text).map(Some) }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |size| size.to_string())
    }
}

impl SettingValue for Duration {
    const EXPECTED: &'static str = "a duration such as 30s";

    fn parse(text: &str) -> Option<Self> {
        humantime::parse_duration(text).ok()
    }

    fn show(&self) -> String {
        humantime::format_duration(*self).to_string()
    }
}

impl SettingValue for Option<Duration> {
    const EXPECTED: &'static str = "a duration such as 30s, or never";

    fn parse(text: &str) -> Option<Self> {
        if text == "never" { Some(None) } else { Duration::parse(text).map(Some) }
    }

    fn show(&self) -> String {
        self.map_or_else(|| "never".to_owned(), |duration| duration.show())
    }
}

/// A share of a whole, 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl SettingValue for Percent {
    const EXPECTED: &'static str = "a percentage from 1% to 100%";

    fn parse(text: &str) -> Option<Self> {
        let percent = text.strip_suffix('%')?.trim_end().parse().ok()?;
        (1..=100).contains(&percent).then_some(Self(percent))
    }

    fn show(&self) -> String {
        format!("{}%", self.0)
    }
}

impl SettingValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl SettingValue for String {
    const EXPECTED: &'static str = "text";

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sizes_and_durations_read_back(bytes in any::<u64>(), shift in 0_u32..50, millis in 0_u64..1 << 40) {
            let size = Size(bytes >> shift << shift);
            prop_assert_eq!(Size::parse(&size.show()), Some(size));
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(Duration::parse(&duration.show()), Some(duration));
        }
    }
}
