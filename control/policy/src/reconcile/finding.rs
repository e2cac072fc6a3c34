//! A request of an object that was not granted, with its place: `check`, `services` and events show it.
//!
//! The code that decides creates the finding; nothing here decides.

use std::net::IpAddr;

use std::net::SocketAddr;

use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_model::objects::{Metadata, ObjectKey, Service};

use crate::pools::{Problem, ProblemKind};

/// Why, in the names that users of Kubernetes know from events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// No LoadBalancer address.
    AllocationFailed,
    /// One family where two were preferred.
    FamilyFallback,
    /// An external IP that no pool authorises.
    ExternalIpDenied,
    /// The (address, port, protocol) belongs to another Service.
    Conflict,
    /// A value that is not understood; the default is used.
    InvalidValue,
    /// A wish that the gateway does not grant yet: what depends on it is not programmed.
    NotSupported,
    /// Source ranges that name one family, on an address of the other.
    SourceRangesOtherFamily,
    /// More ports, addresses or endpoints than one Service may have.
    LimitExceeded,
    /// A port that is not served for another reason: the mode cannot reach its endpoints.
    PortNotProgrammed,
    /// An endpoint that cannot be a backend.
    EndpointRefused,
    /// A port that gets no endpoint, because nobody who describes the endpoints has such a port.
    NoMatchingPort,
    /// An address in the status of a Service that is not served.
    StatusAddressNotServed,
    /// All backends of a service port fail their checks, and none is set aside.
    HealthFailOpen,
    /// Clients' addresses are not kept, though `externalTrafficPolicy: Local` asks for it.
    ClientAddressLost,
    /// Endpoints that are not checked, because the operator does not allow their networks.
    HealthCheckNotAllowed,
    /// A node whose Pods get no route of their own.
    PodRouteRefused,
    /// An annotation of another balancer that has no effect here.
    AliasIgnored,
    /// A health-check node port that cannot be served.
    FailedToStartServiceHealthcheck,
    /// An AddressPool, or a part of it, that is not used.
    PoolNotAccepted,
    /// An AddressPool that has addresses in common with another pool.
    PoolsOverlap,
}

impl Reason {
    /// The name of the event.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllocationFailed => "AllocationFailed",
            Self::FamilyFallback => "FamilyFallback",
            Self::ExternalIpDenied => "ExternalIPDenied",
            Self::Conflict => "Conflict",
            Self::InvalidValue => "InvalidValue",
            Self::NotSupported => "NotSupported",
            Self::SourceRangesOtherFamily => "SourceRangesOtherFamily",
            Self::LimitExceeded => "LimitExceeded",
            Self::PortNotProgrammed => "PortNotProgrammed",
            Self::EndpointRefused => "EndpointRefused",
            Self::NoMatchingPort => "NoMatchingPort",
            Self::StatusAddressNotServed => "StatusAddressNotServed",
            Self::HealthFailOpen => "HealthFailOpen",
            Self::ClientAddressLost => "ClientAddressLost",
            Self::HealthCheckNotAllowed => "HealthCheckNotAllowed",
            Self::PodRouteRefused => "PodRouteRefused",
            Self::AliasIgnored => "AliasIgnored",
            Self::FailedToStartServiceHealthcheck => "FailedToStartServiceHealthcheck",
            Self::PoolNotAccepted => "PoolNotAccepted",
            Self::PoolsOverlap => "PoolsOverlap",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kinds of objects that ask for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// For addresses, and in its annotations.
    Service,
    /// For its endpoints to be used.
    EndpointSlice,
    /// To be used.
    AddressPool,
    /// For a weight.
    Pod,
    /// For a weight, and for routes to its Pods.
    Node,
}

impl ObjectKind {
    /// The kind in manifests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::AddressPool => "AddressPool",
            Self::Pod => "Pod",
            Self::Node => "Node",
        }
    }
}

/// One thing that was not granted. Ordered by object, then by place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The object that it is about.
    pub object: ObjectKey,
    /// Its kind.
    pub kind: ObjectKind,
    /// The kind of refusal.
    pub reason: Reason,
    /// What, where, and what would be accepted.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// `FailedToStartServiceHealthcheck`: the health-check node port of a Service cannot be opened at this address;
    /// `service` is where its place comes from, if it is still there.
    #[must_use]
    pub fn of_unopened_port(
        key: &ObjectKey,
        address: SocketAddr,
        error: &str,
        service: Option<&Service>,
    ) -> Self {
        let what = format!(
            "healthCheckNodePort {} of Service {key} cannot be served on {}: {error}; the gateway retries",
            address.port(),
            address.ip(),
        );
        let place = service.and_then(|s| s.meta.origin.field("spec.healthCheckNodePort"));
        Self {
            object: key.clone(),
            kind: ObjectKind::Service,
            reason: Reason::FailedToStartServiceHealthcheck,
            diagnostic: Diagnostic::error(what)
                .accepting("a port that nothing else on this host has")
                .at(place),
        }
    }

    /// A finding about the value at `field` of a Service.
    pub(super) fn at(meta: &Metadata, field: &str, reason: Reason, diagnostic: Diagnostic) -> Self {
        Self::of(ObjectKind::Service, meta, field, reason, diagnostic)
    }

    /// A finding about the value at `field` of an object of this kind.
    pub(super) fn of(
        kind: ObjectKind,
        meta: &Metadata,
        field: &str,
        reason: Reason,
        diagnostic: Diagnostic,
    ) -> Self {
        Self { object: meta.key.clone(), kind, reason, diagnostic: diagnostic.at(meta.origin.field(field)) }
    }

    /// What of an object cannot be used: see [`Metadata::faults`].
    pub(super) fn of_faults(kind: ObjectKind, meta: &Metadata) -> impl Iterator<Item = Self> {
        meta.faults.iter().map(move |fault| Self::of_fault(kind, &meta.key, fault))
    }

    /// One of them.
    pub(super) fn of_fault(kind: ObjectKind, object: &ObjectKey, fault: &Diagnostic) -> Self {
        let reason = Reason::InvalidValue;
        Self { object: object.clone(), kind, reason, diagnostic: fault.clone() }
    }

    /// An endpoint of a Service that is left out, while the others serve.
    pub(super) fn refused_endpoint(
        service: &Metadata,
        field: &str,
        ip: IpAddr,
        why: &str,
        accepted: impl Into<String>,
    ) -> Self {
        let what = format!("endpoint {ip} of Service {} is refused: {why}", service.key);
        let diagnostic = Diagnostic::warning(what).accepting(accepted);
        Self::at(service, field, Reason::EndpointRefused, diagnostic)
    }

    /// What a pool refused.
    pub(super) fn from_problem(meta: &Metadata, problem: &Problem) -> Self {
        let reason = match problem.kind {
            ProblemKind::AllocationFailed => Reason::AllocationFailed,
            ProblemKind::FamilyFallback => Reason::FamilyFallback,
            ProblemKind::ExternalIpDenied => Reason::ExternalIpDenied,
            ProblemKind::Conflict => Reason::Conflict,
        };
        let mut diagnostic = match problem.severity {
            Severity::Error => Diagnostic::error(&problem.what),
            Severity::Warning => Diagnostic::warning(&problem.what),
        };
        diagnostic.accepted.clone_from(&problem.accepted);
        Self::at(meta, &problem.field, reason, diagnostic)
    }
}
