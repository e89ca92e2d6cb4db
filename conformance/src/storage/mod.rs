//! The suite for storage backends: the contract of [`stentor_core::storage`], one property a test.
//!
//! A backend says how to make itself by a [`Subject`] and calls [`storage_suite!`](crate::storage_suite) in its
//! `tests/conformance.rs`, which becomes one test per property, named by the sentence that must hold:
//!
//! ```ignore
//! struct Memory(MemStorage);
//!
//! impl Subject for Memory {
//!     fn storage(&self) -> Arc<dyn Storage> {
//!         Arc::new(self.0.clone())
//!     }
//!
//!     fn options(&self) -> OpenOptions {
//!         let bound = ByteBound { bytes_max: BYTES_MAX, when_full: WhenFull::Reject };
//!         OpenOptions { durability: Durability::Memory, first_offset: Offset::ZERO, bound: Some(bound) }
//!     }
//!
//!     fn change_bytes_max(&self) -> u64 {
//!         BYTES_MAX
//!     }
//! }
//!
//! stentor_conformance::storage_suite!(Memory(MemStorage::new()));
//! ```
//!
//! What a backend cannot do (persist, have its syncs fail) it says by leaving the hook out; the properties that need it
//! then hold of themselves. Everything else is asked of everyone.
//!
//! Invariant: nothing here waits for time to pass, and all chance comes from seeds written in the tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stentor_core::PartitionId;
use stentor_core::storage::{OpenOptions, Storage};

mod harness;

pub mod change;
pub mod concurrency;
pub mod epoch;
pub mod faults;
pub mod life;
pub mod log;
pub mod model;
pub mod sharing;
pub mod table;

/// A backend under test: one store, fresh and empty, made for one property.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The store. After [`reopen`](Self::reopen) it is another one over the same data.
    fn storage(&self) -> Arc<dyn Storage>;

    /// Options that the backend keeps, with `first_offset` 0. A bound, if it needs one, leaves room for 64 MiB.
    fn options(&self) -> OpenOptions;

    /// The most that one change may come to; a larger one must be refused as `TooLarge`. The suite makes one of that
    /// size by repeating one batch of a MiB, so it costs little memory here.
    fn change_bytes_max(&self) -> u64;

    /// Closes the store and opens it anew over the same data; false if the backend keeps nothing when it is closed.
    async fn reopen(&mut self) -> bool {
        false
    }

    /// Makes the next sync, and no other, fail; false if there are none that could.
    fn fail_next_sync(&mut self) -> bool {
        false
    }

    /// Holds back every sync from now on, as a slow disk would; false if there are none.
    fn hold_syncs(&mut self) -> bool {
        false
    }

    /// Lets the syncs go on that were held back.
    fn release_syncs(&mut self) {}

    /// Alters a byte in the records of the batch that holds this offset, where they lie, so that the next read meets it;
    /// false if nothing lies where it could be altered.
    async fn damage(&mut self, _partition: PartitionId, _offset: stentor_core::Offset) -> bool {
        false
    }
}

/// How long a property may take before it counts as hung. The longest takes seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs one property on a runtime of its own.
///
/// # Panics
/// When the property does not hold, or does not end.
pub fn run(property: &str, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.expect("a runtime").block_on(async { tokio::time::timeout(DEADLINE, test).await });
    assert!(ended.is_ok(), "`{property}` did not end within {DEADLINE:?}");
}

