//! Section 7: `spec.externalIPs` with authorisation.

use tidegate_spec::NeighborSpec;

use super::*;

/// `default/web` of a type with these external IPs; `more` is more of its spec.
fn external(addresses: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec:\n  externalIPs: [{addresses}]\n  ports: [{{name: \
         http, port: 80, targetPort: 8080}}]\n{more}---\n"
    )
}

/// Adds a pool that authorises every address outside the other pools.
fn everything_authorised(world: &mut World) {
    let mut everything = pool("everything", &["0.0.0.0/0", "::/0"]);
    everything.external_ips = true;
    world.settings.pools = vec![everything];
}

fn denied(both: &Both) -> String {
    let outcome = both.look();
    assert!(outcome.spec.services.is_empty(), "{:?}", outcome.spec.services);
    let (reason, what, accepted) = finding(&outcome);
    assert_eq!(reason.as_str(), "ExternalIPDenied");
    assert!(accepted.starts_with("an address of a pool with externalIPs: true"), "{accepted}");
    what.to_owned()
}

#[test]
fn external_ips_need_a_pool_that_authorises_them() {
    let outcome = Both::new(&external("198.51.100.1", "")).look();
    assert_eq!(keys(&outcome), ["TCP 198.51.100.1:80"]);
    assert_eq!(
        (outcome.services[0].vips[0].kind, pending(&outcome, "web")),
        (view::VipKind::ExternalIp, None)
    );
    for (address, why) in [
        ("203.0.113.4", "pool public does not authorise external IPs"),
        ("192.0.2.66", "the address is in no pool"),
        ("'2001:db8:1::4'", "pool public does not authorise external IPs"),
    ] {
        let reported = denied(&Both::new(&external(address, "")));
        let address = address.trim_matches('\'');
        assert_eq!(reported, format!("external IP {address} of Service default/web is denied: {why}"));
    }
    let outcome = Both::new(&external("198.51.100.1, 203.0.113.4", "")).look();
    assert_eq!(keys(&outcome), ["TCP 198.51.100.1:80"], "each address is checked separately");
    assert_eq!(finding(&outcome).0, Reason::ExternalIpDenied);
    let no_pool = Both::new(&external("198.51.100.1", "")).with(|world| world.settings.pools.clear());
    assert!(finding(&no_pool.look()).2.ends_with("there is no such pool"));
}

#[test]
fn the_selectors_of_the_pool_decide_whose_external_ips_are_honoured() {
    let selective = |world: &mut World| {
        let edge = world.settings.pools.iter_mut().find(|p| p.name == "edge").expect("there is one");
        edge.service_selector.match_labels.insert("edge".into(), "yes".into());
        edge.namespace_selector.match_labels.insert("team".into(), "net".into());
    };
    let of = |labels: &str, team: &str| {
        let service = external("198.51.100.1", "")
            .replace("{name: web}", &format!("{{name: web, namespace: shop, labels: {{{labels}}}}}"));
        let namespace =
            format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{team: {team}}}}}\n");
        Both::new(&(service + &namespace)).with(selective)
    };
    assert_eq!(keys(&of("edge: 'yes'", "net").look()), ["TCP 198.51.100.1:80"]);
    for both in [of("edge: 'no'", "net"), of("edge: 'yes'", "web"), of("", "net")] {
        assert!(
            denied(&both).ends_with("the selectors of pool edge do not match this Service and its namespace")
        );
    }
}

