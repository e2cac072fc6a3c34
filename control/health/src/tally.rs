//! Thresholds and damping: how many results in a row change the state of a target.
//!
//! Pure, and counted in checks, not in time. A target whose state changed more than [`CHANGES_MAX`] times within
//! [`WINDOW`] checks is flapping, and its damping level rises by one. At level n the healthy threshold is multiplied by
//! 2^n, at most 8, and the unhealthy one by 2 at every level, so that a flapping target that dies is removed after at
//! most twice the configured time. Each [`WINDOW`] checks without a change lower the level by one.
//!
//! Invariant: a state changes only after a whole threshold of consecutive results against it.

use super::Rules;

/// How many times within [`WINDOW`] checks a target's state may change without damping.
pub const CHANGES_MAX: usize = 4;
/// The number of checks over which changes are counted, and after which the level falls by one.
pub const WINDOW: u32 = 60;
/// The highest level of damping.
pub const DAMPING_MAX: u8 = 3;

/// The state of a target under its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    passes: bool,
    damping: u8,
    /// The number of valid entries in `changed_at`.
    changes: u8,
    /// The number of consecutive results against the current state.
    against: u32,
    /// The number of results so far; it wraps.
    results: u32,
    /// The numbers of the results at which the last changes happened, oldest first.
    changed_at: [u32; CHANGES_MAX],
    /// The number of the result at which the state or the level last changed.
    stable_since: u32,
}

impl Tally {
    /// A target in this state, without results against it.
    #[must_use]
    pub fn new(passes: bool) -> Self {
        Self {
            passes,
            damping: 0,
            changes: 0,
            against: 0,
            results: 0,
            changed_at: [0; CHANGES_MAX],
            stable_since: 0,
        }
    }

