//! Listeners that a Gateway loses: their known flows continue until the drain timeout, as those of a removed Service
//! do. A ListenerSet with its routes is for its team what a Service is.

use tidegate_pipeline::pipeline::FlowNote;
use tidegate_spec::NoEndpoints;
use tidegate_spec::verdict::{PuntReason, TransmitReason, Verdict};
use tidegate_wire::tcp::flags;

use super::packets::{Gateways, connected, segment};
use super::*;

/// Gateway `shop/edge` at 203.0.113.5 with these listeners; `more` is more of its spec.
fn edge(mode: &str, listeners: &str, more: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: tidegate}}
spec: {{controllerName: tidegate.dev/gateway}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec:
  gatewayClassName: tidegate
  addresses: [{{type: IPAddress, value: 203.0.113.5}}]
  infrastructure:
    annotations:
      tidegate.dev/forwarding: {mode}
      tidegate.dev/drain-timeout: 60s
      tidegate.dev/allow-shared-ip: web
  listeners: [{listeners}]
{more}
---
"
    )
}

/// [`edge`] with a listener on port 90, and ListenerSets from namespaces that `from` admits.
fn edge_for_sets(mode: &str, from: &str) -> String {
    edge(
        mode,
        "{name: own, port: 90, protocol: TCP}",
        &format!("  allowedListeners: {{namespaces: {{from: {from}}}}}"),
    )
}

