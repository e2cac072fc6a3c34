//! [`Object`]: any object that the gateway reads, with its faults.

use std::sync::Arc;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{
    AddressPool, EndpointSlice, Endpoints, Metadata, Namespace, Node as ClusterNode, ObjectKey, Pod,
    SERVICE_NAME_LABEL, Service, ServiceCidr,
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
        const NEW: &str = "the object was just read and is not shared yet";
        let separate = match &mut self {
            Self::Service(service) => {
                Arc::get_mut(service).expect(NEW).meta.faults = all;
                Report::new()
            }
            Self::Node(node) => {
                Arc::get_mut(node).expect(NEW).meta.faults = all;
                Report::new()
            }
            // These faults are reported with its Service.
            Self::EndpointSlice(slice) if slice.service().is_some() => {
                Arc::get_mut(slice).expect(NEW).meta.faults = all;
                Report::new()
            }
            Self::AddressPool(pool) => {
                Arc::get_mut(pool).expect(NEW).faults = report.errors().cloned().collect();
                report.warnings().cloned().collect()
            }
            Self::EndpointSlice(_)
            | Self::Endpoints(_)
            | Self::Pod(_)
            | Self::Namespace(_)
            | Self::ServiceCIDR(_) => report,
        };
        (Some(self), separate)
    }
}

/// The Service itself, or the Service of the endpoints of an object of this kind.
pub(super) fn service_of(kind: &str, meta: &Metadata) -> Option<ObjectKey> {
    match kind {
        "Service" | "Endpoints" => Some(meta.key.clone()),
        "EndpointSlice" => {
            let name = meta.labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
            Some(ObjectKey::new(meta.key.namespace.as_str(), name.as_str()))
        }
        _ => None,
    }
}
