//! What a worker does when it has no work.
//!
//! `poll` spins. `adaptive` has steps: first some turns of spinning (a burst may be about to arrive), then some of
//! yielding the core to other threads, then sleeps that double up to about a millisecond. The first turn with work
//! returns to the first step, so a loaded worker never sleeps.
//!
//! Invariant: a sleep is bounded by [`SLEEP_MAX`], so a worker always checks for snapshots and for its end. The
//! kernel's timer slack adds about 60 µs to each.

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
        Self { idle, empty_turns: 0, sleep: SLEEP_FIRST }
    }

    /// Returns to the first step, after a turn with work.
    #[inline]
    pub fn reset(&mut self) {
        self.empty_turns = 0;
        self.sleep = SLEEP_FIRST;
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
                self.sleep = (self.sleep * 2).min(SLEEP_MAX);
            }
        }
    }

    fn step(&self) -> Step {
        match (self.idle, self.empty_turns) {
            (Idle::Poll, _) | (Idle::Adaptive, ..=SPINS) => Step::Spin,
            (Idle::Adaptive, turns) if turns <= SPINS + YIELDS => Step::Yield,
            (Idle::Adaptive, _) => Step::Sleep(self.sleep),
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
    fn poll_only_spins() {
        let (mailbox, rings) = (Mailbox::<()>::new(), &Rings::between(1)[0]);
        let mut backoff = Backoff::new(Idle::Poll);
        for _ in 0..10 * (SPINS + YIELDS) {
            backoff.pause(&mailbox, rings);
        }
        assert_eq!(backoff.step(), Step::Spin);
    }
}
