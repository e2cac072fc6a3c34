//! A request of an object that was not granted, with its location. `check`, `services` and events show it.
//!
//! The code that makes the decision creates the finding; nothing here decides.

use std::net::IpAddr;

use std::net::SocketAddr;

use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_model::objects::{Metadata, ObjectKey, Service};

use super::annotations::key;
use crate::pools::{Problem, ProblemKind};

tidegate_model::named! {
    /// Why a request was not granted. The names are the event reasons that Kubernetes users know.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Reason {
        /// No LoadBalancer address.
        AllocationFailed => "AllocationFailed",
        /// Addresses of only one of two preferred families.
        FamilyFallback => "FamilyFallback",
        /// An external IP that no pool authorises.
        ExternalIpDenied => "ExternalIPDenied",
        /// The (address, port, protocol) belongs to another Service.
        Conflict => "Conflict",
        /// The Service does not share an address with others that have the same sharing key.
        AddressNotShared => "AddressNotShared",
        /// A backend cannot distinguish the VIP from another VIP with the same DSCP.
        DscpConflict => "DSCPConflict",
        /// An invalid value: the default is used, or no port is programmed.
        InvalidValue => "InvalidValue",
        /// A request that the gateway does not support: the parts that depend on it are not programmed.
        NotSupported => "NotSupported",
        /// Source ranges of only one family, for an address of the other family.
        SourceRangesOtherFamily => "SourceRangesOtherFamily",
        /// Source ranges on a Service with external IPs, which they don't filter.
        SourceRangesNotApplied => "SourceRangesNotApplied",
        /// More ports, addresses or endpoints than one Service may have.
        LimitExceeded => "LimitExceeded",
        /// A port that is not served for another reason, such as a mode that cannot reach its endpoints.
        PortNotProgrammed => "PortNotProgrammed",
        /// An endpoint that cannot be a backend.
        EndpointRefused => "EndpointRefused",
        /// A port without endpoints, because no slice, Endpoints or Pod has such a port.
        NoMatchingPort => "NoMatchingPort",
        /// An address in the status of a Service that the gateway does not serve.
        StatusAddressNotServed => "StatusAddressNotServed",
        /// All backends of a service port fail their checks, so none is excluded.
        HealthFailOpen => "HealthFailOpen",
        /// Clients' addresses are lost, although `externalTrafficPolicy: Local` requires them.
        ClientAddressLost => "ClientAddressLost",
        /// Endpoints that are not checked, because the operator does not allow their networks.
        HealthCheckNotAllowed => "HealthCheckNotAllowed",
        /// A node whose Pods have no separate route.
        PodRouteRefused => "PodRouteRefused",
        /// An annotation of another load balancer that has no effect here.
        AliasIgnored => "AliasIgnored",
        /// A health-check node port that cannot be served.
        FailedToStartServiceHealthcheck => "FailedToStartServiceHealthcheck",
        /// An AddressPool that is not used, or not entirely.
        PoolNotAccepted => "PoolNotAccepted",
        /// An AddressPool with addresses that another pool or a ServiceCIDR also has.
        PoolsOverlap => "PoolsOverlap",
        /// Requests reach backends, but no replies come back through the gateway.
        NoReplies => "NoReplies",
        /// Another host answers for a VIP.
        VipClaimed => "VIPClaimed",
        /// A backend has a different link address than the configured one.
        NeighborMacDiffers => "NeighborMACDiffers",
        /// Packets from clients arrive without complete checksums.
        PartialChecksums => "PartialChecksums",
        /// New connections from a default router's own address are refused.
        RouterAsClient => "RouterAsClient",
        /// A backend of a route that does not exist.
        BackendNotFound => "BackendNotFound",
        /// A listener with the port, protocol and hostname of another one.
        HostnameConflict => "HostnameConflict",
        /// A backend of a route whose kind is not supported.
        InvalidKind => "InvalidKind",
        /// Parameters of a GatewayClass or Gateway, which are not supported.
        InvalidParameters => "InvalidParameters",
        /// Kinds of routes that cannot attach to a listener.
        InvalidRouteKinds => "InvalidRouteKinds",
        /// A Gateway or ListenerSet with listeners that are not accepted.
        ListenersNotValid => "ListenersNotValid",
        /// A route whose parent has no listener with its name or port, or does not exist.
        NoMatchingParent => "NoMatchingParent",
        /// A ListenerSet that its Gateway does not allow.
        NotAllowed => "NotAllowed",
        /// A route that no listener of its parent allows.
        NotAllowedByListeners => "NotAllowedByListeners",
        /// A ListenerSet of a Gateway that is not accepted.
        ParentNotAccepted => "ParentNotAccepted",
        /// A listener of a Gateway that has the maximum number of them.
        PortUnavailable => "PortUnavailable",
        /// A listener with the port of one with another protocol.
        ProtocolConflict => "ProtocolConflict",
        /// A backend in another namespace without a ReferenceGrant.
        RefNotPermitted => "RefNotPermitted",
        /// A requested address of a type that is not supported.
        UnsupportedAddress => "UnsupportedAddress",
        /// A listener with a protocol that is not supported.
        UnsupportedProtocol => "UnsupportedProtocol",
    }
}

