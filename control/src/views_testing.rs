//! Views of Services for unit tests: each test changes the fields that it is about.

use std::net::SocketAddr;

use tidegate_policy::reconcile::view::{
    BackendView, BackendViewState, BackendWhy, HealthView, PortView, ServiceView,
};
use tidegate_spec::{ForwardingMode, Protocol};

/// A backend of weight 1 in this state.
pub(crate) fn backend(at: &str, state: BackendViewState) -> BackendView {
    let at: SocketAddr = at.parse().expect("an address and a port");
    BackendView {
        address: at.ip(),
        port: at.port(),
        weight: 1,
        state,
        why: BackendWhy::Ready,
        warm_up_percent: None,
        node: None,
        zone: None,
        pod: None,
        health: HealthView::default(),
    }
}

/// TCP port 80, `http`, of a VIP.
pub(crate) fn port(vip: &str, mode: ForwardingMode, backends: Vec<BackendView>) -> PortView {
    PortView {
        vip: vip.parse().expect("an address"),
        name: "http".into(),
        port: 80,
        protocol: Protocol::Tcp,
        mode,
        app_protocol: None,
        refused: None,
        fail_open: false,
        note: None,
        route: None,
        rejected_ppm: 0,
        backends,
    }
}

/// The Service `shop/NAME`, without a type and without VIPs.
pub(crate) fn service(name: &str, ports: Vec<PortView>) -> ServiceView {
    ServiceView {
        namespace: "shop".into(),
        name: name.into(),
        service_type: None,
        vips: Vec::new(),
        pending: None,
        refused: None,
        unapplied: None,
        warnings: Vec::new(),
        ports,
        mode: None,
        bgp: Default::default(),
        created: None,
        since: None,
    }
}
