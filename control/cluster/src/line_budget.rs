//! Limits how many lines a namespace may log.
//!
//! Users who may change objects in one namespace decide how many faults these have, how often they change, and how many
//! writes to them are refused. So each namespace has a budget of lines: a burst, and a rate after that. Lines that are
//! left out are counted.
//!
//! Invariant: pure: the clock is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;

/// The number of lines that one namespace may log at once.
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
    lines: Bucket,
    left_out: u64,
    /// When the last summary gave the number of lines left out.
    summarized: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { lines: Bucket::new(BURST, INTERVAL), left_out: 0, summarized: None }
    }
}

impl Budget {
    /// When the next summary of the lines left out is due. The first one is immediate.
    fn due(&self) -> Option<Instant> {
        self.summarized.filter(|_| self.left_out > 0).map(|summarized| summarized + SUMMARY)
    }

    /// Whether nothing has to be remembered about the namespace.
    fn is_full(&self, now: Instant) -> bool {
        self.left_out == 0
            && self.lines.is_full(now)
            && self.summarized.is_none_or(|summarized| summarized + SUMMARY <= now)
    }
}

impl LineBudgets {
    /// Takes a line of a namespace. If there is none, counts a line that is left out and returns false. A line without
    /// a namespace (empty) concerns the operator and is always allowed.
    pub fn take(&mut self, namespace: &str, now: Instant) -> bool {
        if namespace.is_empty() {
            return true;
        }
        let budget = self.namespaces.entry(namespace.to_owned()).or_default();
        let has_line = budget.lines.take(now).is_ok();
        budget.left_out += u64::from(!has_line);
        has_line
    }

    /// Returns and resets the number of lines of a namespace that were left out.
    pub fn take_left_out(&mut self, namespace: &str) -> u64 {
        self.namespaces.get_mut(namespace).map_or(0, |budget| std::mem::take(&mut budget.left_out))
    }

    /// Returns and resets the number of lines left out, for each namespace whose summary is due now.
    pub fn summaries(&mut self, now: Instant) -> Vec<(String, u64)> {
        let mut summaries = Vec::new();
        for (namespace, budget) in &mut self.namespaces {
            // The first summary is due at once.
            let is_due = budget.summarized.is_none_or(|summarized| summarized + SUMMARY <= now);
            if budget.left_out > 0 && is_due {
                summaries.push((namespace.clone(), std::mem::take(&mut budget.left_out)));
                budget.summarized = Some(now);
            }
        }
        self.forget_rested(now);
        summaries
    }

    /// When [`summaries`](Self::summaries) has the next result.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.namespaces.values().filter_map(Budget::due).min()
    }

    /// Removes namespaces whose budget is full again.
    pub fn forget_rested(&mut self, now: Instant) {
        self.namespaces.retain(|_, budget| !budget.is_full(now));
    }

    /// The number of remembered namespaces.
    #[must_use]
    pub fn namespaces(&self) -> usize {
        self.namespaces.len()
    }
}
