//! The suite that every backend passes.

use std::sync::Arc;

use stentor_conformance::storage::Subject;
use stentor_core::storage::{ByteBound, OpenOptions, Storage, WhenFull};
use stentor_core::{Durability, Offset};
use stentor_storage_mem::MemStorage;

/// A partition's bound, which also bounds a change.
const BYTES_MAX: u64 = 80 << 20;

#[derive(Default)]
struct Memory(MemStorage);

impl Subject for Memory {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.0.clone())
    }

    fn options(&self) -> OpenOptions {
        let bound = ByteBound { bytes_max: BYTES_MAX, when_full: WhenFull::Reject };
        OpenOptions { durability: Durability::Memory, first_offset: Offset::ZERO, bound: Some(bound) }
    }

    fn change_bytes_max(&self) -> u64 {
        BYTES_MAX
    }
}

stentor_conformance::storage_suite!(Memory::default());
