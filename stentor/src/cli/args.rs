//! Types of arguments that more than one command takes.

use std::str::FromStr;
use std::time::Duration;

use stentor_core::{Offset, PartitionIndex, Timestamp};

use crate::output::parse_time;

/// `PARTITION:OFFSET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) partition: PartitionIndex,
    pub(crate) offset: Offset,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(partition, offset)| {
            Some(Self { partition: PartitionIndex(partition.parse().ok()?), offset: Offset(offset.parse().ok()?) })
        });
        parts.ok_or_else(|| format!("`{text}` is no PARTITION:OFFSET, such as 0:15"))
    }
}

/// Where a group begins, or is put: `earliest`, `latest`, a time, or an offset of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Earliest,
    Latest,
    Time(Timestamp),
    Place(Place),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => text.parse().map(Self::Place).or_else(|_| parse_time(text).map(Self::Time)).map_err(|_| {
                format!("`{text}` is none of earliest, latest, a time such as 2026-01-31T09:00:00Z, PARTITION:OFFSET")
            }),
        }
    }
}

/// `NAME=VALUE`; the value may hold further `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no NAME=VALUE")),
    }
}

/// A duration such as `500ms`, `30s`, `72h`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|_| format!("`{text}` is no duration, such as 500ms, 30s or 72h"))
}

/// A size such as `100`, `64KiB`, `2GiB`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    text.parse::<bytesize::ByteSize>()
        .map(|size| size.as_u64())
        .map_err(|_| format!("`{text}` is no size, such as 100, 64KiB or 2GiB"))
}

/// A rate such as `5000/s` or `5000`, in things a second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    match number.trim().parse() {
        Ok(rate) if rate > 0 => Ok(rate),
        _ => Err(format!("`{text}` is no rate, such as 5000/s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_a_word_an_offset_or_a_time() {
        assert_eq!("earliest".parse(), Ok(Start::Earliest));
        assert_eq!("3:15".parse(), Ok(Start::Place(Place { partition: PartitionIndex(3), offset: Offset(15) })));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Start::Time(Timestamp(1_000_000))));
        for bad in ["", "soon", "3:", ":3", "3:x", "-1:3"] {
            assert!(bad.parse::<Start>().unwrap_err().contains("none of earliest"), "{bad}");
        }
    }

    #[test]
    fn amounts_are_written_as_in_the_configuration() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("7"), Ok(Duration::from_secs(7)));
        assert_eq!(size("64KiB"), Ok(65_536));
        assert_eq!(rate("5000/s"), Ok(5_000));
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(duration("x").is_err() && size("x").is_err() && rate("0/s").is_err() && pair("=b").is_err());
    }
}
