//! Why a Service is refused because of its size, in the words of a finding.

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ENDPOINTS_MAX, NotKept, Service};

use super::demand::Demand;
use super::finding::{Finding, Reason};

/// The excess in the size of a Service, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) why: String,
    pub(super) field: String,
    pub(super) accepted: String,
}

impl TooLarge {
    /// All Services together request more than `max`, and those of this namespace request the most.
    pub(super) fn of_all(namespace: &str, max: &Demand) -> Self {
        let Demand { frontends, backends, slots, ranges } = max;
        Self {
            why: format!(
                "all Services together need more than the gateway's tables hold, and namespace {namespace} needs \
                 the most: its newest Services are not programmed"
            ),
            field: "spec.ports".to_owned(),
            accepted: format!(
                "at most {frontends} service ports, {backends} backends, {slots} slots of Maglev tables (by \
                 annotation) and {ranges} source ranges of all Services together"
            ),
        }
    }

    /// The source does not keep the endpoints of the Service.
    pub(super) fn of_slices(service: &Service, not_kept: NotKept) -> Self {
        let namespace = &service.meta.key.namespace;
        let why = match not_kept {
            NotKept::TooManyEndpoints => {
                "its EndpointSlices list more endpoints than one Service may have".to_owned()
            }
            NotKept::NamespaceShare => format!(
                "the EndpointSlices of all namespaces together are larger than the gateway keeps, and those of \
                 namespace {namespace} are larger than its share: those of its newest Services are not kept"
            ),
            NotKept::Awaited => {
                "its EndpointSlices were too large; they fit again and will be read within 60 s".to_owned()
            }
        };
        Self {
            why,
            field: "metadata.namespace".to_owned(),
            accepted: format!(
                "at most {ENDPOINTS_MAX} endpoints for one Service, and EndpointSlices of all namespaces together up \
                 to the size of endpointSlicesMiB in the configuration of the gateway"
            ),
        }
    }

    /// The finding.
    pub(super) fn finding(&self, service: &Service) -> Finding {
        let what = format!("Service {} is not programmed: {}", service.meta.key, self.why);
        let diagnostic = Diagnostic::error(what).accepting(self.accepted.clone());
        Finding::at(&service.meta, &self.field, Reason::LimitExceeded, diagnostic)
    }
}
