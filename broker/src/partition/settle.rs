//! Settling: acknowledgements, refusals and extensions, applied at once and made durable soon.

use std::time::Duration;

use stentor_core::{GroupName, OffsetRange};
use stentor_protocol::ErrorCode;

use super::command::{Nack, Settlement, Unsettled};
use super::groups::DurableWaiter;
use super::task::Task;
use crate::error::refusal;
use crate::group::Refusal;

/// The longest that a consumer may extend a lease by at once.
const EXTENSION_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The longest pause that a consumer may ask for before the next attempt: as long as a message waits, the log cannot be
/// trimmed behind it.
const DELAY_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

impl Task {
    pub(super) fn settle(&mut self, group: &GroupName, settlement: Settlement) {
        let now = self.now();
        let Settlement { consumer, acks, nacks, extends, durable, reply } = settlement;
        if let Err(error) = self.slot(group) {
            let spans = spans_of(&acks, &nacks, &extends);
            let all = spans.into_iter().map(|span| Unsettled { span, error: error.clone() });
            let _ = reply.send(all.collect());
            return;
        }
        let Some(slot) = self.groups.get_mut(group) else { return };
        let metrics = &slot.order.metrics;
        let mut lost = Vec::new();
        let spans = if durable { spans_of(&acks, &nacks, &extends) } else { Vec::new() };
        for span in acks {
            metrics.acked.inc_by(slot.state.ack(consumer, span, &mut lost));
        }
        for mut nack in nacks {
            if let Refusal::Retry { delay: Some(delay) } = &mut nack.refusal {
                *delay = (*delay).min(DELAY_MAX);
            }
            match slot.state.refuse(consumer, nack.offset, &nack.refusal, &nack.reason, now, &mut self.rng) {
                Ok(()) if nack.refusal == Refusal::Release => {}
                Ok(()) => drop(metrics.nacked.inc()),
                Err(_) => lost.push(OffsetRange::new(nack.offset, nack.offset.next())),
            }
        }
        for (span, by) in extends {
            let by = by.unwrap_or(slot.state.rules().lease).min(EXTENSION_MAX);
            slot.state.extend(consumer, span, now.monotonic.after(by), &mut lost);
        }
        slot.ready |= !slot.consumers.is_empty();
        let error = || refusal(ErrorCode::LeaseLost, "the message is held by another consumer, or done with");
        let unsettled: Vec<_> = lost.into_iter().map(|span| Unsettled { span, error: error() }).collect();
        if durable {
            slot.waiters.push(DurableWaiter { reply, unsettled, spans });
        } else {
            // Whoever asked may have gone.
            let _ = reply.send(unsettled);
        }
    }
}

/// Everything that a settlement speaks of.
fn spans_of(acks: &[OffsetRange], nacks: &[Nack], extends: &[(OffsetRange, Option<Duration>)]) -> Vec<OffsetRange> {
    let singles = nacks.iter().map(|nack| OffsetRange::new(nack.offset, nack.offset.next()));
    acks.iter().copied().chain(singles).chain(extends.iter().map(|(span, _)| *span)).collect()
}
