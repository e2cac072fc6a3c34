//! The drain of the gateway itself: who requested it, and whether packets still arrive.
//!
//! A gateway serves, drains or is drained. While anybody requests a drain (the operator by a command, the annotation of
//! its `GatewayStatus`, or SIGTERM), it announces nothing and `/readyz` fails, but it forwards everything that still
//! arrives. It is drained when no packet for a VIP and no reply of a backend has arrived for `drain.quiet`. If packets
//! arrive again, it goes back from drained to draining.
//!
//! Everything that announces addresses follows [`GatewayDrain::changes`] and announces only in [`Phase::Serving`].
//!
//! Nothing here reads counters or files: `drain_watch` counts packets, and `drains` saves the requests of operators for
//! the next start.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tidegate_admin_api::{DrainRequester, GatewayDrainState as Phase, GatewayDrainStatus};
use tidegate_dataplane::gateway::Stats;
use tidegate_events::{Event, Field, Reason};
use tidegate_model::config::DrainConfig;
use tidegate_spec::verdict::TransmitReason;
use tokio::sync::watch;
use tokio::time::Instant;

/// If a count is this late, the process or its machine was paused. Packets that arrived meanwhile may have been lost
/// before they were counted, so that time does not count as silence.
const PAUSE: Duration = Duration::from_millis(1_500);

/// The counters of the dataplane at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counted {
    /// Packets for VIPs, and replies of backends.
    pub(super) packets: u64,
    /// Flows in the tables.
    pub(super) flows: u64,
}

impl Counted {
    /// Counts packets for VIPs and replies of backends that were forwarded or answered. Traffic that backends originate
    /// is not counted, because a drain of this gateway does not move it.
    pub(super) fn of(stats: &Stats) -> Self {
        let of_vips = stats.transmits.iter().filter(|(why, _)| is_of_a_vip(*why));
        Self {
            packets: of_vips.map(|(_, count)| count).sum(),
            flows: stats.workers.iter().map(|worker| worker.flows).sum(),
        }
    }
}

fn is_of_a_vip(why: TransmitReason) -> bool {
    use TransmitReason as Why;
    match why {
        Why::Forward
        | Why::Reply
        | Why::EchoReply
        | Why::NoEndpoints
        | Why::NoFlow
        | Why::SynCookie
        | Why::NoService
        | Why::PacketTooBig
        | Why::TtlExceeded
        | Why::IcmpError
        | Why::Retried => true,
        Why::ArpReply | Why::NeighborAdvertisement | Why::Routed | Why::Masqueraded | Why::NotRouted => false,
    }
}

/// The drain of the gateway.
#[derive(Debug)]
pub(super) struct GatewayDrain {
    inner: Mutex<Inner>,
    phase: watch::Sender<Phase>,
}

#[derive(Debug, Default)]
struct Inner {
    /// In the order of [`DrainRequester::ALL`].
    requested: [bool; 3],
    quiet: Duration,
    progress: Option<Progress>,
}

/// A drain in progress.
#[derive(Debug, Clone, Copy)]
struct Progress {
    began: Instant,
    since: Timestamp,
    counted: Counted,
    at: Instant,
    packets_per_second: f64,
    /// When a packet was last seen. Initially, the start of the drain.
    last: Instant,
    last_packet: Option<Timestamp>,
}

impl Default for GatewayDrain {
    fn default() -> Self {
        let inner = Inner { quiet: DrainConfig::default().quiet, ..Inner::default() };
        Self { inner: Mutex::new(inner), phase: watch::Sender::new(Phase::Serving) }
    }
}

impl GatewayDrain {
    /// Sets how long no packet may arrive before the gateway is drained.
    pub(super) fn configure(&self, config: &DrainConfig) {
        self.inner().quiet = config.quiet;
    }

    /// Sets whether `by` requests a drain.
    pub(super) fn request(&self, by: DrainRequester, is_requested: bool, counted: Counted, now: Instant) {
        let mut inner = self.inner();
        inner.requested[by as usize] = is_requested;
        match (inner.requested.contains(&true), inner.progress) {
            (true, None) => {
                let message =
                    "draining this gateway: it announces nothing and forwards packets that still arrive";
                let event = Event::of_gateway(Reason::GatewayDrainBegun, message);
                tidegate_events::record(event.text(Field::By, by.as_str()));
                inner.progress = Some(Progress {
                    began: now,
                    since: Timestamp::now(),
                    counted,
                    at: now,
                    packets_per_second: 0.0,
                    last: now,
                    last_packet: None,
                });
            }
            (false, Some(_)) => {
                let message = "cancelled the drain of this gateway: it serves again";
                let event = Event::of_gateway(Reason::GatewayDrainEnded, message);
                tidegate_events::record(event.text(Field::By, by.as_str()));
                inner.progress = None;
            }
            _ => {}
        }
        self.publish(&inner);
    }

    /// Whether `by` requests a drain.
    pub(super) fn is_requested(&self, by: DrainRequester) -> bool {
        self.inner().requested[by as usize]
    }

