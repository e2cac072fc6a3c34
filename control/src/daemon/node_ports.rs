//! The listeners of health-check node ports. If a kube-proxy runs on the same node, it serves the ports instead.

use std::sync::Arc;

use tidegate_health::health_check_node_port::{
    Bind, BindFailure, Clients, HealthCheckNodePorts, HealthReport,
};
use tidegate_model::health::HealthCheckNodePort;
use tidegate_model::objects::Objects;
use tidegate_policy::reconcile::Finding;
use tokio::sync::watch;

/// The health-check node ports of the gateway.
pub(super) struct NodePorts {
    listeners: HealthCheckNodePorts,
    /// The last settings of the listeners.
    listening: Arc<[HealthCheckNodePort]>,
    /// Whether the node has a kube-proxy, which then serves these ports.
    has_kube_proxy: bool,
}

impl NodePorts {
    /// Starts without ports. `health` returns the health of the gateway.
    pub(super) fn new(
        bind: &Bind,
        clients: Clients,
        health: impl Fn() -> HealthReport + Send + Sync + 'static,
    ) -> Self {
        let listeners = HealthCheckNodePorts::start(bind, clients, health);
        Self { listeners, listening: Arc::default(), has_kube_proxy: false }
    }

    /// Changes when a port can no longer be bound, or can be bound again.
    pub(super) fn failures(&self) -> watch::Receiver<Vec<BindFailure>> {
        self.listeners.failures()
    }

    /// Sets whether the node has a kube-proxy, which then serves the ports.
    pub(super) fn share_node(&mut self, has_kube_proxy: bool) {
        if self.has_kube_proxy == has_kube_proxy {
            return;
        }
        self.has_kube_proxy = has_kube_proxy;
        if has_kube_proxy {
            tracing::info!("this node runs kube-proxy, which serves the health-check node ports");
        } else {
            tracing::info!(
                "this node no longer runs kube-proxy: Tidegate serves the health-check node ports"
            );
        }
    }

    /// Sets the ports that the Services request.
    pub(super) fn set(&mut self, requested: &Arc<[HealthCheckNodePort]>) {
        let listening = match self.has_kube_proxy {
            true => Arc::default(),
            false => Arc::clone(requested),
        };
        if !Arc::ptr_eq(&self.listening, &listening) {
            self.listening = listening;
            self.listeners.set(self.listening.to_vec());
        }
    }
}

/// The finding about a port that cannot be bound.
pub(super) fn unopened(failure: &BindFailure, objects: &Objects) -> Finding {
    let service = objects.services.get(&failure.service);
    Finding::of_unopened_port(&failure.service, failure.address, &failure.error, service.map(AsRef::as_ref))
}
