//! What a partition says of itself, and retention, which goes by the same figures.

use stentor_core::storage::StorageError;
use stentor_core::{GroupName, Offset};

use super::command::PartitionStats;
use super::flush::Trim;
use super::jobs::Ages;
use super::retention::{Facts, trim_to};
use super::task::Task;
use crate::settings::StorageKind;

/// A storage in memory counts as short of space from so many hundredths of its bound on.
const SHORT_PERCENT: u64 = 90;

impl Task {
    pub(super) fn stats(&self) -> PartitionStats {
        let end = self.durable_end();
        PartitionStats {
            log: self.log_bounds(),
            bytes: self.reader().map_or(0, |reader| reader.bytes()),
            state: self.state(),
            groups: self.groups.iter().map(|(group, slot)| (group.clone(), slot.stats(end))).collect(),
        }
    }

    fn state(&self) -> String {
        match (&self.failed, &self.damaged) {
            (Some(error), _) => error.message.clone(),
            (None, Some(damage)) => damage.clone(),
            (None, None) => "ok".to_owned(),
        }
    }

    /// Puts the figures where metrics find them.
    pub(super) fn show(&self) {
        self.partition.show(self.stats());
    }

    /// Finds out when the oldest owed message of each group was stored: from memory, or by a read beside the task.
    pub(super) fn look_up_ages(&mut self) {
        let end = self.durable_end();
        let mut reads: Vec<(GroupName, u64, Offset)> = Vec::new();
        for (group, slot) in &mut self.groups {
            let Some(oldest) = slot.state.oldest_owed(end) else {
                slot.oldest = None;
                continue;
            };
            if slot.oldest.is_some_and(|(offset, _)| offset == oldest) {
                continue;
            }
            match self.tail.get(oldest) {
                Some(held) => slot.oldest = Some((oldest, held.batch.stored_at())),
                None => reads.push((group.clone(), slot.generation, oldest)),
            }
        }
        for (group, generation, offset) in reads {
            self.spawn_oldest(&group, generation, offset);
        }
    }

    /// Decides how far the log may be trimmed, now that it is known where messages of which age begin.
    pub(super) fn retain(&mut self, outcome: Result<Ages, StorageError>) {
        self.aging = false;
        let ages = match outcome {
            Ok(ages) => ages,
            Err(error) => {
                tracing::warn!(topic = %self.topic, partition = %self.partition.index, %error, "retention has to wait");
                return;
            }
        };
        let share = |bytes: u64| bytes / u64::from(self.settings.partitions);
        let bytes = self.reader().map_or(0, |reader| reader.bytes());
        let full = self.node.storages.get(&self.settings.storage).is_some_and(|storage| storage.usage().full);
        let bound = share(self.settings.memory_max.0);
        let tight = self.settings.storage == StorageKind::Memory && bytes > bound / 100 * SHORT_PERCENT;
        let facts = Facts {
            log: self.log_bounds(),
            bytes,
            finished: self.finished(),
            retained_from: ages.retained_from,
            retain_bytes: self.settings.retain_bytes.map(|most| share(most.0)),
            owed_from: ages.owed_from,
            short: full || tight,
        };
        if let Some(to) = trim_to(&facts) {
            self.trim = Some(Trim { to, owed_from: ages.owed_from });
            self.flush_at = Some(self.node.clock.monotonic());
        }
    }
}
