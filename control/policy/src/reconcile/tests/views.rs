//! The JSON of views. Scripts read it, so every name in it is part of the interface.

use serde_json::json;
use tidegate_spec::{ForwardingMode, Protocol};

use super::view::{EdgeView, PortRefusal, PortView, RefusalReason, ServiceView, VipKind, VipView};
use super::*;

fn port_view(protocol: Protocol, mode: ForwardingMode, refused: Option<PortRefusal>) -> PortView {
    PortView {
        vip: ip("203.0.113.1"),
        name: "http".into(),
        port: 80,
        protocol,
        mode,
        app_protocol: None,
        refused,
        fail_open: false,
        note: None,
        route: None,
        rejected_ppm: 0,
        backends: vec![],
    }
}

fn service_view(service_type: Option<ServiceType>, vips: Vec<VipView>, ports: Vec<PortView>) -> ServiceView {
    ServiceView {
        namespace: "shop".into(),
        name: "web".into(),
        service_type,
        vips,
        pending: None,
        refused: None,
        unapplied: None,
        warnings: vec![],
        ports,
        mode: None,
        bgp: Default::default(),
        created: None,
        since: None,
    }
}

#[test]
fn json_contains_enums_by_name_and_a_refusal_by_its_message() {
    let kinds = [VipKind::LoadBalancer, VipKind::ExternalIp, VipKind::NodePort, VipKind::ClusterIp];
    let vips = kinds.map(|kind| VipView {
        address: ip("203.0.113.1"),
        kind,
        pool: "public".into(),
        edge: EdgeView::default(),
    });
    let refusal = PortRefusal::new(RefusalReason::Conflict, "another Service has this port");
    let ports = vec![
        port_view(Protocol::Tcp, ForwardingMode::DsrL2, None),
        port_view(Protocol::Udp, ForwardingMode::DsrIpip, None),
        port_view(Protocol::Sctp, ForwardingMode::Nat, Some(refusal)),
        port_view(Protocol::Tcp, ForwardingMode::FullNat, None),
    ];
    let vip = |kind: &str| json!({"address": "203.0.113.1", "kind": kind, "pool": "public"});
    let port = |protocol: &str, mode: &str| {
        json!({
            "vip": "203.0.113.1", "name": "http", "port": 80, "protocol": protocol, "mode": mode, "backends": [],
        })
    };
    let mut refused = port("SCTP", "nat");
    refused["refused"] = json!("another Service has this port");
    let shown = ["LoadBalancer", "ExternalIP", "NodePort", "ClusterIP"].map(vip);
    let expected = json!({
        "namespace": "shop",
        "name": "web",
        "type": "LoadBalancer",
        "vips": shown,
        "ports": [port("TCP", "dsr-l2"), port("UDP", "dsr-ipip"), refused, port("TCP", "fullnat")],
    });
    let view = service_view(Some(ServiceType::LoadBalancer), vips.into(), ports);
    let json = serde_json::to_value(&view).expect("JSON");
    assert_eq!(json, expected);

    let read: ServiceView = serde_json::from_value(json.clone()).expect("a view");
    assert_eq!(
        serde_json::to_value(&read).expect("JSON"),
        json,
        "reading and writing again gives the same JSON"
    );
    let refusal = read.ports[2].refused.as_ref().expect("it is refused");
    assert_eq!(refusal.reason, RefusalReason::NotProgrammed, "JSON has only the message");

    let types = [
        (Some(ServiceType::ClusterIp), "ClusterIP"),
        (Some(ServiceType::NodePort), "NodePort"),
        (Some(ServiceType::LoadBalancer), "LoadBalancer"),
        (Some(ServiceType::ExternalName), "ExternalName"),
        (None, ""),
    ];
    for (service_type, name) in types {
        let view = service_view(service_type, vec![], vec![]);
        let json = serde_json::to_value(&view).expect("JSON");
        assert_eq!(json["type"], name);
        assert_eq!(serde_json::from_value::<ServiceView>(json).expect("a view"), view);
    }
}

#[test]
fn an_unknown_name_in_json_is_refused_with_the_accepted_ones() {
    let view = service_view(None, vec![], vec![port_view(Protocol::Tcp, ForwardingMode::Nat, None)]);
    let mut json = serde_json::to_value(&view).expect("JSON");
    json["ports"][0]["mode"] = json!("dsr-l3");
    let error = serde_json::from_value::<ServiceView>(json).expect_err("no such mode");
    assert_eq!(
        error.to_string(),
        "\"dsr-l3\" is not accepted; accepted: dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat"
    );
}
