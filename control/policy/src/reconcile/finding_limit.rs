//! Limits how many findings of one Service are kept.
//!
//! Users decide how many annotations, ports, external IPs and endpoints a Service has, and each of them may have a
//! fault. Findings are kept in memory, logged, shown and written as events, and a round compares all of them. So only
//! the first findings of each reason are kept, and one more finding reports their total.

use std::collections::BTreeMap;

use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_model::objects::Metadata;

use super::finding::{Finding, Reason};
use crate::pools::DESCRIBED_MAX;

/// The maximum number of findings of one reason that are kept.
const KEPT_MAX: usize = DESCRIBED_MAX;

/// The number of problems of a reason for which no finding was created, with the worst severity of the reason.
pub(super) type NotMade = (Reason, usize, Severity);

/// At most [`KEPT_MAX`] findings of a Service for each reason, and a finding with the total for each reason that has
/// more. `not_made` are the problems for which no finding was created.
pub(super) fn limited(service: &Metadata, mut findings: Vec<Finding>, not_made: &[NotMade]) -> Vec<Finding> {
    if let Some(name) = service.key.gateway_name() {
        // A Gateway is served like a Service, but its owner knows it as a Gateway.
        let (served, known) =
            (format!("Service {}", service.key), format!("Gateway {}/{name}", service.key.namespace));
        for finding in &mut findings {
            finding.diagnostic.what = finding.diagnostic.what.replace(&served, &known);
        }
    }
    if findings.len() <= KEPT_MAX && not_made.is_empty() {
        return findings;
    }
    findings.sort_unstable();
    findings.dedup();
    let mut counts: BTreeMap<Reason, (usize, Severity)> = BTreeMap::new();
    findings.retain(|finding| {
        let severity = finding.diagnostic.severity;
        let (count, worst) = counts.entry(finding.reason).or_insert((0, severity));
        (*count, *worst) = (*count + 1, severity.min(*worst));
        *count <= KEPT_MAX
    });
    for &(reason, more, severity) in not_made {
        let (count, worst) = counts.entry(reason).or_insert((0, severity));
        (*count, *worst) = (*count + more, severity.min(*worst));
    }
    for (reason, (count, worst)) in counts {
        if count > KEPT_MAX {
            findings.push(more(service, reason, count, worst));
        }
    }
    findings
}

/// Reports the total number of findings of a reason.
fn more(service: &Metadata, reason: Reason, count: usize, worst: Severity) -> Finding {
    let what = format!(
        "Service {} has {count} findings with the reason {reason}; only the first {KEPT_MAX} are reported",
        service.key
    );
    let diagnostic = match worst {
        Severity::Error => Diagnostic::error(what),
        Severity::Warning => Diagnostic::warning(what),
    };
    let accepted = format!("the values that the {KEPT_MAX} reported findings list as accepted");
    Finding::at(service, "spec", reason, diagnostic.accepting(accepted))
}

#[cfg(test)]
mod tests {
    use tidegate_model::diagnostic::Location;
    use tidegate_model::objects::ObjectKey;

    use super::super::finding::ObjectKind;
    use super::*;

    #[test]
    fn for_each_reason_the_first_findings_and_the_total_are_reported() {
        let meta = Metadata::new(ObjectKey::new("shop", "web"));
        let found = |n: usize, reason, severity: fn(String) -> Diagnostic| {
            Finding::at(&meta, "spec", reason, severity(format!("fault {n:06}")))
        };
        let mut all: Vec<Finding> =
            (0..10_000).map(|n| found(n, Reason::EndpointRefused, Diagnostic::warning)).collect();
        // Each of them is at every port.
        all.extend(all.clone());
        all.push(found(0, Reason::AllocationFailed, Diagnostic::error));
        let kept = limited(&meta, all, &[(Reason::Conflict, 40, Severity::Error)]);
        let of = |reason| kept.iter().filter(|finding| finding.reason == reason).collect::<Vec<_>>();
        assert_eq!(of(Reason::AllocationFailed).len(), 1);
        let [conflict] = of(Reason::Conflict)[..] else { panic!("{kept:?}") };
        assert!(
            conflict.diagnostic.what.contains("has 40 findings with the reason Conflict"),
            "{conflict:?}"
        );
        let refused = of(Reason::EndpointRefused);
        assert_eq!((refused.len(), kept.len()), (KEPT_MAX + 1, KEPT_MAX + 3));
        let last = &refused[KEPT_MAX].diagnostic;
        assert_eq!(
            (last.what.as_str(), last.severity),
            (
                "Service shop/web has 10000 findings with the reason EndpointRefused; only the first 32 are reported",
                Severity::Warning
            )
        );
    }

    #[test]
    fn an_error_among_the_omitted_findings_makes_the_total_an_error() {
        let meta = Metadata::new(ObjectKey::new("shop", "web"));
        let at = |line: usize, diagnostic: Diagnostic| Finding {
            object: meta.key.clone(),
            kind: ObjectKind::Service,
            reason: Reason::InvalidValue,
            diagnostic: diagnostic.at(Location::new("web.yaml", u32::try_from(line).expect("few lines"), 1)),
        };
        let warnings = (1..=KEPT_MAX).map(|line| at(line, Diagnostic::warning("odd")));
        let all = warnings.chain([at(KEPT_MAX + 1, Diagnostic::error("bad"))]).collect();
        let kept = limited(&meta, all, &[]);
        assert_eq!(kept.len(), KEPT_MAX + 1);
        assert_eq!(kept[KEPT_MAX].diagnostic.severity, Severity::Error);
    }
}
