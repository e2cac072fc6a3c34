//! Logs the faults found by a round, each once while it exists.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_policy::reconcile::{Finding, Outcome};
use tidegate_source::SourceUpdate;
use tidegate_spec::{Problem, SharedService};
use tokio::time::Instant;

use super::fault_log::FaultLog;
use crate::logging;

/// The faults that have been logged.
#[derive(Default)]
pub(super) struct RoundLog {
    /// The faults that still exist, and the budget of lines of each namespace.
    faults: FaultLog,
    /// The inputs from which the faults were determined.
    findings: Arc<[Finding]>,
    report: Arc<Report>,
    own: Vec<Finding>,
    problems: Vec<Problem>,
}

impl RoundLog {
    /// When there is something to log although nothing has changed.
    pub(super) fn due(&self) -> Option<Instant> {
        self.faults.due()
    }

    /// Logs new faults of a round. A fault that ended is logged again if it returns. Returns how many lines were
    /// suppressed. `own`: findings of this gateway alone; `problems`: parts that the dataplane ignores.
    pub(super) fn log(
        &mut self,
        manifests: &SourceUpdate,
        outcome: &Outcome,
        own: &[Finding],
        problems: &[Problem],
    ) -> u64 {
        let now = Instant::now();
        if Arc::ptr_eq(&self.findings, &outcome.findings)
            && (Arc::ptr_eq(&self.report, &manifests.report) || self.report == manifests.report)
            && (&*self.problems, &*self.own) == (problems, own)
        {
            logging::suppressed(&self.faults.summaries(now));
            return 0;
        }
        let of_namespaces = manifests.faults_of_namespaces.iter();
        let of_namespaces = of_namespaces
            .flat_map(|(namespace, report)| report.iter().map(|fault| (namespace.clone(), fault.clone())));
        let theirs: BTreeSet<&Diagnostic> =
            manifests.faults_of_namespaces.values().flat_map(Report::iter).collect();
        let others = manifests.report.iter().filter(|fault| !theirs.contains(fault));
        let others = others.map(|fault| (String::new(), fault.clone()));
        // Unused parts of a manifest are also findings of its Service.
        let reported: BTreeSet<&Diagnostic> = manifests.report.iter().collect();
        let findings = outcome
            .findings
            .iter()
            .chain(own)
            .filter(|finding| !reported.contains(&finding.diagnostic))
            .map(|finding| (finding.object.namespace.clone(), finding.diagnostic.clone()));
        let suppressed = problems.iter().map(|problem| {
            let namespace = namespace_of(problem, &outcome.spec.services).unwrap_or_default();
            (namespace.to_owned(), Diagnostic::warning(problem.to_string()))
        });
        let faults = of_namespaces.chain(others).chain(findings).chain(suppressed);
        let lines = self.faults.update(faults.collect(), now);
        lines.faults.iter().for_each(logging::diagnostic);
        logging::suppressed(&lines.suppressed);
        self.findings = Arc::clone(&outcome.findings);
        self.report = Arc::clone(&manifests.report);
        self.own = own.to_vec();
        self.problems = problems.to_vec();
        lines.suppressed_now
    }
}

/// The namespace of the Service that has a problem; `services` are sorted by key.
fn namespace_of<'a>(problem: &Problem, services: &'a [SharedService]) -> Option<&'a str> {
    let key = match problem {
        Problem::Backend { service, .. }
        | Problem::TableTooSmall { service, .. }
        | Problem::WeightsDivided { service, .. } => service,
        Problem::RouterOffLink { .. }
        | Problem::RouteShadowed { .. }
        | Problem::RouterTableFull { .. }
        | Problem::NeighborOffLink { .. }
        | Problem::NeighborTableFull { .. } => return None,
    };
    let at = services.binary_search_by(|service| service.key.cmp(key)).ok()?;
    Some(&services[at].namespace)
}
