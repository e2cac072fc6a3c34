//! `Pod`, `Namespace`, `Node` and `ServiceCIDR`: only the fields that the gateway needs. All others are skipped.

use std::sync::Arc;

use ipnet::IpNet;
use tidegate_model::objects::{ContainerPort, Metadata, Namespace, Node, Pod, ServiceCidr};
use tidegate_model::yaml::{Field, Fields, text};

use super::object::Object;
use super::service::protocol;

pub(super) fn read(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut pod = Pod { meta, ..Pod::default() };
    if let Some(spec) = object.mapping("spec") {
        pod.node_name = spec.text("nodeName");
        for container in spec.items("containers") {
            let Some(container) = container.fields() else { continue };
            container_ports(&container, &mut pod.container_ports);
        }
        for container in spec.items("initContainers") {
            let Some(container) = container.fields() else { continue };
            // The only init containers that can serve are those that continue to run (sidecars).
            if container.read("restartPolicy", Field::string) == Some("Always") {
                container_ports(&container, &mut pod.container_ports);
            }
        }
    }
    if let Some(status) = object.mapping("status") {
        let one = status.filled("podIP").and_then(|f| f.ip());
        let many = status.each("podIPs", |item| item.fields()?.required("ip", "an address")?.ip());
        pod.ips = if many.is_empty() { one.into_iter().collect() } else { many };
        for condition in status.items("conditions") {
            let Some(condition) = condition.fields() else { continue };
            let text = |key| condition.read(key, Field::string);
            if text("type") == Some("Ready") {
                pod.ready = text("status") == Some("True");
            }
        }
        let phase = status.read("phase", Field::string);
        pod.finished = matches!(phase, Some("Succeeded" | "Failed"));
    }
    Some(Object::Pod(Arc::new(pod)))
}

fn container_ports(container: &Fields<'_>, into: &mut Vec<ContainerPort>) {
    for item in container.items("ports") {
        let Some(fields) = item.fields() else { continue };
        let name = fields.text("name").unwrap_or_default();
        let protocol = protocol(&fields);
        let port = fields.required("containerPort", "a port number from 1 to 65535").and_then(|f| f.port());
        if let (Some(protocol), Some(port)) = (protocol, port) {
            into.push(ContainerPort { name, protocol, port });
        }
    }
}

pub(super) fn read_namespace(_: &Fields<'_>, meta: Metadata) -> Option<Object> {
    Some(Object::Namespace(Arc::new(Namespace { meta })))
}

/// Parses a network: leniently in a stored object, strictly in a manifest.
fn network(field: &Field<'_>) -> Option<IpNet> {
    let parse = if field.sheet.is_stored() { text::stored_cidr } else { text::cidr };
    field.parsed(parse, text::CIDR).map(|net| net.trunc())
}

pub(super) fn read_service_cidr(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let spec = object.mapping("spec");
    let cidrs = spec.map(|spec| spec.each("cidrs", network));
    object.allow(&["status"]);
    Some(Object::ServiceCIDR(Arc::new(ServiceCidr { meta, cidrs: cidrs.unwrap_or_default() })))
}

pub(super) fn read_node(object: &Fields<'_>, meta: Metadata) -> Option<Object> {
    let mut node = Node::new(meta);
    if let Some(spec) = object.mapping("spec") {
        let one = spec.filled("podCIDR").and_then(|f| network(&f));
        let many = spec.each("podCIDRs", network);
        node.pod_cidrs = if many.is_empty() { one.into_iter().collect() } else { many };
        node.to_be_deleted = spec.items("taints").iter().any(|taint| {
            let key = taint.fields().and_then(|fields| fields.get("key")?.string());
            key == Some("ToBeDeletedByClusterAutoscaler")
        });
    }
    if let Some(status) = object.mapping("status") {
        for item in status.items("addresses") {
            let Some(fields) = item.fields() else { continue };
            let address = fields.get("address");
            match fields.read("type", Field::string) {
                Some("InternalIP") => node.internal_ips.extend(address.and_then(|f| f.ip())),
                Some("ExternalIP") => node.external_ips.extend(address.and_then(|f| f.ip())),
                _ => {}
            }
        }
    }
    Some(Object::Node(Arc::new(node)))
}
