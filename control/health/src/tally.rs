//! Thresholds and damping: how many results in a row change the state of a target.
//!
//! Pure, and counted in checks, not in time. A target whose state changed more than [`TURNS_MAX`] times within
//! [`WINDOW`] checks flaps, and its damping level is raised by one. At level n the healthy threshold is multiplied by
//! 2^n, at most 8; the unhealthy one by 2 at every level, so that a flapping target that dies is removed after at
//! most twice the configured time. Each [`WINDOW`] checks without a change lower the level by one.
//!
//! Invariant: a state changes only after a whole threshold of results in a row against it.

use super::Rules;

/// The number of turns within [`WINDOW`] that a target may make without being damped.
pub const TURNS_MAX: usize = 4;
/// The number of checks over which turns are counted, and after which the level falls by one.
pub const WINDOW: u32 = 60;
/// The highest level of damping.
pub const DAMPING_MAX: u8 = 3;

/// The state of a target under its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    passes: bool,
    damping: u8,
    /// The number of valid entries in `turned_at`.
    turns: u8,
    /// The number of consecutive results against the current state.
    against: u32,
    /// The number of results so far; it wraps.
    results: u32,
    /// The results at which the last turns happened, oldest first.
    turned_at: [u32; TURNS_MAX],
    /// The result at which the state or the level last changed.
    calm_since: u32,
}

impl Tally {
    /// A target in this state, without results against it.
    #[must_use]
    pub fn new(passes: bool) -> Self {
        Self {
            passes,
            damping: 0,
            turns: 0,
            against: 0,
            results: 0,
            turned_at: [0; TURNS_MAX],
            calm_since: 0,
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
            return self.calm_down();
        }
        self.against += 1;
        if self.against < self.threshold(rules) {
            return self.calm_down();
        }
        self.passes = success;
        self.against = 0;
        self.calm_since = self.results;
        if rules.damping {
            self.note_turn();
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

    fn note_turn(&mut self) {
        let turns = usize::from(self.turns);
        if turns < TURNS_MAX {
            self.turned_at[turns] = self.results;
            self.turns += 1;
        } else if self.results.wrapping_sub(self.turned_at[0]) < WINDOW {
            // The higher level starts a new window.
            self.turns = 0;
            self.damping = (self.damping + 1).min(DAMPING_MAX);
        } else {
            self.turned_at.rotate_left(1);
            self.turned_at[TURNS_MAX - 1] = self.results;
        }
    }

    fn calm_down(&mut self) -> bool {
        if self.damping == 0 || self.results.wrapping_sub(self.calm_since) < WINDOW {
            return false;
        }
        self.damping -= 1;
        self.calm_since = self.results;
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
    fn only_results_in_a_row_turn_a_target() {
        assert_eq!(states(true, rules(2, 3), "--+--+---"), "++++++++-");
        assert_eq!(states(false, rules(2, 3), "+-+-++"), "-----+");
    }

    #[test]
    fn a_threshold_of_one_turns_at_once() {
        assert_eq!(states(true, rules(1, 1), "-+-+"), "-+-+");
    }

    #[test]
    fn a_target_that_flaps_needs_more_successes_and_is_calm_again_after_a_window() {
        let rules = rules(1, 1);
        assert_eq!(states(true, rules, "-+-+-+-+-"), "-+-+-----", "the fifth turn damps");
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
        let mut turns: Vec<usize> = Vec::new();
        let mut calm_since = 0;
        for (at, result) in results.iter().enumerate().map(|(at, result)| (at + 1, *result)) {
            in_a_row = if result == passes { 0 } else { in_a_row + 1 };
            let healthy = rules.healthy_threshold * 2_u32.pow(level);
            let unhealthy = rules.unhealthy_threshold * if level > 0 { 2 } else { 1 };
            if in_a_row >= if passes { unhealthy } else { healthy } {
                (passes, in_a_row, calm_since) = (result, 0, at);
                turns.push(at);
                if turns.iter().filter(|turn| at - **turn < WINDOW as usize).count() > TURNS_MAX {
                    level = (level + 1).min(DAMPING_MAX.into());
                    turns.clear();
                }
            } else if level > 0 && at - calm_since >= WINDOW as usize {
                level -= 1;
                calm_since = at;
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
        fn a_dead_target_is_out_within_twice_the_threshold_however_it_flapped(
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
