//! The backends of a node: the one place that names them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use stentor_broker::{NodeSettings, StorageKind};
use stentor_core::storage::{Storage, StorageError};
use stentor_storage_lsm::{LsmConfig, LsmStorage};
use stentor_storage_mem::MemStorage;

use super::data_dir::LSM_FOLDER;
use crate::config::Config;
use crate::output::Failure;

/// Opens the backends, recovering what they hold. `seed` numbers a store that is made by this.
pub(super) async fn open(config: &Config, seed: u64) -> Result<BTreeMap<StorageKind, Arc<dyn Storage>>, Failure> {
    super::process::allow_open_files();
    let memory: Arc<dyn Storage> = Arc::new(MemStorage::new());
    let (folder, node) = (config.data_dir.join(LSM_FOLDER), config.broker.node.clone());
    // Recovery reads files, so it stays off the threads that answer /healthz meanwhile.
    let opened = tokio::task::spawn_blocking(move || open_lsm(&folder, &node, seed)).await;
    let lsm = opened.map_err(|error| Failure::new("internal", error.to_string()))??;
    Ok(BTreeMap::from([(StorageKind::Memory, memory), (StorageKind::Lsm, lsm)]))
}

fn open_lsm(folder: &Path, node: &NodeSettings, seed: u64) -> Result<Arc<dyn Storage>, Failure> {
    let config = LsmConfig {
        disk_watermark: node.disk_watermark.0,
        disk_reserve: node.disk_reserve.0,
        seed,
        ..LsmConfig::default()
    };
    match LsmStorage::open(folder, config) {
        Ok(storage) => Ok(Arc::new(storage)),
        Err(error) => Err(not_opened(&error)),
    }
}

fn not_opened(error: &StorageError) -> Failure {
    let hint = match error {
        StorageError::Locked(_) => "stop the other process, or name another folder as node.data_dir",
        StorageError::Damaged(_) | StorageError::Corrupt { .. } => {
            "`stentor verify` on the data folder says what is damaged; restore it from a copy"
        }
        StorageError::StorageFull(_) => "make room on the disk; nothing that was acknowledged is lost",
        StorageError::Io { .. } => "check the folder's rights and the disk",
        _ => "",
    };
    Failure::new("data_dir", error.to_string()).hint(hint)
}

/// Closes the backends: what they took is durable when this returns.
pub(super) async fn close(storages: &BTreeMap<StorageKind, Arc<dyn Storage>>) -> Result<(), Failure> {
    let mut closed = Ok(());
    for (kind, storage) in storages {
        if let Err(error) = storage.close().await {
            closed = Err(Failure::new("io", format!("the {kind} storage did not close well: {error}"))
                .hint("what was acknowledged is in the journal and is recovered at the next start"));
        }
    }
    closed
}
