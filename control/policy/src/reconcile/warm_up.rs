//! The memory of backends that warm up (`slowStart`): when each started to take new flows.
//!
//! State in, state out. A backend warms up if it takes new flows now and did not at the last call: it is a new
//! endpoint, or passes its checks again. Without a previous call, every backend counts as warm: after a restart of the
//! gateway, and for the first backends of a Service.
//!
//! Invariant: nothing here reads a clock, and a history without a warming backend has no deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_spec::{WARM_UP_STEPS, Warming};

/// The backends of one service port that take new flows, and the start times of those that warm up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WarmUps {
    active: BTreeSet<SocketAddr>,
    since: BTreeMap<SocketAddr, Duration>,
    slow_start: Duration,
}

impl WarmUps {
    /// The history after a call at `now`, when these backends take new flows.
    pub(super) fn next(
        previous: Option<&Self>,
        active: BTreeSet<SocketAddr>,
        slow_start: Duration,
        now: Duration,
    ) -> Self {
        let Some(previous) = previous else { return Self { active, since: BTreeMap::new(), slow_start } };
        let since = |backend: &SocketAddr| match previous.active.contains(backend) {
            true => previous.since.get(backend).copied(),
            false => Some(now),
        };
        let since = active.iter().filter_map(|backend| Some((*backend, since(backend)?)));
        let since = since.filter(|(_, since)| now.saturating_sub(*since) < slow_start).collect();
        Self { active, since, slow_start }
    }

    /// The backends that warm up, with their steps at `now`.
    pub(super) fn warming(&self, now: Duration) -> impl Iterator<Item = Warming> + '_ {
        self.since.iter().map(move |(at, since)| {
            let step = self.step(now.saturating_sub(*since));
            Warming { address: at.ip(), port: at.port(), step }
        })
    }

    /// When the next backend reaches its next step.
    pub(super) fn next_deadline(&self, now: Duration) -> Option<Duration> {
        let next = |since: &Duration| {
            let step = u32::from(self.step(now.saturating_sub(*since))) + 1;
            *since + self.slow_start * step / u32::from(WARM_UP_STEPS)
        };
        self.since.values().map(next).min()
    }

    /// The step after this time: one at first, then as many tenths as have elapsed.
    fn step(&self, elapsed: Duration) -> u8 {
        let passed = elapsed.as_nanos() * u128::from(WARM_UP_STEPS) / self.slow_start.as_nanos().max(1);
        u8::try_from(passed).unwrap_or(WARM_UP_STEPS).clamp(1, WARM_UP_STEPS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW_START: Duration = Duration::from_secs(30);

    fn at(n: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, n].into(), 80)
    }

    fn next(previous: Option<&WarmUps>, active: &[u8], now: u64) -> WarmUps {
        let active = active.iter().copied().map(at).collect();
        WarmUps::next(previous, active, SLOW_START, Duration::from_secs(now))
    }

    fn steps(history: &WarmUps, now: u64) -> Vec<(IpLast, u8)> {
        let all = history.warming(Duration::from_secs(now));
        all.map(|one| (one.address.to_string().chars().last().unwrap_or(' '), one.step)).collect()
    }

    type IpLast = char;

    #[test]
    fn backends_of_the_first_call_are_warm_and_later_ones_grow_in_ten_steps() {
        let first = next(None, &[1, 2], 100);
        assert_eq!((steps(&first, 100), first.next_deadline(Duration::from_secs(100))), (vec![], None));
        let mut history = next(Some(&first), &[1, 2, 3], 200);
        let mut seen = vec![];
        loop {
            let now = seen.len() as u64;
            let Some(&(backend, step)) = steps(&history, 200 + now).first() else { break };
            assert_eq!(backend, '3');
            seen.push(step);
            history = next(Some(&history), &[1, 2, 3], 200 + now + 1);
        }
        let tenths = |second: u8| (second / 3).clamp(1, 9);
        assert_eq!(seen, (0..30).map(tenths).collect::<Vec<_>>());
        assert_eq!(history.next_deadline(Duration::from_secs(230)), None);
    }

    #[test]
    fn the_deadline_is_that_of_the_next_step() {
        let history = next(Some(&next(None, &[1], 0)), &[1, 2], 100);
        let deadline = |now| history.next_deadline(Duration::from_secs(now)).map(|at| at.as_secs());
        // The first step takes two tenths of the time.
        assert_eq!(deadline(100), Some(106));
        assert_eq!(deadline(106), Some(109));
        assert_eq!(deadline(129), Some(130));
    }

    #[test]
    fn a_backend_that_returns_warms_up_again() {
        let first = next(Some(&next(None, &[1], 0)), &[1, 2], 100);
        let without = next(Some(&first), &[1], 110);
        assert_eq!(steps(&without, 110), []);
        let again = next(Some(&without), &[1, 2], 120);
        assert_eq!(steps(&again, 120), [('2', 1)]);
    }
}
