//! Opening a partition: what its rows and the log behind them say.

use std::num::NonZeroU32;
use std::sync::Arc;

use stentor_core::storage::{
    ByteBound, Change, KeyRange, OpenOptions, OpenPartition, PartitionReader, PartitionWriter, StorageError,
};
use stentor_core::{Durable, Epoch, Offset, OffsetRange, PartitionId, Timestamp};
use stentor_protocol::{ErrorCode, wire};

use super::command::GroupOrder;
use super::dedup::{Dedup, Receipt, decode_position};
use crate::error::{refusal, refused_by_storage};
use crate::group::{self, GroupState, Loading};
use crate::node::Node;
use crate::settings::StorageKind;
use crate::topic::Topic;

/// How many rows are read at once.
const ROWS_PER_PAGE: NonZeroU32 = NonZeroU32::new(1_024).unwrap();

/// How many bytes of the log are read at once.
const READ_BYTES: NonZeroU32 = NonZeroU32::new(1 << 20).unwrap();

/// A partition that is open and knows what it was doing.
pub(super) struct Opened {
    pub(super) writer: Box<dyn PartitionWriter>,
    pub(super) epoch: Epoch,
    pub(super) reader: Arc<dyn PartitionReader>,
    /// The end of the log, and the proof that all of it is durable.
    pub(super) durable: Durable<Offset>,
    pub(super) dedup: Dedup,
    pub(super) groups: Vec<(GroupOrder, GroupState)>,
    pub(super) last_stored_at: Timestamp,
    /// Where the log turned out to be damaged.
    pub(super) damaged: Option<String>,
}

/// Opens a partition of `topic`.
pub(super) async fn open(
    node: &Node,
    topic: &Topic,
    id: PartitionId,
    orders: Vec<GroupOrder>,
) -> Result<Opened, wire::Error> {
    let settings = topic.settings();
    let missing = || refusal(ErrorCode::Unavailable, format!("this node has no storage `{}`", settings.storage));
    let storage = node.storages.get(&settings.storage).ok_or_else(missing)?;
    let bytes_max = settings.memory_max.0 / u64::from(settings.partitions);
    let bound = ByteBound { bytes_max, when_full: settings.when_full };
    let options = OpenOptions {
        durability: settings.durability_in_force(),
        first_offset: Offset::ZERO,
        bound: (settings.storage == StorageKind::Memory).then_some(bound),
    };
    let OpenPartition { epoch, mut writer, reader } =
        storage.open(id, options).await.map_err(|error| refused_by_storage(&error))?;

    let log = reader.bounds();
    let mut damaged = None;
    let dedup = recover_dedup(&*reader, log, &mut damaged).await?;
    let mut groups = Vec::new();
    for order in orders {
        let state = load_group(&*reader, &order, log).await?;
        groups.push((order, state));
    }
    let last_stored_at = last_stored_at(&*reader, log).await;
    let (dedup, durable) = prove(&mut *writer, epoch, dedup).await.map_err(|error| refused_by_storage(&error))?;
    Ok(Opened { writer, epoch, reader, durable, dedup, groups, last_stored_at, damaged })
}

/// Writes the recovered deduplication, in portions that need no room. Readers see only what is durable and the log was read, so what comes out of this
/// receipt is the proof for all of it.
async fn prove(
    writer: &mut dyn PartitionWriter,
    epoch: Epoch,
    mut dedup: Dedup,
) -> Result<(Dedup, Durable<Offset>), StorageError> {
    let end = writer.end();
    loop {
        let rows = dedup.rows(end);
        let change = Change { puts: rows.puts, deletes: rows.deletes, ..Change::new(epoch, end) };
        let commit = writer.commit(change).await?;
        // Commits become durable in their order: the last receipt speaks for those before it.
        if rows.position.is_some() {
            return Ok((dedup, commit.durable().await?.map(|_| end)));
        }
    }
}

