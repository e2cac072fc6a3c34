//! `services` and `backends`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::findings::FindingView;

pub use tidegate_policy::reconcile::view::{
    BackendView, BackendViewState, BackendWhy, EdgeView, HealthState, HealthView, PortRefusal, PortView,
    RefusalReason, ServiceView, VipKind, VipView,
};

/// `GET /v1/services`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesAnswer {
    /// Services that request an address, sorted by namespace and name.
    pub services: Vec<ServiceView>,
    /// Their requests that were not granted.
    pub findings: Vec<FindingView>,
}

/// `GET /v1/backends`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendsAnswer {
    /// One row for each backend of each port on each VIP.
    pub backends: Vec<BackendRow>,
}

/// A backend of a service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendRow {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port, or its number.
    pub port_name: String,
    /// The VIP.
    pub vip: IpAddr,
    /// Port number on the VIP.
    pub service_port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The backend.
    pub backend: BackendView,
    /// Since when it has been in its state, RFC 3339, over all ports of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Its state in the packet path.
    #[serde(flatten)]
    pub forwarding: BackendForwarding,
}

/// The state of a backend of a service port in the packet path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackendForwarding {
    /// The number of new flows sent to it; absent if it is in no snapshot yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Its established flows; absent if it is in no snapshot yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<u64>,
    /// Packets forwarded to it and, except in the DSR modes, from it; absent if it is in no snapshot yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Bytes of these packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The path MTU of its tunnel in bytes, outer header included, as a router reported it; absent if
    /// none was reported in the last ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_mtu: Option<u16>,
    /// The number of workers that avoid it because it refused or ignored new connections; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside_workers: Option<usize>,
}

impl BackendRow {
    /// The rows of services, in the same order; `forwarding` is called for each, with (VIP, protocol, port) and
    /// backend.
    pub fn of_services(
        services: &[impl std::borrow::Borrow<ServiceView>],
        forwarding: impl Fn(&PortView, &BackendView) -> BackendForwarding,
    ) -> Vec<Self> {
        let mut rows = Vec::new();
        for service in services.iter().map(std::borrow::Borrow::borrow) {
            for port in &service.ports {
                rows.extend(port.backends.iter().map(|backend| Self {
                    namespace: service.namespace.clone(),
                    service: service.name.clone(),
                    port_name: port.name.clone(),
                    vip: port.vip,
                    service_port: port.port,
                    protocol: port.protocol.to_string(),
                    backend: backend.clone(),
                    since: None,
                    forwarding: forwarding(port, backend),
                }));
            }
        }
        rows
    }
}
