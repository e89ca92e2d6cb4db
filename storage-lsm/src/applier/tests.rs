use stentor_core::Epoch;

use super::*;
use crate::format::payload::{Encoded, Encoder, Origin};
use crate::index::{FjallIndex, FjallOptions};

const P: PartitionId = PartitionId(3);
const Q: PartitionId = PartitionId(4);

struct Fixture {
    applier: Applier,
    index: Arc<dyn Index>,
    sequence: u64,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let index: Arc<dyn Index> = Arc::new(FjallIndex::open(folder.path(), FjallOptions::default()).unwrap());
        let (applier, fresh) = Applier::load(index.clone(), 1).unwrap();
        assert!(fresh);
        Self { applier, index, sequence: 0, _folder: folder }
    }

    /// Applies a frame that lies in this segment.
    fn apply(&mut self, segment: u64, encoded: Encoded) -> Result<(), ApplyError> {
        self.sequence += 1;
        let location = Location { segment, payload_position: self.sequence * 100_000 };
        self.applier.apply(self.sequence, location, &encoded.frame)
    }

    fn open(&mut self, partition: PartitionId) -> u64 {
        let mut encoder = Encoder::new(FrameKind::Change, partition, Epoch(0), Offset(0));
        encoder.open(Epoch(1), Some(Offset(0)));
        self.apply(1, encoder.finish()).unwrap();
        self.sequence
    }

    fn commit(&mut self) {
        self.applier.commit((1, 4_096), self.sequence).unwrap();
    }

    fn owed(&self, segment: u64) -> u64 {
        self.applier.owed().get(&segment).copied().unwrap_or_default().bytes
    }

    /// What the index itself says, opened anew.
    fn reloaded(&self) -> Applier {
        Applier::load(self.index.clone(), 9).unwrap().0
    }

    fn log_row(&self, incarnation: u64, last: u64) -> Option<LogRow> {
        let row = self.applier.get(&log_key(incarnation, Offset(last))).unwrap();
        row.map(|row| LogRow::decode(&row).unwrap())
    }

    fn table_row(&self, incarnation: u64, key: &str) -> Option<TableRow> {
        let row = self.applier.get(&table_key(incarnation, &Key::copy_from(key.as_bytes()))).unwrap();
        row.map(|row| TableRow::decode(&row).unwrap())
    }
}

fn change(partition: PartitionId, end: u64) -> Encoder {
    Encoder::new(FrameKind::Change, partition, Epoch(1), Offset(end))
}

