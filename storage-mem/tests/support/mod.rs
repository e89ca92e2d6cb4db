//! An opened partition, for the tests of this backend alone.

use std::sync::Arc;

use stentor_core::storage::{
    Append, ByteBound, Change, OpenOptions, PartitionReader, PartitionWriter, Storage, StorageError, WhenFull,
};
use stentor_core::{Durability, Epoch, Offset, OffsetRange, PartitionId};
use stentor_storage_mem::MemStorage;

pub(crate) const KIB: u64 = 1 << 10;

pub(crate) struct Partition {
    pub(crate) epoch: Epoch,
    pub(crate) writer: Box<dyn PartitionWriter>,
    pub(crate) reader: Arc<dyn PartitionReader>,
}

impl Partition {
    pub(crate) async fn open(storage: &MemStorage, id: u64, bytes_max: u64, when_full: WhenFull) -> Self {
        let bound = Some(ByteBound { bytes_max, when_full });
        let options = OpenOptions { durability: Durability::Memory, first_offset: Offset::ZERO, bound };
        let open = storage.open(PartitionId(id), options).await.expect("the partition opens");
        Self { epoch: open.epoch, writer: open.writer, reader: open.reader }
    }

    pub(crate) fn change(&self) -> Change {
        Change::new(self.epoch, self.writer.end())
    }

    pub(crate) async fn commit(&mut self, change: Change) -> Result<OffsetRange, StorageError> {
        Ok(self.writer.commit(change).await?.durable().await?.into_inner())
    }

    pub(crate) async fn append(&mut self, appends: Vec<Append>) -> Result<OffsetRange, StorageError> {
        let change = Change { appends, ..self.change() };
        self.commit(change).await
    }

    pub(crate) async fn trim(&mut self, to: Offset) {
        let change = Change { trim: Some(to), ..self.change() };
        self.commit(change).await.expect("trimming is always taken");
    }
}