/// Service `NAMESPACE/web` with endpoints at `network`.1 and `network`.2, and a TCPRoute of `parent` to it.
fn backends(namespace: &str, parent: &str, network: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: {namespace}}}
spec: {{ports: [{{port: 8080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [{network}.1]}}, {{addresses: [{network}.2]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {{name: web, namespace: {namespace}}}
spec: {{parentRefs: [{{{parent}}}], rules: [{{backendRefs: [{{name: web, port: 8080}}]}}]}}
---
"
    )
}

/// ListenerSet `NAMESPACE/more` with a listener on port 80, and [`backends`] for it.
fn listener_set(namespace: &str, network: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {{name: more, namespace: {namespace}}}
spec:
  parentRef: {{name: edge, namespace: shop}}
  listeners: [{{name: web, port: 80, protocol: TCP}}]
---
{}",
        backends(namespace, "kind: ListenerSet, name: more", network)
    )
}

/// Asserts that these flows continue to their backends.
fn continue_all(gateways: &mut Gateways, flows: &[(u16, IpAddr)], when: &str) {
    for (port, had) in flows {
        let result = segment(gateways, *port, flags::ACK);
        result.sent(TransmitReason::Forward);
        assert_eq!((gateways.backend_of(&result), result.note.flow), (*had, FlowNote::Known), "{when}");
    }
}

/// Asserts that new flows go to backends of this network.
fn new_flows_reach(gateways: &mut Gateways, ports: std::ops::Range<u16>, network: &str) {
    for port in ports {
        let result = segment(gateways, port, flags::SYN);
        result.sent(TransmitReason::Forward);
        let backend = gateways.backend_of(&result);
        assert!(backend.to_string().starts_with(network), "{backend}");
    }
}

#[test]
fn a_lost_listener_set_keeps_its_flows_and_owns_them_when_it_returns() {
    for mode in ["nat", "fullnat"] {
        let set = listener_set("team", "10.1.0");
        let here = edge_for_sets(mode, "All") + &set;
        let mut gateways = Gateways::new(Both::new(&here));
        let flows = connected(&mut gateways, 40_000..40_020);
        let disallowed = edge_for_sets(mode, "None") + &set;
        let without_set = edge_for_sets(mode, "All");
        for (lost, first_new) in [(&disallowed, 41_000), (&without_set, 42_000)] {
            gateways.set(lost);
            continue_all(&mut gateways, &flows, "lost");
            segment(&mut gateways, first_new, flags::SYN).sent(TransmitReason::NoService);
            gateways.wait(Duration::from_secs(50));
            continue_all(&mut gateways, &flows, "lost for some time");
            gateways.set(&here);
            continue_all(&mut gateways, &flows, "back");
            new_flows_reach(&mut gateways, first_new + 1..first_new + 10, "10.1.0.");
        }
        gateways.set(&disallowed);
        gateways.wait(Duration::from_secs(61));
        segment(&mut gateways, 40_000, flags::ACK).sent(TransmitReason::NoService);
        gateways.set(&here);
        segment(&mut gateways, 40_000, flags::ACK).sent(TransmitReason::NoFlow);
    }
}

#[test]
fn a_lost_listener_is_forgotten_after_the_drain_timeout() {
    let (own, web) = ("{name: own, port: 90, protocol: TCP}", "{name: web, port: 80, protocol: TCP}");
    let of_shop = backends("shop", "name: edge, sectionName: web", "10.1.0");
    let with = |listeners: &str| edge("nat", listeners, "") + &of_shop;
    let mut both = Both::new(&with(&format!("{own}, {web}")));
    assert_eq!(keys(&both.step()), ["TCP 203.0.113.5:80", "TCP 203.0.113.5:90"]);
    both.set(&with(own));
    let outcome = both.step();
    assert_eq!(keys(&outcome), ["TCP 203.0.113.5:80", "TCP 203.0.113.5:90"]);
    let lost = &outcome.spec.services[0];
    assert_eq!(lost.no_endpoints, NoEndpoints::Unserved);
    assert_eq!(states(lost), ["10.1.0.1:8080 draining", "10.1.0.2:8080 draining"]);
    assert_eq!(outcome.services[0].ports.len(), 1, "it is not shown");
    assert_eq!(outcome.reconcile_at, Some(Duration::from_secs(160)));
    both.both(|world| world.now = Duration::from_secs(159));
    assert_eq!(both.step().spec.services.len(), 2, "nothing extends or shortens the time");
    both.both(|world| world.now = Duration::from_secs(160));
    let outcome = both.step();
    assert_eq!(keys(&outcome), ["TCP 203.0.113.5:90"]);
    assert_eq!(outcome.reconcile_at, None);
}

#[test]
fn a_gateway_that_is_not_accepted_for_a_time_keeps_its_flows() {
    let of_shop = backends("shop", "name: edge", "10.1.0");
    let assigned = "status: {addresses: [{type: IPAddress, value: 203.0.113.5}]}";
    for status in [assigned, ""] {
        let with = |protocol: &str| {
            edge("nat", &format!("{{name: web, port: 80, protocol: {protocol}}}"), status) + &of_shop
        };
        let mut gateways = Gateways::new(Both::new(&with("TCP")));
        let flows = connected(&mut gateways, 40_000..40_020);
        // A gateway that starts now shows it, and gives it no address.
        let fresh = Both::new(&with("HTTP")).look();
        assert!(fresh.services.len() == 1 && fresh.services[0].vips.is_empty());
        gateways.set(&with("HTTP"));
        continue_all(&mut gateways, &flows, "not accepted");
        let new = segment(&mut gateways, 41_000, flags::SYN).verdict;
        assert_eq!(new, Verdict::Punt(PuntReason::NotOurs), "no port of its address is served");
        gateways.wait(Duration::from_secs(50));
        continue_all(&mut gateways, &flows, "not accepted for some time");
        gateways.set(&with("TCP"));
        continue_all(&mut gateways, &flows, "accepted again");
        new_flows_reach(&mut gateways, 42_000..42_010, "10.1.0.");
        gateways.set(&with("HTTP"));
        gateways.wait(Duration::from_secs(61));
        let late = segment(&mut gateways, 40_000, flags::ACK).verdict;
        assert_eq!(late, Verdict::Punt(PuntReason::NotOurs), "the drain is over");
    }
}

#[test]
fn a_port_of_a_lost_listener_can_move_to_another_listener() {
    let here = edge_for_sets("nat", "All") + &listener_set("team", "10.1.0");
    let lost = edge_for_sets("nat", "All");
    let other = lost.clone() + &listener_set("zoo", "10.2.0");
    // With and without a time in which nobody has the port.
    for is_free_meanwhile in [false, true] {
        let mut gateways = Gateways::new(Both::new(&here));
        let flows = connected(&mut gateways, 40_000..40_020);
        if is_free_meanwhile {
            gateways.set(&lost);
            continue_all(&mut gateways, &flows, "lost");
        }
        gateways.set(&other);
        new_flows_reach(&mut gateways, 41_000..41_020, "10.2.0.");
        if !is_free_meanwhile {
            continue_all(&mut gateways, &flows, "the port was served all the time");
            continue;
        }
        for (port, _) in flows {
            segment(&mut gateways, port, flags::ACK).sent(TransmitReason::NoFlow);
        }
    }
}

#[test]
fn a_port_of_a_lost_listener_can_move_to_a_service() {
    let here = edge_for_sets("nat", "All") + &listener_set("team", "10.1.0");
    let lost = edge_for_sets("nat", "All");
    let metadata =
        "name: web, annotations: {tidegate.dev/forwarding: nat, tidegate.dev/allow-shared-ip: web}";
    let service = service_with(metadata, "  loadBalancerIP: 203.0.113.5\n")
        + &slice_of_web("web-1", "IPv4", &["addresses: [10.3.0.1]"]);
    let other = (lost.clone() + &service)
        .replace("{name: web, annotations", "{name: web, namespace: shop, annotations")
        .replace("{name: web-1, labels", "{name: web-1, namespace: shop, labels");
    let mut gateways = Gateways::new(Both::new(&here));
    let flows = connected(&mut gateways, 40_000..40_020);
    gateways.set(&lost);
    continue_all(&mut gateways, &flows, "lost");
    gateways.set(&other);
    new_flows_reach(&mut gateways, 41_000..41_020, "10.3.0.");
    for (port, _) in &flows {
        segment(&mut gateways, *port, flags::ACK).sent(TransmitReason::NoFlow);
    }
    gateways.set(&here);
    segment(&mut gateways, flows[0].0, flags::ACK).sent(TransmitReason::NoFlow);
    new_flows_reach(&mut gateways, 42_000..42_020, "10.1.0.");
}
