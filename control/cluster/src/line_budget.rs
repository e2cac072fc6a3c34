//! Limits how many lines each namespace may log.
//!
//! Users with access to one namespace determine how many faults its objects have, how often they change, and how many
//! writes to them are refused: a failed write is retried every minute, and an admission webhook may refuse the writes of
//! thousands of Services. Each namespace therefore has a budget of lines: a burst, then a steady rate. Suppressed lines
//! are counted, and reported by [`LineBudgets::summaries`] or by the next line of the namespace.
//!
//! Invariant: pure; the clock is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::token_bucket::TokenBucket;

/// The number of lines that one namespace may log in a burst.
pub const BURST: u32 = 50;
/// The interval at which a namespace gains another line.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// The minimum time between two summaries of a namespace by [`LineBudgets::summaries`].
pub const SUMMARY: Duration = Duration::from_secs(60);

/// The budgets of all namespaces.
#[derive(Debug, Default)]
pub struct LineBudgets {
    /// The namespaces that have logged recently.
    namespaces: BTreeMap<String, Budget>,
}

#[derive(Debug)]
struct Budget {
    lines: TokenBucket,
    left_out: u64,
    /// When the last summary was returned.
    summarized: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { lines: TokenBucket::new(BURST, INTERVAL), left_out: 0, summarized: None }
    }
}

impl Budget {
    /// When the next summary is due. `None` before the first, which is due immediately, or if no lines were left out.
    fn due(&self) -> Option<Instant> {
        self.summarized.filter(|_| self.left_out > 0).map(|summarized| summarized + SUMMARY)
    }

    /// Whether the budget is as good as new, so that it need not be stored.
    fn is_full(&self, now: Instant) -> bool {
        self.left_out == 0
            && self.lines.is_full(now)
            && self.summarized.is_none_or(|summarized| summarized + SUMMARY <= now)
    }
}

impl LineBudgets {
    /// Takes a line from a namespace's budget. If the budget is empty, counts a line left out and returns false.
    /// Lines without a namespace (empty) concern the operator and are always allowed.
    pub fn take(&mut self, namespace: &str, now: Instant) -> bool {
        if namespace.is_empty() {
            return true;
        }
        let budget = self.namespaces.entry(namespace.to_owned()).or_default();
        let has_line = budget.lines.take(now).is_ok();
        budget.left_out += u64::from(!has_line);
        has_line
    }

    /// Like [`Self::take`], for lines that report how many earlier ones of their namespace were left out: this number,
    /// if there is a line left.
    pub(super) fn take_reporting(&mut self, namespace: &str, now: Instant) -> Option<u64> {
        self.remove_idle(now);
        let left_out = |budget: &mut Budget| std::mem::take(&mut budget.left_out);
        self.take(namespace, now).then(|| self.namespaces.get_mut(namespace).map_or(0, left_out))
    }

    /// Returns and resets the number of lines that were left out, for each namespace whose summary is due.
    pub fn summaries(&mut self, now: Instant) -> Vec<(String, u64)> {
        let mut summaries = Vec::new();
        for (namespace, budget) in &mut self.namespaces {
            // The first summary is due immediately.
            let is_due = budget.summarized.is_none_or(|summarized| summarized + SUMMARY <= now);
            if budget.left_out > 0 && is_due {
                summaries.push((namespace.clone(), std::mem::take(&mut budget.left_out)));
                budget.summarized = Some(now);
            }
        }
        self.remove_idle(now);
        summaries
    }

    /// When [`summaries`](Self::summaries) next has a result, apart from first summaries, which are due immediately.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.namespaces.values().filter_map(Budget::due).min()
    }

    /// Removes namespaces whose budget is full again.
    pub fn remove_idle(&mut self, now: Instant) {
        self.namespaces.retain(|_, budget| !budget.is_full(now));
    }

    /// The number of stored namespaces.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        self.namespaces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_thousands_of_failures_silences_no_other() {
        let (start, mut lines) = (Instant::now(), LineBudgets::default());
        let logged = |lines: &mut LineBudgets, namespace, count: usize, now| {
            (0..count).filter(|_| lines.take_reporting(namespace, now).is_some()).count()
        };
        assert_eq!(logged(&mut lines, "hostile", 2_500, start), 50);
        assert_eq!(logged(&mut lines, "shop", 1, start), 1);
        assert_eq!(logged(&mut lines, "", 1_000, start), 1_000);
        let later = start + Duration::from_secs(60);
        assert_eq!(lines.take_reporting("hostile", later), Some(2_450));
        assert_eq!(logged(&mut lines, "hostile", 2_500, later), 5);
        assert!(lines.namespaces() < 2, "the other one is removed");
    }
}
