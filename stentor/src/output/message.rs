//! A message as `subscribe`, `dead-letters list` and `message show` print it.

use serde::ser::{Serialize, SerializeMap, Serializer};
use stentor_core::{Offset, PartitionIndex, Record, Timestamp};

use super::value::{Bytes, Header, time_text};

/// What was delivered, or is kept. The field names are part of the contract with users.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageLine<'a> {
    /// The topic it is of.
    pub(crate) topic: &'a str,
    /// Its partition.
    pub(crate) partition: PartitionIndex,
    /// Its offset there.
    pub(crate) offset: Offset,
    /// What it says.
    pub(crate) record: &'a Record,
    /// When the broker stored it.
    pub(crate) published_at: Timestamp,
    /// Which delivery this is, and whether there may have been one before; for `message show` there is none.
    pub(crate) delivery: Option<(u32, bool)>,
}

impl MessageLine<'_> {
    /// Adds the fields to an object that is being written.
    pub(crate) fn entries<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("id", &self.record.id.to_string())?;
        map.serialize_entry("topic", self.topic)?;
        map.serialize_entry("partition", &self.partition.0)?;
        map.serialize_entry("offset", &self.offset.0)?;
        match &self.record.key {
            Some(key) => Bytes(key).entry("key", map)?,
            None => map.serialize_entry("key", &None::<&str>)?,
        }
        map.serialize_entry("tag", &self.record.tag.as_deref())?;
        let headers: Vec<_> =
            self.record.headers.iter().map(|h| Header { name: h.name.as_str(), value: &h.value }).collect();
        map.serialize_entry("headers", &headers)?;
        Bytes(&self.record.body).entry("body", map)?;
        if let Some((attempt, redelivered)) = self.delivery {
            map.serialize_entry("attempt", &attempt)?;
            map.serialize_entry("redelivered", &redelivered)?;
        }
        map.serialize_entry("published_at", &time_text(self.published_at))
    }

    /// For people: everything on one line, the body last.
    pub(crate) fn words(&self) -> String {
        use std::fmt::Write;
        let record = self.record;
        let mut text = format!("{} {}:{} {}", time_text(self.published_at), self.partition, self.offset.0, record.id);
        if let Some(key) = &record.key {
            let _ = write!(text, " key={}", Bytes(key).text());
        }
        if let Some(tag) = &record.tag {
            let _ = write!(text, " tag={tag}");
        }
        for header in &record.headers {
            let _ = write!(text, " {}={}", header.name, Bytes(&header.value).text());
        }
        if let Some((attempt, redelivered)) = self.delivery
            && redelivered
        {
            let _ = write!(text, " attempt={attempt} redelivered");
        }
        let _ = write!(text, " {}", Bytes(&record.body).text());
        text
    }
}

impl Serialize for MessageLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.entries(&mut map)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use stentor_core::MessageId;

    use super::*;

    #[test]
    fn a_delivery_has_exactly_the_fields_of_the_contract() {
        let record = Record {
            id: MessageId::Text("order-17".into()),
            timestamp: Timestamp(0),
            key: Some(bytes::Bytes::from_static(b"k")),
            tag: None,
            headers: vec![stentor_core::batch::RecordHeader {
                name: "h".into(),
                value: bytes::Bytes::from_static(b"v"),
            }],
            body: bytes::Bytes::from_static(b"\xff"),
            deliver_at: None,
            expires_at: None,
        };
        let line = MessageLine {
            topic: "t",
            partition: PartitionIndex(2),
            offset: Offset(9),
            record: &record,
            published_at: Timestamp(1_700_000_000_000_000),
            delivery: Some((1, false)),
        };
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"id":"order-17","topic":"t","partition":2,"offset":9,"key":"k","tag":null,"#.to_owned()
                + r#""headers":[{"name":"h","value":"v"}],"body_base64":"/w==","attempt":1,"redelivered":false,"#
                + r#""published_at":"2023-11-14T22:13:20.000000Z"}"#,
        );
    }
}
