//! `externalTrafficPolicy: Local` requests that client addresses are kept. Tests the mode of a Service that does not
//! name one.

use tidegate_spec::ForwardingMode::{self, DsrIpip, DsrL2, FullNat, Nat};

use super::*;

/// `web` with policy Local, its port 80 at a target port.
fn local(target: u16) -> Service {
    Service {
        external_traffic_policy: TrafficPolicy::Local,
        ports: vec![service_port("http", Protocol::Tcp, 80, target)],
        ..service("web")
    }
}

fn world(service: Service, forwarding_local: Option<ForwardingMode>) -> World {
    let TargetPort::Number(target) = service.ports[0].target_port else { panic!("a number") };
    let slice = slice("web", "web", &[("http", Protocol::Tcp, target.get())], vec![endpoint("10.0.1.1")]);
    let mut world = World::new(vec![service], vec![slice]);
    world.settings.services.defaults.forwarding_local = forwarding_local;
    world
}

fn lost(outcome: &Outcome) -> bool {
    outcome.findings.iter().any(|finding| finding.reason == Reason::ClientAddressLost)
}

#[test]
fn a_local_service_gets_the_mode_of_forwarding_local() {
    for mode in [Nat, DsrL2, DsrIpip] {
        let outcome = world(local(80), Some(mode)).look();
        assert_eq!((only(&outcome).mode, lost(&outcome)), (mode, false));
    }
    let cluster = Service { external_traffic_policy: TrafficPolicy::Cluster, ..local(80) };
    assert_eq!(only(&world(cluster, Some(Nat)).look()).mode, FullNat);
}

#[test]
fn a_local_service_without_forwarding_local_is_served_with_a_warning() {
    let outcome = world(local(80), None).look();
    assert_eq!((only(&outcome).mode, lost(&outcome)), (FullNat, true));
    // A mode that cannot serve the port would be worse.
    let outcome = world(local(8080), Some(DsrL2)).look();
    assert_eq!(only(&outcome).mode, FullNat);
    assert_eq!(
        messages(&outcome),
        [
            "warning: Service default/web has externalTrafficPolicy Local, and forwarding fullnat replaces its clients' \
             addresses with the gateway's; services.defaults.forwardingLocal dsr-l2 cannot serve this Service: port \
             http has target port 8080, but dsr-l2 cannot change port 80; accepted: services.defaults.forwardingLocal \
             or the annotation tidegate.dev/forwarding: nat, dsr-l2 or dsr-ipip after you prepare the backends, or \
             fullnat to accept that client addresses are lost"
        ]
    );
}

#[test]
fn an_explicit_mode_is_used_without_a_warning() {
    let named = annotated(local(80), "tidegate.dev/forwarding", "fullnat");
    let outcome = world(named, Some(Nat)).look();
    assert_eq!((only(&outcome).mode, lost(&outcome)), (FullNat, false));
    assert!(!lost(&world(local(80), Some(FullNat)).look()));
    let mut by_default = world(local(80), None);
    by_default.settings.services.defaults.forwarding = Nat;
    let outcome = by_default.look();
    assert_eq!((only(&outcome).mode, lost(&outcome)), (Nat, false));
}
