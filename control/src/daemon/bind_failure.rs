//! What is said of a health-check node port that could not be opened.

use tidegate_health::health_check_node_port::BindFailure;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Service;
use tidegate_policy::reconcile::{Asker, Finding, Reason};

/// The finding `FailedToStartServiceHealthcheck`; `service` is where its place comes from, if it is still there.
pub(super) fn finding(failure: &BindFailure, service: Option<&Service>) -> Finding {
    let what = format!(
        "healthCheckNodePort {} of Service {} cannot be served on {}: {}; it is tried again",
        failure.address.port(),
        failure.service,
        failure.address.ip(),
        failure.error
    );
    let place = service.and_then(|s| s.meta.origin.field("spec.healthCheckNodePort"));
    Finding {
        object: failure.service.clone(),
        kind: Asker::Service,
        reason: Reason::FailedToStartServiceHealthcheck,
        diagnostic: Diagnostic::error(what).accepting("a port that nothing else on this host has").at(place),
    }
}
