//! The rule of thresholds: how many results in a row turn a target over.
//!
//! Pure. One per target; the runner records each result and publishes when one turns.

use super::Probe;

/// The state of a target under its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    passes: bool,
    /// Results in a row against the present state.
    against: u32,
}

impl Tally {
    /// A target in this state, with no result against it.
    #[must_use]
    pub fn new(passes: bool) -> Self {
        Self { passes, against: 0 }
    }

    /// Whether the target passes.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.passes
    }

    /// Records a result; true where it turned the state.
    pub fn record(&mut self, success: bool, probe: &Probe) -> bool {
        if success == self.passes {
            self.against = 0;
            return false;
        }
        self.against += 1;
        let threshold = if self.passes { probe.unhealthy_threshold } else { probe.healthy_threshold };
        if self.against < threshold {
            return false;
        }
        *self = Self::new(success);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn states(start: bool, healthy: u32, unhealthy: u32, results: &str) -> String {
        let second = Duration::from_secs(1);
        let probe = Probe {
            interval: second,
            timeout: second,
            healthy_threshold: healthy,
            unhealthy_threshold: unhealthy,
        };
        let mut tally = Tally::new(start);
        let mut show = |result| {
            tally.record(result == '+', &probe);
            if tally.passes() { '+' } else { '-' }
        };
        results.chars().map(&mut show).collect()
    }

    #[test]
    fn only_results_in_a_row_turn_a_target() {
        assert_eq!(states(true, 2, 3, "--+--+---"), "++++++++-");
        assert_eq!(states(false, 2, 3, "+-+-++"), "-----+");
    }

    #[test]
    fn a_threshold_of_one_turns_at_once() {
        assert_eq!(states(true, 1, 1, "-+-+"), "-+-+");
    }
}
