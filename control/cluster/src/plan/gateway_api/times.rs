//! The keys of the times of conditions.

use tidegate_model::objects::{ObjectKey, Objects};

/// The key under which the times of an object's conditions are kept. No Service has it.
pub(super) fn times_key(kind: &str, key: &ObjectKey) -> ObjectKey {
    ObjectKey::new(key.namespace.as_str(), format!("{kind}/{}", key.name))
}

/// Whether the object with this [`times_key`] exists.
pub(in super::super) fn object_exists(objects: &Objects, key: &ObjectKey) -> bool {
    let Some((kind, name)) = key.name.split_once('/') else { return false };
    let key = ObjectKey::new(key.namespace.as_str(), name);
    match kind {
        "GatewayClass" => objects.gateway_classes.contains_key(name),
        "ListenerSet" => objects.listener_sets.contains_key(&key),
        "TCPRoute" => objects.tcp_routes.contains_key(&key),
        "UDPRoute" => objects.udp_routes.contains_key(&key),
        _ => false,
    }
}
