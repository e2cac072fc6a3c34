//! The backends that a route names: whether each may be used, and exists.

use tidegate_model::objects::gateway_api::{BackendRef, GROUP, Route};
use tidegate_model::objects::{ObjectKey, Objects, Port, Protocol, RoutedBackend, Service, ServiceType};

use super::condition::{RESOLVED_REFS, condition, reason};
use super::state::ConditionState;

/// The backends of a route.
pub(super) struct Resolved {
    pub(super) backends: Vec<RoutedBackend>,
    /// `ResolvedRefs`.
    pub(super) condition: ConditionState,
    /// The references that cannot be used, each with its index and the condition about it.
    pub(super) faults: Vec<(usize, ConditionState)>,
}

/// Resolves the references of a route.
pub(super) fn resolve(route: &Route, objects: &Objects) -> Resolved {
    let mut faults = Vec::new();
    let backends = references(route).enumerate().map(|(at, backend)| {
        let service = match service(route, backend, objects) {
            Ok(service) => Some(service),
            Err((reason, message)) => {
                let message = format!("{message}: its share of new flows is rejected");
                faults.push((at, condition(RESOLVED_REFS, false, reason, message)));
                None
            }
        };
        RoutedBackend { service, weight: backend.weight }
    });
    let backends = backends.collect();
    let condition = match faults.first() {
        None => condition(RESOLVED_REFS, true, reason::RESOLVED_REFS, ""),
        Some((_, first)) => {
            let messages: Vec<&str> = faults.iter().map(|(_, fault)| fault.message.as_str()).collect();
            condition(RESOLVED_REFS, false, first.reason, messages.join("; "))
        }
    };
    Resolved { backends, condition, faults }
}

/// The Services that a route names, whether they exist or not.
pub(super) fn services(route: &Route) -> impl Iterator<Item = ObjectKey> {
    references(route).map(|backend| key(route, backend))
}

/// Whether a route names a backend of another namespace.
pub(super) fn leaves_namespace(route: &Route) -> bool {
    services(route).any(|service| service.namespace != route.meta.key.namespace)
}

/// What the result of [`resolve`] depends on in a Service.
pub(super) fn relevant(service: &Service) -> impl PartialEq {
    let ports: Vec<(Port, Protocol)> = service.ports.iter().map(|port| (port.port, port.protocol)).collect();
    (service.service_type, ports)
}

fn references(route: &Route) -> impl Iterator<Item = &BackendRef> {
    route.rules.iter().flat_map(|rule| &rule.backends)
}

fn key(route: &Route, backend: &BackendRef) -> ObjectKey {
    let namespace = backend.namespace.as_deref().unwrap_or(&route.meta.key.namespace);
    ObjectKey::new(namespace, backend.name.as_str())
}

fn service(
    route: &Route,
    backend: &BackendRef,
    objects: &Objects,
) -> Result<(ObjectKey, Port), (&'static str, String)> {
    let BackendRef { group, kind, .. } = backend;
    if (group.as_str(), kind.as_str()) != ("", "Service") {
        return Err((
            reason::INVALID_KIND,
            format!("backend {kind} of group {group:?} is not supported; supported: Service"),
        ));
    }
    let key = key(route, backend);
    if key.namespace != route.meta.key.namespace && !is_granted(route, &key, objects) {
        let message =
            format!("no ReferenceGrant in namespace {} permits Service {}", key.namespace, key.name);
        return Err((reason::REF_NOT_PERMITTED, message));
    }
    let not_found = |what: String| Err((reason::BACKEND_NOT_FOUND, what));
    let Some(service) = objects.services.get(&key) else {
        return not_found(format!("Service {key} does not exist"));
    };
    if service.service_type == ServiceType::ExternalName {
        return not_found(format!("Service {key} has type ExternalName, which has no endpoints"));
    }
    match backend.port {
        Some(port) if service.ports.iter().any(|of| (of.port, of.protocol) == (port, route.protocol)) => {
            Ok((key, port))
        }
        Some(port) => not_found(format!("Service {key} has no {} port {port}", route.protocol)),
        None => not_found(format!("the reference to Service {key} has no port")),
    }
}

/// Whether a ReferenceGrant in the namespace of the Service permits the reference.
fn is_granted(route: &Route, service: &ObjectKey, objects: &Objects) -> bool {
    let first = ObjectKey::new(service.namespace.as_str(), "");
    let grants = objects.reference_grants.range(first..);
    let grants = grants.take_while(|(key, _)| key.namespace == service.namespace);
    grants.into_iter().any(|(_, grant)| {
        let from = grant.from.iter().any(|from| {
            (from.group.as_str(), from.kind.as_str()) == (GROUP, route.kind())
                && from.namespace == route.meta.key.namespace
        });
        let to = grant.to.iter().any(|to| {
            (to.group.as_str(), to.kind.as_str()) == ("", "Service")
                && to.name.as_ref().is_none_or(|name| *name == service.name)
        });
        from && to && grant.meta.deletion_time.is_none()
    })
}
