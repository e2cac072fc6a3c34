//! Checks every few seconds whether the API server still responds.
//!
//! A watch without events doesn't show that the API server is alive: if a network drops packets silently, or a server
//! hangs, only the next missing bookmark shows it, a minute or more later. While there are watches, a small request is
//! therefore sent every [`ProbeTimes::interval`]. If two consecutive requests get no response, every watch is dropped
//! and the source counts as lost. A refusal is a response.
//!
//! Once a minute it also compares the clocks. Only certificates and tokens depend on equal clocks, but differing times
//! in events and heartbeats mislead users.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::connect::Connector;
use super::tuning::ProbeTimes;
use super::wire::{Fault, Requests};

/// The number of consecutive unanswered requests after which the API server counts as lost.
const UNANSWERED_MAX: u32 = 2;
/// The number of requests from one comparison of the clocks to the next.
const CLOCK_EVERY: u32 = 12;
/// A smaller difference of the clocks is not reported, because a response may take seconds.
const CLOCK_OFFSET_MAX: SignedDuration = SignedDuration::from_secs(10);

/// Reports the loss of the API server. All clones report the same loss.
#[derive(Debug, Clone)]
pub(super) struct HealthProbe(watch::Receiver<u64>);

impl HealthProbe {
    /// A probe, and the task that sends requests until all clones are dropped.
    pub(super) fn new(
        connector: Arc<Connector>,
        times: ProbeTimes,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (lost, received) = watch::channel(0);
        (Self(received), probe(connector, times, lost))
    }

    /// Waits until requests on the connection with this serial number, or a later one, are unanswered.
    pub(super) async fn lost(&self, serial: u64) {
        let mut lost = self.0.clone();
        if lost.wait_for(|lost| *lost >= serial).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn probe(connector: Arc<Connector>, times: ProbeTimes, lost: watch::Sender<u64>) {
    let mut unanswered = 0;
    let (mut clock, mut until_clock) = (Clock::default(), 0);
    loop {
        sleep(times.interval).await;
        if lost.is_closed() {
            return;
        }
        let started = Instant::now();
        let Ok(Ok(connection)) = tokio::time::timeout(times.response, connector.connection()).await else {
            continue;
        };
        let requests = Requests { connection: &connection, wait: times.response };
        let response = requests.cluster().await;
        let is_answered = !matches!(response, Err(Fault::TimedOut(_) | Fault::Broken(_)));
        unanswered = if is_answered { 0 } else { unanswered + 1 };
        if is_answered && until_clock == 0 {
            until_clock = CLOCK_EVERY;
            let time = requests.time().await;
            clock.compare(time.ok().flatten(), Timestamp::now());
        }
        until_clock = until_clock.saturating_sub(1);
        if unanswered >= UNANSWERED_MAX {
            // Each watch discards its own connection.
            lost.send_replace(connection.serial);
            unanswered = 0;
        } else if !is_answered {
            // A request that failed early is followed by an extra pause of up to half a second.
            sleep(Duration::from_millis(500).saturating_sub(started.elapsed())).await;
        }
    }
}

/// Whether this machine's clock differs from the API server's.
#[derive(Debug, Default)]
struct Clock {
    is_off: bool,
}

impl Clock {
    /// Compares the clocks, and logs when they start or stop differing. `server`: the time of the API server, if known.
    fn compare(&mut self, server: Option<Timestamp>, now: Timestamp) {
        let Some(server) = server else { return };
        let offset = now.duration_since(server);
        let is_off = offset.abs() > CLOCK_OFFSET_MAX;
        if is_off == std::mem::replace(&mut self.is_off, is_off) {
            return;
        }
        let ahead_seconds = offset.as_secs();
        if is_off {
            tracing::warn!(
                ahead_seconds,
                "the clock of this machine differs from that of the API server: certificates and tokens may be refused, and \
                 times in events and statuses are wrong"
            );
        } else {
            tracing::info!(
                ahead_seconds,
                "the clock of this machine agrees with that of the API server again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_by_over_ten_seconds_are_detected() {
        let mut clock = Clock::default();
        let now = Timestamp::UNIX_EPOCH;
        let mut is_off = |seconds: i64| {
            clock.compare(Some(now + SignedDuration::from_secs(seconds)), now);
            clock.is_off
        };
        assert_eq!([0, 10, 11, -11, 60, 3].map(&mut is_off), [false, false, true, true, true, false]);
        assert_eq!([-62, 9].map(is_off), [true, false]);
        clock.compare(None, now);
        assert!(!clock.is_off, "the time is unknown");
    }
}
