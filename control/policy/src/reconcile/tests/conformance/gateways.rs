//! Gateways as they are served (Gateway API v1): a listener is a service port, and the weights of its route decide
//! which backends take how many flows.

use super::*;

/// A Gateway with a TCP listener on port 80, and a route to Services `a` (weight `a`), `b` (weight `b`) and `none`
/// (weight `none`, without endpoints). `a` has two endpoints, `b` one.
fn routed(a: u32, b: u32, none: u32) -> String {
    let slice = |name: &str, addresses: &[&str]| {
        let endpoints: String = addresses.iter().map(|ip| format!("{{addresses: ['{ip}']}}, ")).collect();
        format!(
            "
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{ports: [{{port: 8080, targetPort: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 80}}]
endpoints: [{endpoints}]
---
"
        )
    };
    let of = |name: &str, weight: u32| format!("{{name: {name}, port: 8080, weight: {weight}}}");
    let backends = [of("a", a), of("b", b), of("none", none)].join(", ");
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
  infrastructure: {{annotations: {{tidegate.dev/forwarding: nat}}}}
  listeners: [{{name: tcp, port: 80, protocol: TCP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {{name: web, namespace: shop}}
spec: {{parentRefs: [{{name: edge}}], rules: [{{backendRefs: [{backends}]}}]}}
---
{}{}",
        slice("a", &["10.0.1.1", "10.0.1.2"]),
        slice("b", &["10.0.2.1"]),
    )
}

fn fail(world: &mut World, addresses: &[&str]) {
    let failing: Vec<IpAddr> = addresses.iter().map(|address| ip(address)).collect();
    let targets = world.look().targets.into_iter();
    world.verdicts = targets.filter(|target| failing.contains(&target.address.ip())).collect();
}

#[test]
fn a_listener_is_a_service_port_with_the_weights_of_its_route() {
    let both = Both::new(&routed(70, 30, 0));
    let outcome = both.look();
    let spec = only(&outcome);
    assert_eq!((spec.namespace.as_str(), spec.name.as_str()), ("shop", "gateway/edge"));
    assert_eq!((spec.port_name.as_str(), spec.key.port, spec.rejected_ppm), ("tcp", 80, 0));
    // 70 % over two endpoints, 30 % over one.
    assert_eq!(weights(spec), ["10.0.1.1:80 7", "10.0.1.2:80 7", "10.0.2.1:80 6"]);
    // A weight of 0 takes no new flows and keeps the known ones.
    let outcome = Both::new(&routed(1, 0, 0)).look();
    assert_eq!(weights(only(&outcome)), ["10.0.1.1:80 1", "10.0.1.2:80 1"]);
    assert_eq!(states(only(&outcome))[2], "10.0.2.1:80 draining");
}

#[test]
fn the_share_of_a_backend_that_does_not_exist_is_rejected() {
    let outcome = Both::new(&routed(10, 10, 80)).look();
    assert_eq!(only(&outcome).rejected_ppm, 800_000);
    // Without any weight there is no backend, so all flows are rejected.
    let outcome = Both::new(&routed(0, 0, 0)).look();
    assert_eq!(weights(only(&outcome)), Vec::<String>::new());
}

#[test]
fn an_endpoint_that_fails_leaves_its_share_to_those_of_its_service() {
    let mut both = Both::new(&routed(50, 50, 0));
    both.step();
    both.both(|world| fail(world, &["10.0.1.1"]));
    let outcome = both.step();
    assert_eq!(weights(only(&outcome)), ["10.0.1.2:80 1", "10.0.2.1:80 1"]);
    both.both(|world| fail(world, &["10.0.1.1", "10.0.1.2"]));
    let outcome = both.step();
    assert_eq!(only(&outcome).rejected_ppm, 500_000, "no endpoint of `a` takes its half of the flows");
}

#[test]
fn a_change_of_a_backend_service_reaches_the_gateway() {
    let mut both = Both::new(&routed(1, 1, 0));
    assert_eq!(only(&both.step()).backends.len(), 3);
    both.set(
        &routed(1, 1, 0)
            .replace("{addresses: ['10.0.2.1']}, ", "{addresses: ['10.0.2.1']}, {addresses: ['10.0.2.2']}, "),
    );
    assert_eq!(only(&both.step()).backends.len(), 4);
}

#[test]
fn a_port_of_a_listener_set_cannot_deny_the_gateway_its_address() {
    let key = "annotations: {tidegate.dev/allow-shared-ip: k, tidegate.dev/load-balancer-ips: 203.0.113.5}";
    let taken = format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: old, namespace: shop, {key}}}
spec: {{type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{{port: 81}}]}}
---
"
    );
    let mut both = Both::new(&taken);
    both.step();
    let with_set = routed(1, 1, 0)
        .replace("annotations: {tidegate.dev/forwarding: nat}", key)
        .replace("  listeners:", "  allowedListeners: {namespaces: {from: All}}\n  listeners:");
    let set = "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more, namespace: team}
spec:
  parentRef: {name: edge, namespace: shop}
  listeners: [{name: free, port: 82, protocol: TCP}, {name: taken, port: 81, protocol: TCP}]
---
";
    let manifests = taken + &with_set + set;
    both.set(&manifests);
    let outcome = both.step();
    assert_eq!(keys(&outcome), ["TCP 203.0.113.5:80", "TCP 203.0.113.5:81", "TCP 203.0.113.5:82"]);
    let edge = outcome.services.iter().find(|view| view.name == "gateway/edge").expect("a Gateway");
    let refused: Vec<(&str, bool)> =
        edge.ports.iter().map(|port| (port.name.as_str(), port.refused.is_some())).collect();
    assert_eq!(refused, [("tcp", false), ("team/more/free", false), ("team/more/taken", true)]);
    let conflicts = outcome.findings.iter().filter(|finding| finding.reason == Reason::Conflict);
    let [conflict] = &conflicts.collect::<Vec<_>>()[..] else { panic!("{:?}", outcome.findings) };
    assert_eq!(
        conflict.diagnostic.what,
        "TCP port 81 (listener team/more/taken) on address 203.0.113.5 of Gateway shop/edge is not programmed: TCP \
         port 81 belongs to Service shop/old"
    );
    // The listener is not in this object, so there is no better place than the list.
    let place = conflict.diagnostic.location.as_ref().expect("a place in a file");
    let text = manifests.lines().nth(place.line as usize - 1).expect("a line");
    assert!(text.trim_start().starts_with("listeners: [{name: tcp"), "{text}");
}
