//! The partition that holds the catalogue.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::storage::{
    ByteBound, Change, Key, KeyRange, OpenOptions, OpenPartition, PartitionWriter, Storage, StorageError, WhenFull,
};
use stentor_core::{Epoch, Offset, PartitionId};

use super::rows::{self, Contents, RowError};
use crate::broker::StartError;
use crate::settings::StorageKind;

/// What a catalogue in memory may take.
const MEMORY_MAX: u64 = 64 << 20;

const ROWS_PER_PAGE: NonZeroU32 = NonZeroU32::new(1_024).unwrap();

/// The writer of the catalogue's rows.
pub(crate) struct Store {
    writer: Box<dyn PartitionWriter>,
    epoch: Epoch,
    pub(super) next_partition: u64,
}

impl Store {
    /// Opens the catalogue where it is safest: on the local store if there is one, else in memory.
    pub(crate) async fn open(
        storages: &BTreeMap<StorageKind, Arc<dyn Storage>>,
    ) -> Result<(Self, Contents), StartError> {
        let failed =
            |source| StartError::Storage { context: "the catalogue of topics cannot be opened".into(), source };
        let kind = if storages.contains_key(&StorageKind::Lsm) { StorageKind::Lsm } else { StorageKind::Memory };
        let none = || failed(StorageError::Unsupported("there is no storage to keep it".to_owned()));
        let storage = storages.get(&kind).ok_or_else(none)?;
        let bound = ByteBound { bytes_max: MEMORY_MAX, when_full: WhenFull::Reject };
        let options = OpenOptions {
            durability: kind.durabilities()[0],
            first_offset: Offset::ZERO,
            bound: (kind == StorageKind::Memory).then_some(bound),
        };
        let OpenPartition { epoch, writer, reader } =
            storage.open(PartitionId::CATALOGUE, options).await.map_err(failed)?;
        let mut contents = Contents::new();
        let mut range = rows::all();
        loop {
            let page = reader.scan(range.clone(), ROWS_PER_PAGE).await.map_err(failed)?;
            let Some((last, _)) = page.last() else { break };
            range.start = last.successor();
            for (key, value) in &page {
                contents.row(key, value).map_err(|error: RowError| StartError::Catalogue(error.to_string()))?;
            }
        }
        let next_partition = contents.next_partition;
        Ok((Self { writer, epoch, next_partition }, contents))
    }

    /// Writes and deletes rows; done once that is durable.
    pub(crate) async fn write(&mut self, puts: Vec<(Key, Bytes)>, deletes: Vec<KeyRange>) -> Result<(), StorageError> {
        let change = Change { puts, deletes, ..Change::new(self.epoch, self.writer.end()) };
        self.writer.commit(change).await?.durable().await?;
        Ok(())
    }
}
