//! The ends of frames that are not sent: handed to the slow path within its limits, or counted as dropped.

use tidegate_pipeline::frame::Frame;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, Verdict};

use super::held_frames::HeldFragment;
use super::worker_resources::WorkerParts;
use crate::drivers::PortQueue;
use crate::punt::class::{PuntClass, PuntRates, Punted};

/// Counts frames that waited for a neighbour without success.
pub(super) fn give_up<Q: PortQueue>(parts: &WorkerParts<Q>, frames: usize) {
    for _ in 0..frames {
        parts.shared.counters.record(Refusal::NeighborUnresolved.into());
    }
}

/// Completes the verdict on a frame that is not sent.
#[cold]
pub(super) fn settle<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    punt_rates: &mut PuntRates,
    now: Now,
    held: HeldFragment<Q::Frame>,
) {
    let HeldFragment { arrival, frame, verdict } = held;
    let end = match verdict {
        Verdict::Punt(why) => match punt(parts, punt_rates, now, why, arrival.interface(), frame) {
            Ok(()) => verdict,
            Err(refusal) => refusal.into(),
        },
        other => other,
    };
    parts.shared.counters.record(end);
}

/// Hands a frame to the slow path, if its class is within its limits.
#[cold]
pub(super) fn punt<Q: PortQueue>(
    parts: &WorkerParts<Q>,
    rates: &mut PuntRates,
    now: Now,
    why: PuntReason,
    interface: InterfaceIndex,
    frame: Q::Frame,
) -> Result<(), Refusal> {
    // Not every packet with a VIP as its source may reach the gateway's own address: only answers to the host.
    if why == PuntReason::ProbeAnswer && !parts.exchange.host_connections.is_answer(now, frame.bytes()) {
        return Err(Refusal::BadSource);
    }
    let class = PuntClass::of(now, frame.bytes(), &parts.exchange.host_connections);
    let counters = &parts.shared.turns.punts[class as usize];
    if !rates.take(class, frame.bytes(), &parts.exchange.punts, now) {
        counters.rate_limited.add(1);
        return Err(Refusal::PuntRateLimited);
    }
    // The time of the turn is not used: this frame may be the last of many.
    let punted = Punted { interface, frame, queued: parts.clock.now() };
    if parts.exchange.punts.push(class, punted).is_err() {
        counters.queue_full.add(1);
        return Err(Refusal::PuntQueueFull);
    }
    counters.passed.add(1);
    Ok(())
}
