//! Handles frames that are not sent: hands them to the slow path within its limits, or counts them as dropped.

use tidegate_pipeline::frame::Frame;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, Verdict};

use super::deferred_frames::PendingFragment;
use super::worker_resources::WorkerParts;
use crate::drivers::PortQueue;
use crate::punt::class::{PuntClass, PuntRates, Punted};

/// Counts frames whose next hop was not resolved in time.
pub(super) fn count_unresolved<Q: PortQueue>(parts: &WorkerParts<Q>, frames: usize) {
    for _ in 0..frames {
        parts.shared.counters.record(Refusal::NeighborUnresolved.into());
    }
}

/// Applies the verdict to a frame that is not sent.
#[cold]
pub(super) fn finish<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    punt_rates: &mut PuntRates,
    now: Now,
    fragment: PendingFragment<Q::Frame>,
) {
    let PendingFragment { arrival, frame, verdict } = fragment;
    let end = match verdict {
        Verdict::Punt(why) => match punt(parts, punt_rates, now, why, arrival.interface(), frame) {
            Ok(()) => verdict,
            Err(refusal) => refusal.into(),
        },
        other => other,
    };
    parts.shared.counters.record(end);
}

/// Hands a frame to the slow path if the limits of its class allow it.
#[cold]
pub(super) fn punt<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    rates: &mut PuntRates,
    now: Now,
    why: PuntReason,
    interface: InterfaceIndex,
    frame: Q::Frame,
) -> Result<(), Refusal> {
    // A packet whose source is a VIP may only reach the gateway's own address if it answers the host.
    if why == PuntReason::ProbeAnswer && !parts.exchange.host_connections.is_answer(now, frame.bytes()) {
        return Err(Refusal::BadSource);
    }
    let class = PuntClass::of(now, frame.bytes(), &parts.exchange.host_connections);
    let counters = &parts.shared.loop_counters.punts[class as usize];
    if !rates.take(class, frame.bytes(), &parts.exchange.punts, now) {
        counters.rate_limited.add(1);
        return Err(Refusal::PuntRateLimited);
    }
    // The clock is read again because the burst may have taken a while.
    let punted = Punted { interface, frame, queued: parts.clock.now() };
    if parts.exchange.punts.push(class, punted).is_err() {
        counters.queue_full.add(1);
        return Err(Refusal::PuntQueueFull);
    }
    counters.passed.add(1);
    Ok(())
}