    /// Whether the target passes.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.passes
    }

    /// The level of damping.
    #[must_use]
    pub fn damping(&self) -> u8 {
        self.damping
    }

    /// Records a result. Returns whether it changed the state or the level of damping.
    pub fn record(&mut self, success: bool, rules: &Rules) -> bool {
        self.results = self.results.wrapping_add(1);
        if !rules.damping {
            self.damping = 0;
        }
        if success == self.passes {
            self.against = 0;
            return self.lower_damping();
        }
        self.against += 1;
        if self.against < self.threshold(rules) {
            return self.lower_damping();
        }
        self.passes = success;
        self.against = 0;
        self.stable_since = self.results;
        if rules.damping {
            self.record_change();
        }
        true
    }

    /// The number of consecutive results that change the current state.
    fn threshold(&self, rules: &Rules) -> u32 {
        match (self.passes, self.damping) {
            (true, 0) => rules.unhealthy_threshold,
            (true, _) => rules.unhealthy_threshold.saturating_mul(2),
            (false, level) => rules.healthy_threshold.saturating_mul(1 << level),
        }
    }

    fn record_change(&mut self) {
        let changes = usize::from(self.changes);
        if changes < CHANGES_MAX {
            self.changed_at[changes] = self.results;
            self.changes += 1;
        } else if self.results.wrapping_sub(self.changed_at[0]) < WINDOW {
            // The higher level starts a new window.
            self.changes = 0;
            self.damping = (self.damping + 1).min(DAMPING_MAX);
        } else {
            self.changed_at.rotate_left(1);
            self.changed_at[CHANGES_MAX - 1] = self.results;
        }
    }

    fn lower_damping(&mut self) -> bool {
        if self.damping == 0 || self.results.wrapping_sub(self.stable_since) < WINDOW {
            return false;
        }
        self.damping -= 1;
        self.stable_since = self.results;
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(healthy_threshold: u32, unhealthy_threshold: u32) -> Rules {
        Rules { healthy_threshold, unhealthy_threshold, ..Rules::default() }
    }

    fn states(start: bool, rules: Rules, results: &str) -> String {
        let mut tally = Tally::new(start);
        let mut show = |result| {
            tally.record(result == '+', &rules);
            if tally.passes() { '+' } else { '-' }
        };
        results.chars().map(&mut show).collect()
    }

    #[test]
    fn only_consecutive_results_change_the_state() {
        assert_eq!(states(true, rules(2, 3), "--+--+---"), "++++++++-");
        assert_eq!(states(false, rules(2, 3), "+-+-++"), "-----+");
    }

    #[test]
    fn a_threshold_of_one_changes_the_state_at_once() {
        assert_eq!(states(true, rules(1, 1), "-+-+"), "-+-+");
    }

    #[test]
    fn a_flapping_target_needs_more_successes_until_a_window_without_change() {
        let rules = rules(1, 1);
        assert_eq!(states(true, rules, "-+-+-+-+-"), "-+-+-----", "damping starts with the fifth change");
        let mut tally = Tally::new(true);
        for success in [false, true, false, true, false] {
            tally.record(success, &rules);
        }
        assert_eq!(tally.damping(), 1);
        tally.record(true, &rules);
        tally.record(true, &rules);
        let calm = (1..=u32::MAX).find(|_| tally.record(true, &rules));
        assert_eq!((calm, tally.damping()), (Some(WINDOW), 0));
    }

    #[test]
    fn without_damping_a_flapping_target_keeps_its_thresholds() {
        let rules = Rules { damping: false, ..rules(1, 1) };
        assert_eq!(states(true, rules, &"-+".repeat(50)), "-+".repeat(50));
    }

    /// The documented rule, applied to the whole history.
    fn oracle(rules: &Rules, results: &[bool]) -> (bool, u8) {
        let (mut passes, mut level, mut in_a_row) = (true, 0_u32, 0);
        let mut changes: Vec<usize> = Vec::new();
        let mut stable_since = 0;
        for (at, result) in results.iter().enumerate().map(|(at, result)| (at + 1, *result)) {
            in_a_row = if result == passes { 0 } else { in_a_row + 1 };
            let healthy = rules.healthy_threshold * 2_u32.pow(level);
            let unhealthy = rules.unhealthy_threshold * if level > 0 { 2 } else { 1 };
            if in_a_row >= if passes { unhealthy } else { healthy } {
                (passes, in_a_row, stable_since) = (result, 0, at);
                changes.push(at);
                if changes.iter().filter(|change| at - **change < WINDOW as usize).count() > CHANGES_MAX {
                    level = (level + 1).min(DAMPING_MAX.into());
                    changes.clear();
                }
            } else if level > 0 && at - stable_since >= WINDOW as usize {
                level -= 1;
                stable_since = at;
            }
        }
        (passes, level as u8)
    }

    proptest! {
        #[test]
        fn a_tally_follows_the_rule_over_the_whole_history(
            healthy in 1_u32..4,
            unhealthy in 1_u32..4,
            // Runs of equal results, so that thresholds are reached.
            runs in prop::collection::vec((any::<bool>(), 1_usize..40), 0..60),
        ) {
            let rules = rules(healthy, unhealthy);
            let results: Vec<bool> = runs.iter().flat_map(|(result, n)| vec![*result; *n]).collect();
            let mut tally = Tally::new(true);
            for (at, result) in results.iter().enumerate() {
                let before = (tally.passes(), tally.damping());
                let changed = tally.record(*result, &rules);
                let after = (tally.passes(), tally.damping());
                prop_assert_eq!(changed, before != after);
                prop_assert_eq!(after, oracle(&rules, &results[..=at]), "after {:?}", &results[..=at]);
            }
        }

        #[test]
        fn a_dead_target_fails_within_twice_the_threshold_however_it_flapped(
            unhealthy in 1_u32..20,
            results in prop::collection::vec(any::<bool>(), 0..500),
        ) {
            let rules = rules(1, unhealthy);
            let mut tally = Tally::new(true);
            for result in results {
                tally.record(result, &rules);
            }
            for _ in 0..2 * unhealthy {
                tally.record(false, &rules);
            }
            prop_assert!(!tally.passes());
        }
    }
}
