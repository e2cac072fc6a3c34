//! Decides which faults are logged, and how many lines each namespace may have.
//!
//! A fault is logged once for as long as it exists. Users who can change objects in a namespace control how many faults
//! these objects have and how often the faults change. So each namespace has a budget of lines: a burst, and then a
//! rate. Further lines are suppressed and counted, and one line per minute reports their number. Status, events and
//! `tidegate services` still show all faults.
//!
//! Faults that belong to no namespace (configuration, pools, the gateway) are the operator's and are never suppressed.
//!
//! Invariant: pure: the clock is an argument.

use std::collections::BTreeSet;

use tidegate_cluster::line_budget::LineBudgets;
use tidegate_model::diagnostic::Diagnostic;
use tokio::time::Instant;

/// A fault with its namespace, which is empty if the fault concerns the operator.
pub(super) type Fault = (String, Diagnostic);

/// Decides which faults are logged.
#[derive(Debug, Default)]
pub(super) struct FaultLog {
    /// The current faults.
    faults: BTreeSet<Fault>,
    lines: LineBudgets,
}

/// The lines to log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LogLines {
    /// Faults, one per line.
    pub(super) faults: Vec<Diagnostic>,
    /// Namespaces whose faults were suppressed, each with the number since the last report.
    pub(super) suppressed: Vec<(String, u64)>,
    /// The number of lines suppressed this time.
    pub(super) suppressed_now: u64,
}

impl FaultLog {
    /// Records all current faults. Returns the new ones, to be logged. A fault that ended and returned is new.
    pub(super) fn update(&mut self, faults: BTreeSet<Fault>, now: Instant) -> LogLines {
        let mut update = LogLines::default();
        for (namespace, diagnostic) in faults.difference(&self.faults) {
            if self.lines.take(namespace, now) {
                update.faults.push(diagnostic.clone());
            } else {
                update.suppressed_now += 1;
            }
        }
        self.faults = faults;
        update.suppressed = self.summaries(now);
        update
    }

    /// The number of suppressed lines, for each namespace whose report is due.
    pub(super) fn summaries(&mut self, now: Instant) -> Vec<(String, u64)> {
        self.lines.summaries(now)
    }

    /// When [`summaries`](Self::summaries) has the next result.
    pub(super) fn due(&self) -> Option<Instant> {
        self.lines.due()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_cluster::line_budget::{BURST, INTERVAL, SUMMARY};

    use super::*;

    fn faults(namespace: &str, round: u64, count: u64) -> impl Iterator<Item = Fault> {
        let what = move |n| Diagnostic::warning(format!("fault {n} of round {round}"));
        let namespace = namespace.to_owned();
        (0..count).map(move |n| (namespace.clone(), what(n)))
    }

    #[test]
    fn a_noisy_namespace_logs_a_burst_a_rate_and_how_many_are_suppressed() {
        let (mut log, start) = (FaultLog::default(), Instant::now());
        let (mut lines, mut said, mut suppressed, mut operator, mut quiet) = (0, 0, 0, 0, 0);
        let rounds = 3_600;
        for round in 0..rounds {
            let now = start + Duration::from_secs(round);
            let mut all: BTreeSet<Fault> = faults("noisy", round, 100).collect();
            all.extend(faults("", round, 3));
            // One fault that stays.
            all.extend(faults("shop", 0, 1));
            let update = log.update(all, now);
            let of = |name: &str| update.suppressed.iter().filter(|(namespace, _)| namespace == name).count();
            assert_eq!(of("shop") + of(""), 0);
            let text: Vec<String> = update.faults.iter().map(ToString::to_string).collect();
            operator +=
                text.iter().filter(|text| text.ends_with(&format!("of round {round}"))).count().min(3);
            quiet += usize::from(
                round == 0 && text.iter().filter(|text| text.contains("fault 0 of")).count() == 3,
            );
            lines += update.faults.len() - 3;
            said += update.suppressed.len();
            suppressed += update.suppressed.iter().map(|(_, count)| count).sum::<u64>();
        }
        let seconds = usize::try_from(rounds).expect("a small number");
        assert_eq!(
            (operator, quiet),
            (3 * seconds, 1),
            "no fault of the operator or of another namespace is suppressed"
        );
        assert!(lines <= 50 + seconds / 10 + 2, "{lines} lines");
        assert!(lines >= 50 + seconds / 10 - 2, "{lines} lines");
        assert!((seconds / 60 - 1..=seconds / 60 + 1).contains(&said), "{said} summaries");
        // The lines that have not been reported are due.
        let due = log.due();
        let rest = log.summaries(start + Duration::from_secs(rounds) + SUMMARY);
        suppressed += rest.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!(due.is_some(), !rest.is_empty());
        let noisy = lines - 1;
        assert_eq!(suppressed, rounds * 100 - u64::try_from(noisy).expect("a small number"));
    }

    #[test]
    fn a_lasting_fault_is_logged_once_and_again_after_it_was_gone() {
        let (mut log, now) = (FaultLog::default(), Instant::now());
        let one: BTreeSet<Fault> = faults("shop", 0, 1).collect();
        assert_eq!(log.update(one.clone(), now).faults.len(), 1);
        assert_eq!(log.update(one.clone(), now), LogLines::default());
        assert_eq!(log.update(BTreeSet::new(), now), LogLines::default());
        assert_eq!(log.update(one, now).faults.len(), 1);
    }

    #[test]
    fn quiet_namespaces_are_forgotten() {
        let (mut log, now) = (FaultLog::default(), Instant::now());
        for n in 0..100 {
            log.update(faults(&format!("n{n}"), 0, 200).collect(), now);
        }
        assert_eq!(log.lines.namespaces(), 100);
        let later = now + INTERVAL * BURST + SUMMARY;
        log.update(BTreeSet::new(), later);
        assert_eq!((log.lines.namespaces(), log.due()), (0, None));
    }
}
