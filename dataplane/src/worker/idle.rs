//! How a worker waits when it has no work.
//!
//! `poll` spins. `adaptive` first spins for some iterations (a burst may be about to arrive), then yields the core to
//! other threads, then sleeps, doubling the sleep up to about a millisecond. An iteration with work starts over with
//! spinning, so a loaded worker never sleeps.
//!
//! A NIC fills its receive ring while the worker sleeps, and drops what doesn't fit. [`sleep_for_ring`] returns the
//! longest sleep that fills at most half of the ring. Receive interrupts are not used.
//!
//! Invariant: a sleep lasts at most [`SLEEP_MAX`], so a worker always notices a new snapshot or a stop request. The
//! kernel's timer slack adds about 60 µs to each sleep; a worker with shorter sleeps disables it ([`precise_sleeps`]).

use std::time::Duration;

use super::mailbox::Mailbox;
use super::rings::Rings;
use crate::topology::Idle;

/// The longest sleep requested.
pub const SLEEP_MAX: Duration = Duration::from_millis(1);
const SLEEP_FIRST: Duration = Duration::from_micros(20);
/// Empty iterations spent spinning: some 20 µs at about 100 ns each.
const SPINS: u32 = 200;
/// Empty iterations spent yielding after that.
const YIELDS: u32 = 50;

/// The highest packet rate that one worker can process. A faster link doesn't shorten the sleeps further.
const RATE_MAX: u64 = 10_000_000;
/// Bits on the wire of the shortest Ethernet frame, with preamble and gap (IEEE 802.3).
const SHORTEST_PACKET_BITS: u64 = 84 * 8;

/// The longest sleep in which a NIC fills at most half of its ring. `mbps` is the link speed in megabits per second, if
/// known.
#[must_use]
pub fn sleep_for_ring(descriptors: u16, mbps: Option<u32>) -> Duration {
    let rate = mbps.map_or(RATE_MAX, |mbps| u64::from(mbps) * 1_000_000 / SHORTEST_PACKET_BITS);
    let nanos = u64::from(descriptors) / 2 * 1_000_000_000 / rate.clamp(1, RATE_MAX);
    Duration::from_nanos(nanos).min(SLEEP_MAX)
}

/// Disables the timer slack of the calling thread.
pub fn precise_sleeps() {
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!(%error, "cannot disable the timer slack of a worker: an idle worker sleeps longer than it \
                                should");
    }
}

/// Selects the current step. Each empty iteration moves to the next one.
#[derive(Debug)]
pub struct Backoff {
    idle: Idle,
    empty_iterations: u32,
    sleep: Duration,
}

impl Backoff {
    /// Starts with spinning.
    #[must_use]
    pub fn new(idle: Idle) -> Self {
        let mut backoff = Self { idle, empty_iterations: 0, sleep: SLEEP_FIRST };
        backoff.reset();
        backoff
    }

    fn sleep_max(&self) -> Duration {
        match self.idle {
            Idle::AdaptiveUpTo(most) => most.min(SLEEP_MAX),
            Idle::Poll | Idle::Adaptive => SLEEP_MAX,
        }
    }

    /// Starts over after an iteration with work.
    #[inline]
    pub fn reset(&mut self) {
        self.empty_iterations = 0;
        self.sleep = SLEEP_FIRST.min(self.sleep_max());
    }

    /// Pauses after an empty iteration, and moves to the next step.
    #[inline]
    pub fn pause<F>(&mut self, mailbox: &Mailbox<F>, rings: &Rings<F>) {
        self.empty_iterations = self.empty_iterations.saturating_add(1);
        match self.step() {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => std::thread::yield_now(),
            Step::Sleep(time) => {
                mailbox.sleep(time, || rings.is_empty());
                self.sleep = (self.sleep * 2).min(self.sleep_max());
            }
        }
    }

    fn step(&self) -> Step {
        match (self.idle, self.empty_iterations) {
            (Idle::Poll, _) | (_, ..=SPINS) => Step::Spin,
            (_, iterations) if iterations <= SPINS + YIELDS => Step::Yield,
            _ => Step::Sleep(self.sleep),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Spin,
    Yield,
    Sleep(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_goes_from_spinning_to_longer_sleeps_and_back_at_once() {
        let (mailbox, rings) = (Mailbox::<()>::new(), &Rings::between(1)[0]);
        let mut backoff = Backoff::new(Idle::Adaptive);
        assert_eq!(backoff.step(), Step::Spin);
        for _ in 0..SPINS + 1 {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Yield);
        for _ in 0..YIELDS - 1 {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Yield);
        backoff.empty_iterations += 1;
        assert_eq!(backoff.step(), Step::Sleep(SLEEP_FIRST));
        for _ in 0..8 {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Sleep(SLEEP_MAX));
        backoff.reset();
        assert_eq!(backoff.step(), Step::Spin);
    }

    #[test]
    fn a_sleep_fills_at_most_half_of_the_ring_of_a_nic() {
        // 10 Gbit/s is 14.9 million packets a second, more than a worker can process; 1 Gbit/s is 1.5 million.
        assert_eq!(sleep_for_ring(1024, Some(10_000)), Duration::from_nanos(51_200));
        assert_eq!(sleep_for_ring(1024, None), sleep_for_ring(1024, Some(100_000)));
        let slow = sleep_for_ring(1024, Some(1_000));
        assert!(slow > Duration::from_micros(340) && slow < Duration::from_micros(350), "{slow:?}");
        assert_eq!(sleep_for_ring(1024, Some(10)), SLEEP_MAX);

        let (mailbox, rings) = (Mailbox::<()>::new(), &Rings::between(1)[0]);
        let most = Duration::from_micros(50);
        let mut backoff = Backoff::new(Idle::AdaptiveUpTo(most));
        for _ in 0..SPINS + YIELDS + 8 {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Sleep(most));
    }

    #[test]
    fn poll_only_spins() {
        let (mailbox, rings) = (Mailbox::<()>::new(), &Rings::between(1)[0]);
        let mut backoff = Backoff::new(Idle::Poll);
        for _ in 0..10 * (SPINS + YIELDS) {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Spin);
    }
}
