//! The conformance suite must be able to fail: a backend with one planted fault, and the properties that find it.
//!
//! Without a fault the same wrapper passes the whole suite, syncs and damage included, so it is the fault that they find.

mod faulty;

use std::panic::{AssertUnwindSafe, catch_unwind};

use faulty::{Fault, Faulty};
use stentor_conformance::storage::{change, concurrency, epoch, faults, life, log, model, run, table};

stentor_conformance::storage_suite!(Faulty::new(None));

/// One test for a fault: each of the properties named fails for it.
macro_rules! finds {
    ($test:ident: $fault:ident, $($group:ident::$property:ident),+) => {
        #[test]
        fn $test() {
            $({
                let held = catch_unwind(AssertUnwindSafe(|| {
                    run(stringify!($property), async {
                        $group::$property(&mut Faulty::new(Some(Fault::$fault))).await;
                    });
                }));
                assert!(held.is_err(), "`{}` holds for {:?}", stringify!($property), Fault::$fault);
            })+
        }
    };
}

finds!(a_dropped_put_is_found: DropsAPut,
    table::a_scan_keeps_to_its_range_and_limit, change::deletes_come_before_puts,
    concurrency::readers_see_every_change_whole, model::a_random_history_matches_the_model_1);

finds!(ignored_epochs_are_found: IgnoresEpochs,
    epoch::opening_again_deposes_the_first_writer, epoch::a_change_of_an_older_epoch_is_refused,
    epoch::a_stale_end_is_refused,  change::a_refused_change_changes_nothing,
    model::a_random_history_matches_the_model_1);

finds!(a_receipt_before_the_change_is_seen_is_found: AppliesLate,
    log::one_batch_reads_back_as_it_was, change::receipts_resolve_in_order_and_readers_see_their_changes,
    concurrency::many_writers_and_readers_do_not_meet);

finds!(a_receipt_before_the_sync_is_found: AcknowledgesBeforeTheSync, faults::nothing_is_seen_before_it_is_durable);

finds!(a_change_seen_before_the_sync_is_found: ShowsBeforeTheSync, faults::nothing_is_seen_before_it_is_durable);

finds!(a_change_in_two_halves_is_found: SplitsChanges,
    change::a_refused_change_changes_nothing, concurrency::readers_see_every_change_whole);

finds!(writing_on_after_a_failed_sync_is_found: GoesOnAfterAFailedSync,
    faults::a_failed_sync_fails_its_receipt_and_every_later_one, faults::a_failed_sync_ends_writing_but_not_reading);

finds!(damage_that_is_handed_out_is_found: HandsOutDamage, faults::a_damaged_batch_is_reported_and_never_handed_out);

finds!(a_view_that_moves_is_found: ShowsLiveViews,
    concurrency::a_view_stays_as_it_is_while_commits_go_on, concurrency::a_view_keeps_what_is_trimmed_meanwhile,
    model::a_random_history_matches_the_model_1);

finds!(a_deletion_that_is_not_done_is_found: KeepsDeleted,
    life::a_deleted_partition_is_gone, life::a_partition_made_anew_is_empty);

finds!(a_trim_that_is_not_done_is_found: ForgetsTrims,
    log::trimming_moves_the_start, log::a_read_below_the_start_says_where_the_log_starts,
    model::a_random_history_matches_the_model_1);