    /// Records the current counters of the dataplane.
    pub(super) fn count(&self, counted: Counted, now: Instant) {
        let mut inner = self.inner();
        let Some(progress) = &mut inner.progress else { return };
        let arrived = counted.packets.saturating_sub(progress.counted.packets);
        let elapsed = now.duration_since(progress.at);
        if !elapsed.is_zero() {
            progress.packets_per_second = arrived as f64 / elapsed.as_secs_f64();
        }
        if elapsed > PAUSE {
            progress.last += elapsed;
        }
        if arrived > 0 {
            (progress.last, progress.last_packet) = (now, Some(Timestamp::now()));
        }
        (progress.counted, progress.at) = (counted, now);
        self.publish(&inner);
    }

    /// The current phase, and every later one.
    pub(super) fn changes(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The current phase.
    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The drain, for display.
    pub(super) fn view(&self) -> GatewayDrainStatus {
        let inner = self.inner();
        let by = DrainRequester::ALL.into_iter().filter(|by| inner.requested[*by as usize]).collect();
        let state = self.phase();
        let quiet_seconds = inner.quiet.as_secs();
        match inner.progress {
            None => GatewayDrainStatus { state, quiet_seconds, ..GatewayDrainStatus::default() },
            Some(progress) => GatewayDrainStatus {
                state,
                by,
                since: Some(progress.since.to_string()),
                flows: progress.counted.flows,
                packets_per_second: progress.packets_per_second,
                last_packet: progress.last_packet.map(|at| at.to_string()),
                quiet_seconds,
            },
        }
    }

    fn publish(&self, inner: &Inner) {
        let phase = match &inner.progress {
            None => Phase::Serving,
            // Its counters are newer than the start, so the silence was measured and not assumed.
            Some(progress) if progress.at > progress.began && progress.at - progress.last >= inner.quiet => {
                Phase::Drained
            }
            Some(_) => Phase::Draining,
        };
        let is_new = self.phase.send_if_modified(|last| std::mem::replace(last, phase) != phase);
        if is_new && phase == Phase::Drained {
            let flows = inner.progress.map_or(0, |progress| progress.counted.flows);
            let message = "drained: no more packets arrive at this gateway";
            let event = Event::of_gateway(Reason::GatewayDrained, message);
            let quiet = inner.quiet.as_secs();
            tidegate_events::record(event.number(Field::Flows, flows).number(Field::Seconds, quiet));
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DrainRequester::{Annotation, Command, Signal};

    fn counted(packets: u64) -> Counted {
        Counted { packets, flows: 3 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_is_drained_only_after_a_whole_quiet_period() {
        let drain = GatewayDrain::default();
        drain.configure(&DrainConfig { quiet: Duration::from_secs(5), ..DrainConfig::default() });
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        drain.count(counted(100), at(0));
        assert_eq!(drain.view(), GatewayDrainStatus { quiet_seconds: 5, ..GatewayDrainStatus::default() });

        drain.request(Command, true, counted(100), at(0));
        assert_eq!(drain.phase(), Phase::Draining);
        for ms in (500..5_000).step_by(500) {
            drain.count(counted(100), at(ms));
            assert_eq!(drain.phase(), Phase::Draining, "{ms} ms");
        }
        drain.count(counted(110), at(4_999));
        for ms in (5_000..9_998).step_by(500).chain([9_998]) {
            drain.count(counted(110), at(ms));
            assert_eq!(drain.phase(), Phase::Draining, "a packet came at 4999 ms: {ms}");
        }
        drain.count(counted(110), at(9_999));
        assert_eq!(drain.phase(), Phase::Drained);
        let view = drain.view();
        assert_eq!((view.flows, view.by.as_slice(), view.packets_per_second), (3, &[Command][..], 0.0));
        assert!(view.last_packet.is_some() && view.since.is_some(), "{view:?}");

        drain.count(counted(111), at(20_000));
        assert_eq!(drain.phase(), Phase::Draining, "packets arrive again, and the state shows it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_when_its_last_requester_ends_it() {
        let drain = GatewayDrain::default();
        let now = Instant::now();
        let mut changes = drain.changes();
        for by in [Command, Annotation, Signal] {
            drain.request(by, true, counted(0), now);
        }
        assert!(changes.has_changed().expect("it lives"));
        assert_eq!(*changes.borrow_and_update(), Phase::Draining);
        drain.request(Annotation, false, counted(0), now);
        drain.request(Command, false, counted(0), now);
        assert_eq!((drain.phase(), drain.view().by.as_slice()), (Phase::Draining, &[Signal][..]));
        assert!(!drain.is_requested(Command) && drain.is_requested(Signal));
        drain.request(Signal, false, counted(0), now);
        assert_eq!(*changes.borrow_and_update(), Phase::Serving);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_only_if_it_was_measured() {
        let drain = GatewayDrain::default();
        let now = Instant::now();
        drain.request(Command, true, counted(7), now);
        let later = now + Duration::from_secs(3600);
        drain.request(Annotation, true, counted(7), later);
        assert_eq!(drain.phase(), Phase::Draining, "no count since the start");
        drain.count(counted(7), later);
        assert_eq!(
            drain.phase(),
            Phase::Draining,
            "the process was paused, and packets would have been lost"
        );
        let quiet = DrainConfig::default().quiet;
        for n in 1..=quiet.as_secs() {
            assert_eq!(drain.phase(), Phase::Draining);
            drain.count(counted(7), later + Duration::from_secs(n));
        }
        assert_eq!(drain.phase(), Phase::Drained);
    }
}