#[test]
fn never_a_gateways_own_address_a_nodes_or_an_api_servers() {
    let cluster = "apiVersion: v1\nkind: Node\nmetadata: {name: n7}\nstatus: {addresses: [{type: InternalIP, address: \
                   10.0.1.7}, {type: ExternalIP, address: 192.0.2.7}]}\n---\napiVersion: v1\nkind: Service\nmetadata: \
                   {name: kubernetes}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 443}]}\n---\napiVersion: \
                   discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: kubernetes, labels: \
                   {kubernetes.io/service-name: kubernetes}}\naddressType: IPv4\nports: [{port: \
                   6443}]\nendpoints: [{addresses: [10.0.2.1]}]\n---\napiVersion: discovery.k8s.io/v1\nkind: \
                   EndpointSlice\nmetadata: {name: kubernetes-x7k2p, labels: {kubernetes.io/service-name: \
                   kubernetes}}\naddressType: IPv4\nports: [{port: 6443}]\nendpoints: [{addresses: [10.0.2.3]}]\n";
    for (address, whose) in [
        ("10.0.0.1", "an address of the gateway itself"),
        ("10.0.0.3", "an address of the gateway itself"),
        ("'2001:db8::1'", "an address of the gateway itself"),
        ("10.0.1.7", "an address of node n7"),
        ("192.0.2.7", "an address of node n7"),
        ("10.96.0.1", "an address of the API server"),
        ("10.0.2.1", "an address of the API server"),
        ("10.0.2.3", "an address of the API server"),
        ("10.0.2.4", "an address of the API server"),
        ("10.0.0.254", "an address of a router or neighbour in dataplane.routes or dataplane.neighbors"),
        ("10.0.0.253", "an address of a router or neighbour in dataplane.routes or dataplane.neighbors"),
        ("10.0.0.252", "an address of a peer in announce.bgp, flowSharing or dataplane.tunnelPeers"),
    ] {
        let both = Both::new(&(external(address, "") + cluster)).with(|world| {
            everything_authorised(world);
            // The address at which the gateway itself reaches an API server.
            world.objects.api_servers.insert(ip("10.0.2.4"));
            world.settings.peers.insert(ip("10.0.0.252"));
            let network = &mut world.settings.network;
            let to = "0.0.0.0/0".parse().expect("a network");
            network.routes.push(RouteSpec { to, via: ip("10.0.0.254") });
            network.neighbors.push(NeighborSpec { ip: ip("10.0.0.253"), mac: MacAddr([2, 0, 0, 0, 0, 9]) });
        });
        let reported = denied(&both);
        assert!(reported.ends_with(&format!("is denied: it is {whose}")), "{address}: {reported}");
    }
}

/// Only for the directory source: the API source does not request legacy Endpoints.
#[test]
fn an_api_server_behind_legacy_endpoints_is_one_too() {
    let legacy = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: kubernetes}\nsubsets: [{addresses: [{ip: 10.0.2.2}], \
                  ports: [{port: 6443}]}]\n";
    let mut world = World::new(vec![], vec![]);
    world.objects = read(&(external("10.0.2.2", "") + legacy));
    everything_authorised(&mut world);
    assert!(finding(&world.look()).1.ends_with("is denied: it is an address of the API server"));
}

#[test]
fn never_loopback_link_local_or_multicast() {
    for (address, kind) in [
        ("127.0.0.1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("224.0.0.5", "multicast"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("ff02::1", "multicast"),
    ] {
        // An API server refuses the whole object, and so do both sources.
        let reported = refused(&external(&format!("'{address}'"), ""));
        let expected =
            format!("error: spec.externalIPs[0]: {address} is {kind}; accepted: a unicast address of a pool");
        assert_eq!(reported, [expected]);
    }
}

#[test]
fn any_service_type_may_have_external_ips_on_its_service_port() {
    for spec in [
        "  type: ClusterIP\n",
        "  type: NodePort\n",
        "  type: LoadBalancer\n  loadBalancerClass: example.com/other\n",
        "  type: LoadBalancer\n",
    ] {
        let service = external("198.51.100.1", spec);
        let service = if spec.contains("ClusterIP") {
            service
        } else {
            service.replace("targetPort: 8080", "targetPort: 8080, nodePort: 30080")
        };
        let outcome = Both::new(&(service + &slice_of_web("s", "IPv4", &["addresses: [10.1.0.1]"]))).look();
        let external = outcome.spec.services.iter().find(|s| s.key.vip == ip("198.51.100.1"));
        let external = external.unwrap_or_else(|| panic!("{spec}: {:?}", messages(&outcome)));
        assert_eq!((external.key.port, states(external)), (80, vec!["10.1.0.1:8080 active".to_owned()]));
        let is_balanced = spec == "  type: LoadBalancer\n";
        assert_eq!(outcome.spec.services.len(), 1 + usize::from(is_balanced), "{spec}");
        assert_eq!(outcome.claimed.len(), usize::from(is_balanced), "only that type has an ingress status");
    }
}

#[test]
fn ports_of_one_external_ip_belong_to_the_first_service() {
    let service = |name: &str, created: &str, ports: &str| {
        external("198.51.100.1", "")
            .replace("{name: web}", &format!("{{name: {name}, creationTimestamp: '{created}'}}"))
            .replace("[{name: http, port: 80, targetPort: 8080}]", ports)
    };
    let late = service("a", "2026-01-02T00:00:00Z", "[{name: a, port: 80}, {name: b, port: 443}]");
    let early = service("z", "2026-01-01T00:00:00Z", "[{port: 80}]");
    let outcome = Both::new(&(late + &early)).look();
    let served: Vec<String> =
        outcome.spec.services.iter().map(|s| format!("{} {}", s.key.port, s.name)).collect();
    assert_eq!(served, ["80 z", "443 a"]);
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::Conflict);
    assert!(what.ends_with("is not programmed: TCP port 80 belongs to Service default/z"), "{what}");
}