fn batch(records: usize) -> stentor_core::RecordBatch {
    let mut builder = stentor_core::batch::BatchBuilder::new(stentor_core::Compression::None);
    for n in 0..records {
        let record = stentor_core::Record {
            id: format!("id-{n}").parse().unwrap(),
            timestamp: Timestamp(1),
            key: None,
            tag: None,
            headers: Vec::new(),
            body: Bytes::from_static(b"body"),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
    }
    builder.finish(None).unwrap()
}

fn large() -> Bytes {
    Bytes::from(vec![5; LARGE_VALUE_BYTES])
}

#[test]
fn what_a_segment_is_owed_follows_its_batches_and_large_values_and_survives_a_reload() {
    let mut fixture = Fixture::new();
    let incarnation = fixture.open(P);
    let bytes = batch(2).len() as u64;
    let mut first = change(P, 0);
    first.batch(batch(2));
    first.batch(batch(2));
    first.put(Key::copy_from(b"large"), large());
    first.put(Key::copy_from(b"small"), Bytes::from_static(b"s"));
    fixture.apply(1, first.finish()).unwrap();
    fixture.commit();
    assert_eq!(fixture.owed(1), 2 * bytes + LARGE_VALUE_BYTES as u64);
    // Overwriting the value in another segment and trimming one batch leaves the other batch.
    let mut second = change(P, 4);
    second.put(Key::copy_from(b"large"), large());
    second.trim(Offset(3));
    fixture.apply(2, second.finish()).unwrap();
    fixture.commit();
    assert_eq!((fixture.owed(1), fixture.owed(2)), (bytes, LARGE_VALUE_BYTES as u64));
    assert!(fixture.log_row(incarnation, 1).is_none() && fixture.log_row(incarnation, 3).is_some());
    let mut third = change(P, 4);
    third.delete(KeyRange::all());
    third.trim(Offset(4));
    fixture.apply(3, third.finish()).unwrap();
    fixture.commit();
    assert!(fixture.applier.owed().is_empty());
    let reloaded = fixture.reloaded();
    assert_eq!(reloaded.owed(), fixture.applier.owed());
    assert_eq!(reloaded.partitions(), fixture.applier.partitions());
    assert_eq!(reloaded.marker(), fixture.applier.marker());
    let row = reloaded.partitions()[&P];
    assert_eq!((row.log_bytes, row.table_bytes), (0, 0));
}

#[test]
fn a_batch_is_owed_by_every_log_that_refers_to_it() {
    let mut fixture = Fixture::new();
    let (_, other) = (fixture.open(P), fixture.open(Q));
    let mut append = change(P, 0);
    append.batch(batch(1));
    fixture.apply(1, append.finish()).unwrap();
    let row = fixture.log_row(1, 0).unwrap();
    let mut refer = change(Q, 0);
    refer.stored(StoredPart {
        segment: row.place.segment,
        position: row.place.position,
        length: row.place.length,
        count: row.place.count,
        checksum: row.checksum,
        origin: Origin { partition: P, base: Offset(0) },
        stored_at: Timestamp(7),
    });
    fixture.apply(2, refer.finish()).unwrap();
    fixture.commit();
    let bytes = u64::from(row.place.length);
    assert_eq!((fixture.owed(1), fixture.owed(2)), (2 * bytes, 0));
    let deletion = Encoder::new(FrameKind::Deletion, P, Epoch(1), Offset(1));
    fixture.apply(2, deletion.finish()).unwrap();
    fixture.commit();
    assert_eq!(fixture.owed(1), bytes);
    assert_eq!(fixture.log_row(other, 0).unwrap().place, row.place);
    assert!(!fixture.applier.sweeping());
}

#[test]
fn a_relocation_applies_only_where_the_row_still_holds_the_old_place() {
    let mut fixture = Fixture::new();
    let incarnation = fixture.open(P);
    let mut append = change(P, 0);
    append.batch(batch(1));
    append.batch(batch(1));
    append.put(Key::copy_from(b"k"), large());
    append.put(Key::copy_from(b"l"), large());
    fixture.apply(1, append.finish()).unwrap();
    let (first, second) = (fixture.log_row(incarnation, 0).unwrap(), fixture.log_row(incarnation, 1).unwrap());
    let placed = |row: Option<TableRow>| match row {
        Some(TableRow::Placed { place, .. }) => place,
        other => panic!("{other:?}"),
    };
    let (k, l) = (placed(fixture.table_row(incarnation, "k")), placed(fixture.table_row(incarnation, "l")));
    // Meanwhile `l` is written anew and the second batch is truncated away.
    let mut meanwhile = change(P, 2);
    meanwhile.put(Key::copy_from(b"l"), large());
    fixture.apply(2, meanwhile.finish()).unwrap();
    let newer = placed(fixture.table_row(incarnation, "l"));
    let mut truncation = Encoder::new(FrameKind::Truncation, P, Epoch(1), Offset(2));
    truncation.end(Offset(1));
    fixture.apply(2, truncation.finish()).unwrap();

    let from = |place: Place, row| Moved { segment: place.segment, position: place.position, incarnation, row };
    let mut relocation = Encoder::new(FrameKind::Relocation, P, Epoch(1), Offset(1));
    relocation.moved(from(first.place, MovedRow::Log { last: Offset(0) }));
    relocation.batch(batch(1));
    relocation.moved(from(second.place, MovedRow::Log { last: Offset(1) }));
    relocation.batch(batch(1));
    for (place, key) in [(k, "k"), (l, "l")] {
        relocation.moved(from(place, MovedRow::Table { key: Key::copy_from(key.as_bytes()) }));
        relocation.moved_value(large());
    }
    fixture.apply(3, relocation.finish()).unwrap();
    fixture.commit();
    assert_eq!(fixture.log_row(incarnation, 0).unwrap().place.segment, 3);
    assert_eq!(fixture.log_row(incarnation, 0).unwrap().checksum, first.checksum);
    assert!(fixture.log_row(incarnation, 1).is_none());
    assert_eq!(placed(fixture.table_row(incarnation, "k")).segment, 3);
    assert_eq!(placed(fixture.table_row(incarnation, "l")), newer);
    assert_eq!(fixture.owed(1), 0);
    assert_eq!(fixture.owed(3), u64::from(first.place.length) + LARGE_VALUE_BYTES as u64);
}

#[test]
fn sweeping_goes_on_over_many_batches_and_over_a_reload() {
    let mut fixture = Fixture::new();
    fixture.open(P);
    let batches = SWEEP_ROWS_MAX as u64 + 10;
    for n in 0..batches {
        let mut append = change(P, n);
        append.batch(batch(1));
        fixture.apply(1, append.finish()).unwrap();
    }
    let mut trim = change(P, batches);
    trim.trim(Offset(batches));
    fixture.apply(1, trim.finish()).unwrap();
    fixture.commit();
    assert!(fixture.applier.sweeping());
    assert_eq!(fixture.owed(1), 10 * batch(1).len() as u64);
    let (index, sequence) = (fixture.index.clone(), fixture.sequence);
    let mut applier = Applier::load(index, 1).unwrap().0;
    assert!(applier.sweeping());
    applier.commit((1, 4_096), sequence).unwrap();
    assert!(!applier.sweeping());
    assert!(applier.owed().is_empty());
}

#[test]
fn a_change_that_does_not_fit_the_index_is_a_contradiction() {
    let mut fixture = Fixture::new();
    fixture.open(P);
    for encoder in [change(P, 1), change(Q, 0), Encoder::new(FrameKind::Change, P, Epoch(2), Offset(0))] {
        let refused = fixture.apply(1, encoder.finish());
        assert!(matches!(refused, Err(ApplyError::Inconsistent(_))), "{refused:?}");
    }
}

#[test]
fn a_batch_of_the_index_that_is_lost_from_the_middle_is_noticed() {
    let mut fixture = Fixture::new();
    for _ in 0..3 {
        fixture.commit();
    }
    assert_eq!(fixture.reloaded().marker().batch, 3);
    let mut hole = IndexBatch::default();
    hole.delete(chain_key(2));
    fixture.index.apply(hole, 4).unwrap();
    let found = Applier::load(fixture.index.clone(), 1);
    assert!(matches!(found, Err(ApplyError::Index(IndexError::Damaged(_)))));
}

#[test]
fn chain_rows_go_once_they_are_flushed() {
    let mut fixture = Fixture::new();
    for _ in 0..5 {
        fixture.commit();
    }
    fixture.index.flush().unwrap();
    fixture.commit();
    assert_eq!(fixture.applier.marker().chain_first, 6);
    assert_eq!(fixture.reloaded().marker(), fixture.applier.marker());
}