impl Reason {
    /// The reason of a finding about a refused request for an address or port.
    pub(super) fn of_problem(kind: ProblemKind) -> Self {
        match kind {
            ProblemKind::AllocationFailed => Self::AllocationFailed,
            ProblemKind::FamilyFallback => Self::FamilyFallback,
            ProblemKind::ExternalIpDenied => Self::ExternalIpDenied,
            ProblemKind::Conflict => Self::Conflict,
            ProblemKind::NotShared => Self::AddressNotShared,
        }
    }
}

tidegate_model::named! {
    /// The kinds of objects that make requests.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum ObjectKind {
        /// It requests addresses, and more with its annotations.
        Service => "Service",
        /// It requests the use of its endpoints.
        EndpointSlice => "EndpointSlice",
        /// It requests that its addresses are used.
        AddressPool => "AddressPool",
        /// It requests a weight.
        Pod => "Pod",
        /// It requests a weight, and routes to its Pods.
        Node => "Node",
        /// It requests addresses, and listeners on them.
        Gateway => "Gateway",
        /// It requests listeners on the addresses of a Gateway.
        ListenerSet => "ListenerSet",
        /// It requests the flows of listeners for its backends.
        TcpRoute => "TCPRoute",
        /// It requests the flows of listeners for its backends.
        UdpRoute => "UDPRoute",
    }
}

/// The field of a Gateway that became this field of the Service as which it is served. The number of a port is not that
/// of a listener: some listeners are not served, and others belong to ListenerSets.
fn field_of_gateway(field: &str) -> String {
    match field.strip_prefix("metadata.annotations[") {
        Some(annotation) if annotation.starts_with(key::LOAD_BALANCER_IPS) => "spec.addresses".to_owned(),
        Some(annotation) => format!("spec.infrastructure.annotations[{annotation}"),
        None if field.starts_with("spec.ports") => "spec.listeners".to_owned(),
        None => field.to_owned(),
    }
}

/// One request that was not granted. Findings are ordered by object, then by location.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The object.
    pub object: ObjectKey,
    /// Its kind.
    pub kind: ObjectKind,
    /// The kind of refusal.
    pub reason: Reason,
    /// The fault, its location, and what would be accepted.
    pub diagnostic: Diagnostic,
}

impl Finding {
    /// `FailedToStartServiceHealthcheck`: the health-check node port of a Service cannot be opened at this address.
    /// The location comes from `service`, if the Service still exists.
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
        let location = service.and_then(|s| s.meta.origin.field("spec.healthCheckNodePort"));
        Self {
            object: key.clone(),
            kind: ObjectKind::Service,
            reason: Reason::FailedToStartServiceHealthcheck,
            diagnostic: Diagnostic::error(what)
                .accepting("a port that nothing else on this host uses")
                .at(location),
        }
    }

    /// A finding about traffic that a gateway observes. It has no location, because the object requests nothing
    /// wrong.
    #[must_use]
    pub fn observed(service: ObjectKey, reason: Reason, diagnostic: Diagnostic) -> Self {
        Self { object: service, kind: ObjectKind::Service, reason, diagnostic }
    }

    /// A finding about the value at `field` of a Service.
    pub(super) fn at(meta: &Metadata, field: &str, reason: Reason, diagnostic: Diagnostic) -> Self {
        Self::of(ObjectKind::Service, meta, field, reason, diagnostic)
    }

    /// A finding about the value at `field` of an object of this kind.
    pub(crate) fn of(
        kind: ObjectKind,
        meta: &Metadata,
        field: &str,
        reason: Reason,
        diagnostic: Diagnostic,
    ) -> Self {
        let location = match meta.key.gateway_name() {
            Some(_) => meta.origin.field(&field_of_gateway(field)),
            None => meta.origin.field(field),
        };
        Self { object: meta.key.clone(), kind, reason, diagnostic: diagnostic.at(location) }
    }

    /// The findings about the parts of an object that cannot be used: see [`Metadata::faults`].
    pub(crate) fn of_faults(kind: ObjectKind, meta: &Metadata) -> impl Iterator<Item = Self> {
        meta.faults.iter().map(move |fault| Self::of_fault(kind, &meta.key, fault))
    }

    pub(super) fn of_fault(kind: ObjectKind, object: &ObjectKey, fault: &Diagnostic) -> Self {
        let reason = Reason::InvalidValue;
        Self { object: object.clone(), kind, reason, diagnostic: fault.clone() }
    }

    /// An endpoint of a Service that is not used, while the others are.
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

    /// The finding about a refused request for an address or port.
    pub(super) fn from_problem(meta: &Metadata, problem: &Problem) -> Self {
        let reason = Reason::of_problem(problem.kind);
        let mut diagnostic = match problem.severity {
            Severity::Error => Diagnostic::error(&problem.what),
            Severity::Warning => Diagnostic::warning(&problem.what),
        };
        diagnostic.accepted.clone_from(&problem.accepted);
        Self::at(meta, &problem.field, reason, diagnostic)
    }
}