/// One `#[test]` for each property of a storage backend. The argument is an expression that makes a fresh
/// [`Subject`](crate::storage::Subject); it is evaluated once for each property, and may `.await`.
#[macro_export]
macro_rules! storage_suite {
    ($subject:expr) => {
        $crate::storage_suite! { @properties $subject;
            log: [
                one_batch_reads_back_as_it_was,
                many_batches_read_back_in_order,
                compressed_batches_keep_their_bytes,
                a_large_batch_reads_back,
                empty_bodies_read_back,
                a_read_in_the_middle_of_a_batch_begins_with_that_batch,
                a_read_takes_as_many_batches_as_fit_and_at_least_one,
                a_read_at_the_end_gives_nothing,
                offsets_are_contiguous_over_pipelined_commits,
                several_appends_of_one_change_lie_in_their_order,
                trimming_moves_the_start,
                trimming_in_the_middle_of_a_batch_keeps_the_batch,
                trimming_below_the_start_changes_nothing,
                trimming_beyond_the_end_is_refused,
                trimming_reaches_what_the_same_change_appends,
                a_log_trimmed_to_its_end_goes_on_from_there,
                a_read_below_the_start_says_where_the_log_starts,
                a_time_finds_the_first_batch_stored_then_or_later,
                a_time_never_finds_an_offset_below_the_start,
                truncating_drops_the_end_and_nothing_else,
                truncating_in_the_middle_of_a_batch_or_below_the_start_is_refused,
                a_log_begins_at_its_first_offset,
                the_bytes_of_a_partition_follow_what_it_holds,
            ]
            table: [
                a_row_reads_back_until_it_is_deleted,
                rows_come_in_the_order_of_their_bytes,
                a_scan_keeps_to_its_range_and_limit,
                a_prefix_finds_exactly_its_rows,
                an_empty_range_finds_and_deletes_nothing,
                large_values_read_back,
                an_empty_value_is_not_a_missing_row,
                the_longest_key_is_taken_and_a_longer_one_refused,
                deleting_a_range_leaves_its_neighbours,
                tables_of_partitions_are_apart,
            ]
            change: [
                deletes_come_before_puts,
                the_later_of_two_puts_wins,
                a_change_of_everything_is_seen_whole,
                an_empty_change_is_taken,
                a_refused_change_changes_nothing,
                a_change_that_is_too_large_is_refused,
                receipts_resolve_in_order_and_readers_see_their_changes,
                a_dropped_commit_has_its_whole_effect_or_none,
            ]
            epoch: [
                opening_again_deposes_the_first_writer,
                a_change_of_an_older_epoch_is_refused,
                a_stale_end_is_refused,
                epochs_only_grow,
                a_deposed_writer_cannot_truncate,
                watching_tells_the_epoch,
            ]
            sharing: [
                a_stored_batch_enters_another_log_as_it_is,
                a_stored_batch_outlives_the_trimming_of_its_source,
                a_stored_batch_outlives_the_deletion_of_its_source,
                the_source_outlives_the_deletion_of_the_other,
                a_place_holds_while_any_log_owes_the_batch,
                a_stored_batch_can_enter_its_own_log_again,
                a_place_where_nothing_lies_is_refused,
            ]
            life: [
                partitions_are_listed_in_order,
                a_deleted_partition_is_gone,
                a_partition_made_anew_is_empty,
                a_deleted_partition_deposes_its_writer,
                deleting_what_is_not_there_is_done_already,
                the_first_offset_counts_only_for_a_new_partition,
                what_is_not_kept_is_refused,
                a_closed_store_refuses_everything_and_closes_again,
                reopening_keeps_everything,
                reopening_begins_a_later_epoch,
                a_deleted_partition_does_not_come_back,
            ]
            faults: [
                nothing_is_seen_before_it_is_durable,
                a_failed_sync_fails_its_receipt_and_every_later_one,
                a_failed_sync_ends_writing_but_not_reading,
                a_damaged_batch_is_reported_and_never_handed_out,
            ]
            concurrency: [
                a_view_stays_as_it_is_while_commits_go_on,
                a_view_keeps_what_is_trimmed_meanwhile,
                readers_see_every_change_whole,
                many_writers_and_readers_do_not_meet,
            ]
            model: [
                a_random_history_matches_the_model_1,
                a_random_history_matches_the_model_2,
                a_random_history_matches_the_model_3,
                a_random_history_matches_the_model_4,
            ]
        }
    };
    (@properties $subject:expr; $($group:ident: [$($property:ident),* $(,)?])*) => {
        $($(
            #[test]
            fn $property() {
                $crate::storage::run(stringify!($property), async {
                    let mut subject = $subject;
                    $crate::storage::$group::$property(&mut subject).await;
                });
            }
        )*)*
    };
}
