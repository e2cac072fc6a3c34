//! A port of a Service on one address.

use std::net::IpAddr;

use tidegate_model::objects::{Port, Protocol, ServicePort};
use tidegate_spec::ServiceKey;

use super::view::VipKind;

/// A port of a Service on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frontend {
    pub(super) vip: IpAddr,
    pub(super) protocol: Protocol,
    /// The port on the VIP: the node port for [`VipKind::NodePort`].
    pub(super) port: Port,
    pub(super) via: VipKind,
}

impl Frontend {
    pub(super) fn key(&self) -> ServiceKey {
        ServiceKey { vip: self.vip, protocol: self.protocol, port: self.port.get() }
    }

    /// The name of the port in messages: `node port 30080 of port http`.
    pub(super) fn describe(&self, port: &ServicePort) -> String {
        match self.via {
            VipKind::NodePort => format!("node port {} of port {}", self.port, port.label()),
            VipKind::LoadBalancer | VipKind::ExternalIp | VipKind::ClusterIp => {
                format!("port {}", port.label())
            }
        }
    }
}