async fn recover_dedup(
    reader: &dyn PartitionReader,
    log: OffsetRange,
    damaged: &mut Option<String>,
) -> Result<Dedup, wire::Error> {
    let failed = |error: StorageError| refused_by_storage(&error);
    let rotten = |error: super::dedup::RowError| refusal(ErrorCode::Corrupt, error.to_string());
    let mut dedup = Dedup::default();
    for (key, value) in scan_all(reader, Dedup::range()).await.map_err(failed)? {
        dedup.load(&key, &value).map_err(rotten)?;
    }
    let position = reader.get(&Dedup::position_key()).await.map_err(failed)?;
    let position = position.map(|value| decode_position(&value)).transpose().map_err(rotten)?;
    let position = position.unwrap_or(log.start).max(log.start);
    let mut from = position;
    while from < log.end {
        let batches = match reader.read(from, READ_BYTES).await {
            Ok(batches) => batches,
            Err(error @ StorageError::Corrupt { .. }) => {
                // What lies behind it cannot be reached from here. Producers from there begin anew when they are told
                // that they are not known; groups will stop at the damaged place and say so.
                tracing::error!(%error, "the log is damaged");
                *damaged = Some(error.to_string());
                break;
            }
            Err(error) => return Err(failed(error)),
        };
        let Some(last) = batches.last() else { break };
        from = last.batch.offsets().end;
        for stored in batches.iter().filter(|stored| stored.batch.base_offset() >= position) {
            if let Some(sequenced) = stored.batch.producer() {
                let receipt = Receipt { base: stored.batch.base_offset(), count: stored.batch.count() };
                dedup.replay(sequenced, receipt, stored.batch.stored_at());
            }
        }
    }
    Ok(dedup)
}

/// The state of a group from its rows.
async fn load_group(
    reader: &dyn PartitionReader,
    order: &GroupOrder,
    log: OffsetRange,
) -> Result<GroupState, wire::Error> {
    let rotten = |error: group::RowError| refusal(ErrorCode::Corrupt, error.to_string());
    let mut loading = Loading::new(order.name.clone(), order.rules);
    for range in group::state_ranges(&order.name) {
        let rows = scan_all(reader, range).await.map_err(|error| refused_by_storage(&error))?;
        for (key, value) in rows {
            loading.row(&key, &value).map_err(rotten)?;
        }
    }
    let mut state = match loading.finish(log) {
        Ok(state) => state,
        // The partition itself is new: it lives in memory, and the node was restarted. All that comes is owed.
        Err(group::RowError::NoCursor(_)) => GroupState::new(order.name.clone(), order.rules, log.start),
        Err(error) => return Err(rotten(error)),
    };
    let expired = state.trimmed(log.start);
    order.metrics.expired.inc_by(expired);
    state.pause(order.paused);
    Ok(state)
}

async fn last_stored_at(reader: &dyn PartitionReader, log: OffsetRange) -> Timestamp {
    if log.is_empty() {
        return Timestamp::default();
    }
    // A damaged end is reported when a group gets there.
    let last = reader.read(Offset(log.end.0 - 1), READ_BYTES).await.unwrap_or_default();
    last.last().map_or_else(Timestamp::default, |stored| stored.batch.stored_at())
}

/// Every row of a range, page by page. For ranges that are bounded by themselves.
async fn scan_all(
    reader: &dyn PartitionReader,
    mut range: KeyRange,
) -> Result<Vec<(stentor_core::storage::Key, bytes::Bytes)>, StorageError> {
    let mut rows = Vec::new();
    loop {
        let page = reader.scan(range.clone(), ROWS_PER_PAGE).await?;
        let full = page.len() as u64 >= u64::from(ROWS_PER_PAGE.get());
        if let Some((key, _)) = page.last() {
            range.start = key.successor();
        }
        rows.extend(page);
        if !full {
            return Ok(rows);
        }
    }
}
