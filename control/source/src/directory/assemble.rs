//! Combines the objects of all files into one state: keyed, without duplicates, with node ports allocated.

use std::sync::Arc;

use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::objects::{Metadata, Objects};
use tidegate_model::shared_map::SharedMap;

use super::node_ports;
use crate::manifest::Object;

/// Combines objects. If an object is defined twice, the first definition is used, and an error names both locations.
pub(super) fn assemble<'a>(all: impl Iterator<Item = &'a Object>, report: &mut Report) -> Objects {
    let mut objects = Objects::default();
    for object in all {
        let meta = object.meta();
        let kind = object.kind();
        let key = meta.key.clone();
        match object {
            Object::Service(o) => insert(&mut objects.services, key, o, meta, |o| &o.meta, kind, report),
            Object::EndpointSlice(o) => {
                insert(&mut objects.endpoint_slices, key, o, meta, |o| &o.meta, kind, report);
            }
            Object::Endpoints(o) => insert(&mut objects.endpoints, key, o, meta, |o| &o.meta, kind, report),
            Object::Pod(o) => insert(&mut objects.pods, key, o, meta, |o| &o.meta, kind, report),
            Object::Namespace(o) => {
                insert(&mut objects.namespaces, key.name, o, meta, |o| &o.meta, kind, report);
            }
            Object::Node(o) => insert(&mut objects.nodes, key.name, o, meta, |o| &o.meta, kind, report),
            Object::AddressPool(o) => {
                insert(&mut objects.address_pools, key.name, o, meta, |o| &o.meta, kind, report);
            }
            Object::ServiceCIDR(o) => {
                insert(&mut objects.service_cidrs, key.name, o, meta, |o| &o.meta, kind, report);
            }
            Object::GatewayClass(o) => {
                insert(&mut objects.gateway_classes, key.name, o, meta, |o| &o.meta, kind, report);
            }
            Object::Gateway(o) => insert(&mut objects.gateways, key, o, meta, |o| &o.meta, kind, report),
            Object::ListenerSet(o) => {
                insert(&mut objects.listener_sets, key, o, meta, |o| &o.meta, kind, report);
            }
            Object::TCPRoute(o) => insert(&mut objects.tcp_routes, key, o, meta, |o| &o.meta, kind, report),
            Object::UDPRoute(o) => insert(&mut objects.udp_routes, key, o, meta, |o| &o.meta, kind, report),
            Object::ReferenceGrant(o) => {
                insert(&mut objects.reference_grants, key, o, meta, |o| &o.meta, kind, report);
            }
            Object::TlsSecret(o) => insert(&mut objects.tls_secrets, key, o, meta, |o| &o.meta, kind, report),
        }
    }
    node_ports::allocate(&mut objects, report);
    objects
}

fn insert<K: Ord + Clone, T>(
    into: &mut SharedMap<K, Arc<T>>,
    key: K,
    object: &Arc<T>,
    meta: &Metadata,
    meta_of: fn(&T) -> &Metadata,
    kind: &str,
    report: &mut Report,
) {
    let Some(first) = into.get(&key) else {
        into.insert(key, object.clone());
        return;
    };
    let location = meta_of(first).origin.location();
    let location = location.map_or_else(|| "another location".to_owned(), |l| l.to_string());
    report.push(
        Diagnostic::error(format!("{kind} {} is also defined at {location}", meta.key))
            .accepting("each object once")
            .at(meta.origin.location()),
    );
}
