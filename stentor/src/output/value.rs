//! Values as they are shown: bytes, sizes, times, durations, counts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};
use stentor_core::Timestamp;

/// A named value of bytes inside a JSON object: under its name when it is UTF-8, else under the name with `_base64`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    /// Adds the value to an object that is being written.
    pub(crate) fn entry<M: SerializeMap>(self, name: &'static str, map: &mut M) -> Result<(), M::Error> {
        match str::from_utf8(self.0) {
            Ok(text) => map.serialize_entry(name, text),
            Err(_) => map.serialize_entry(&format!("{name}_base64"), &STANDARD.encode(self.0)),
        }
    }

    /// For people: the text, or what cannot be shown as such.
    pub(crate) fn text(self) -> String {
        str::from_utf8(self.0).map_or_else(|_| format!("base64:{}", STANDARD.encode(self.0)), str::to_owned)
    }
}

/// A header of a message: `{name, value}`.
pub(crate) struct Header<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a [u8],
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", self.name)?;
        Bytes(self.value).entry("value", &mut map)?;
        map.end()
    }
}

/// A time in RFC 3339, in UTC, to the microsecond.
pub(crate) fn time_text(time: Timestamp) -> String {
    // The last second of the year 9999, beyond which RFC 3339 has no words.
    const LAST_MICROS: u64 = 253_402_300_799_999_999;
    let since_epoch = Duration::from_micros(time.0.min(LAST_MICROS));
    humantime::format_rfc3339_micros(UNIX_EPOCH + since_epoch).to_string()
}

/// Reads a time in RFC 3339.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, String> {
    let time: SystemTime =
        humantime::parse_rfc3339_weak(text).map_err(|error| format!("`{text}` is no time in RFC 3339: {error}"))?;
    let since_epoch = time.duration_since(UNIX_EPOCH).map_err(|_| format!("`{text}` lies before 1970"))?;
    Ok(Timestamp::default().after(since_epoch))
}

/// A size for people, in powers of 1024.
pub(crate) fn bytes_text(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}

/// A duration for people, to three significant places or so.
pub(crate) fn duration_text(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..10_000 => format!("{micros} µs"),
        10_000..10_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        10_000_000..600_000_000 => format!("{:.1} s", duration.as_secs_f64()),
        _ => humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string(),
    }
}

/// A count for people: thousands set apart.
pub(crate) fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        let shown: Vec<_> = [0, 999, 1_000, 12_345, 1_234_567].map(count_text).into();
        assert_eq!(shown, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn a_time_round_trips_to_the_microsecond() {
        let time = Timestamp(1_700_000_000_123_456);
        assert_eq!(time_text(time), "2023-11-14T22:13:20.123456Z");
        assert_eq!(parse_time(&time_text(time)), Ok(time));
        assert!(parse_time("yesterday").unwrap_err().contains("yesterday"));
        assert_eq!(time_text(Timestamp(u64::MAX)), "9999-12-31T23:59:59.999999Z");
    }

    #[test]
    fn bytes_that_are_no_text_appear_as_base64() {
        let header = |value: &'static [u8]| serde_json::to_string(&Header { name: "h", value }).unwrap();
        assert_eq!(header(b"text"), r#"{"name":"h","value":"text"}"#);
        assert_eq!(header(&[0xff, 0x00]), r#"{"name":"h","value_base64":"/wA="}"#);
    }
}
