//! What a worker does when it has no work.
//!
//! `poll` spins. `adaptive` has steps: first some turns of spinning (a burst may be about to arrive), then some of
//! yielding the core to other threads, then sleeps that double up to about a millisecond. The first turn with work
//! returns to the first step, so a loaded worker never sleeps.
//!
//! A NIC writes to its receive ring while the worker sleeps, and drops what does not fit. [`sleep_for_ring`] gives the
//! longest sleep in which at most half of the ring fills. No receive interrupts are used.
//!
//! Invariant: a sleep is bounded by [`SLEEP_MAX`], so a worker always checks for snapshots and for its end. The
//! kernel's timer slack adds about 60 µs to each; a worker with shorter sleeps turns it off ([`precise_sleeps`]).

use std::time::Duration;

use super::mailbox::Mailbox;
use super::rings::Rings;
use crate::topology::Idle;

/// The longest sleep requested.
pub const SLEEP_MAX: Duration = Duration::from_millis(1);
const SLEEP_FIRST: Duration = Duration::from_micros(20);
/// Empty turns spent spinning: at about 100 ns a turn, some 20 µs.
const SPINS: u32 = 200;
/// Empty turns spent yielding after that.
const YIELDS: u32 = 50;

/// The packets per second that one worker can work off at most: no ring must be larger than for this rate, whatever
/// the speed of the link.
const RATE_MAX: u64 = 10_000_000;
/// Bits that a packet of the shortest length takes on a link, with preamble and gap (IEEE 802.3).
const SHORTEST_PACKET_BITS: u64 = 84 * 8;

/// The longest sleep in which a NIC with this link fills at most half of a ring. `mbps` is the speed of the link in
/// megabits per second, if it is known.
#[must_use]
pub fn sleep_for_ring(descriptors: u16, mbps: Option<u32>) -> Duration {
    let rate = mbps.map_or(RATE_MAX, |mbps| u64::from(mbps) * 1_000_000 / SHORTEST_PACKET_BITS);
    let nanos = u64::from(descriptors) / 2 * 1_000_000_000 / rate.clamp(1, RATE_MAX);
    Duration::from_nanos(nanos).min(SLEEP_MAX)
}

/// Lets the calling thread wake from short sleeps in time.
pub fn precise_sleeps() {
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!(%error, "cannot turn the timer slack of a worker off: its sleeps are longer");
    }
}

/// The current step. Each turn without work moves one step down.
#[derive(Debug)]
pub struct Backoff {
    idle: Idle,
    empty_turns: u32,
    sleep: Duration,
}

impl Backoff {
    /// Starts at the first step.
    #[must_use]
    pub fn new(idle: Idle) -> Self {
        let mut backoff = Self { idle, empty_turns: 0, sleep: SLEEP_FIRST };
        backoff.reset();
        backoff
    }

    fn sleep_max(&self) -> Duration {
        match self.idle {
            Idle::AdaptiveUpTo(most) => most.min(SLEEP_MAX),
            Idle::Poll | Idle::Adaptive => SLEEP_MAX,
        }
    }

    /// Returns to the first step, after a turn with work.
    #[inline]
    pub fn reset(&mut self) {
        self.empty_turns = 0;
        self.sleep = SLEEP_FIRST.min(self.sleep_max());
    }

    /// Pauses and moves one step down, after a turn without work.
    #[inline]
    pub fn pause<F>(&mut self, mailbox: &Mailbox<F>, rings: &Rings<F>) {
        self.empty_turns = self.empty_turns.saturating_add(1);
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
        match (self.idle, self.empty_turns) {
            (Idle::Poll, _) | (_, ..=SPINS) => Step::Spin,
            (_, turns) if turns <= SPINS + YIELDS => Step::Yield,
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
        backoff.empty_turns += 1;
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
        // 10 Gbit/s are 14.9 million packets a second, more than a worker can work off; 1 Gbit/s 1.5 million.
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
