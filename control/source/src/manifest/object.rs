//! [`Object`]: any object that the gateway reads, with its faults.

use std::sync::Arc;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::gateway_api::{Gateway, GatewayClass, ListenerSet, ReferenceGrant, Route};
use tidegate_model::objects::{
    AddressPool, EndpointSlice, Endpoints, Metadata, Namespace, Node as ClusterNode, ObjectKey, Pod,
    SERVICE_NAME_LABEL, Service, ServiceCidr, TlsSecret,
};

use crate::RefusedObject;

/// An object of a kind that the gateway reads. It is shared, so that combining files copies no object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Endpoints(Arc<Endpoints>),
    Pod(Arc<Pod>),
    Namespace(Arc<Namespace>),
    Node(Arc<ClusterNode>),
    AddressPool(Arc<AddressPool>),
    ServiceCIDR(Arc<ServiceCidr>),
    GatewayClass(Arc<GatewayClass>),
    Gateway(Arc<Gateway>),
    ListenerSet(Arc<ListenerSet>),
    TCPRoute(Arc<Route>),
    UDPRoute(Arc<Route>),
    ReferenceGrant(Arc<ReferenceGrant>),
    TlsSecret(Arc<TlsSecret>),
}

impl Object {
    /// The kind as written in manifests.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::EndpointSlice(_) => "EndpointSlice",
            Self::Endpoints(_) => "Endpoints",
            Self::Pod(_) => "Pod",
            Self::Namespace(_) => "Namespace",
            Self::Node(_) => "Node",
            Self::AddressPool(_) => "AddressPool",
            Self::ServiceCIDR(_) => "ServiceCIDR",
            Self::GatewayClass(_) => "GatewayClass",
            Self::Gateway(_) => "Gateway",
            Self::ListenerSet(_) => "ListenerSet",
            Self::TCPRoute(_) => "TCPRoute",
            Self::UDPRoute(_) => "UDPRoute",
            Self::ReferenceGrant(_) => "ReferenceGrant",
            Self::TlsSecret(_) => "Secret",
        }
    }

    pub(crate) fn meta(&self) -> &Metadata {
        match self {
            Self::Service(o) => &o.meta,
            Self::EndpointSlice(o) => &o.meta,
            Self::Endpoints(o) => &o.meta,
            Self::Pod(o) => &o.meta,
            Self::Namespace(o) => &o.meta,
            Self::Node(o) => &o.meta,
            Self::AddressPool(o) => &o.meta,
            Self::ServiceCIDR(o) => &o.meta,
            Self::GatewayClass(o) => &o.meta,
            Self::Gateway(o) => &o.meta,
            Self::ListenerSet(o) => &o.meta,
            Self::TCPRoute(o) | Self::UDPRoute(o) => &o.meta,
            Self::ReferenceGrant(o) => &o.meta,
            Self::TlsSecret(o) => &o.meta,
        }
    }
}

impl Object {
    /// Its metadata, which may change because the object was just read, if it takes precedence over younger objects.
    pub(crate) fn ranked(&mut self) -> Option<&mut Metadata> {
        match self {
            Self::ListenerSet(o) => Some(&mut new(o).meta),
            Self::TCPRoute(o) | Self::UDPRoute(o) => Some(&mut new(o).meta),
            _ => None,
        }
    }
}

/// The maximum number of faults of one object that are reported one by one, each as an event.
const FAULTS_MAX: usize = 8;

/// The reported faults of an object, which has `count` faults in total.
pub(super) fn first_faults<'a>(
    all: impl Iterator<Item = &'a Diagnostic>,
    count: usize,
    name: &str,
) -> Vec<Diagnostic> {
    let mut faults: Vec<Diagnostic> = all.take(FAULTS_MAX).cloned().collect();
    if count > FAULTS_MAX {
        let what = format!("{name} has {count} errors; the first {FAULTS_MAX} are reported");
        let location = faults.first().and_then(|fault| fault.location.clone());
        faults.push(Diagnostic::error(what).accepting("an object without errors").at(location));
    }
    faults
}

impl Object {
    /// The object as a refused one, with the reason.
    pub(crate) fn refuse(&self, why: Diagnostic) -> RefusedObject {
        let (kind, meta) = (self.kind(), self.meta());
        let service = service_of(kind, meta);
        RefusedObject { kind, key: meta.key.clone(), service, faults: vec![why] }
    }

    /// The object with its faults, and the faults that must be reported separately.
    pub(super) fn with_faults(mut self, report: Report) -> (Option<Self>, Report) {
        if report.is_empty() {
            return (Some(self), report);
        }
        let all = first_faults(report.iter(), report.len(), self.kind());
        let meta = match &mut self {
            Self::Service(o) => &mut new(o).meta,
            Self::Node(o) => &mut new(o).meta,
            // These faults are reported with its Service.
            Self::EndpointSlice(o) if o.service().is_some() => &mut new(o).meta,
            Self::GatewayClass(o) => &mut new(o).meta,
            Self::Gateway(o) => &mut new(o).meta,
            Self::ListenerSet(o) => &mut new(o).meta,
            Self::TCPRoute(o) | Self::UDPRoute(o) => &mut new(o).meta,
            Self::ReferenceGrant(o) => &mut new(o).meta,
            Self::AddressPool(o) => {
                new(o).faults = report.errors().cloned().collect();
                return (Some(self), report.warnings().cloned().collect());
            }
            Self::EndpointSlice(_)
            | Self::Endpoints(_)
            | Self::Pod(_)
            | Self::Namespace(_)
            | Self::ServiceCIDR(_)
            | Self::TlsSecret(_) => return (Some(self), report),
        };
        meta.faults = all;
        (Some(self), Report::new())
    }
}

/// The object to change.
fn new<T>(object: &mut Arc<T>) -> &mut T {
    Arc::get_mut(object).expect("the object was just read and is not shared yet")
}

/// The Service itself, the Service as which a Gateway is served, or the Service of the endpoints of an object of this
/// kind.
pub(super) fn service_of(kind: &str, meta: &Metadata) -> Option<ObjectKey> {
    match kind {
        "Service" | "Endpoints" => Some(meta.key.clone()),
        "Gateway" => Some(ObjectKey::of_gateway(&meta.key.namespace, &meta.key.name)),
        "EndpointSlice" => {
            let name = meta.labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
            Some(ObjectKey::new(meta.key.namespace.as_str(), name.as_str()))
        }
        _ => None,
    }
}
