//! Tenancy: two namespaces on one gateway. One is hostile and has all rights of a namespace administrator. The other
//! has Services with traffic, which must not be affected.
//!
//! The objects come from an API server, as in clusters whose namespaces have different owners.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use test_apiserver::{Options, TestApiServer};
use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, client};
use tidegate_netlab::client::{EchoConnection, Load};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::world::{APPLIED, World, alone, lab};

/// The namespace of the attacker. The victims are in the lab's own namespace.
const HOSTILE: &str = "mallory";
/// Connections of each path that stay open all the time.
const ESTABLISHED: u8 = 2;
/// The maximum number of endpoints in a slice that an API server accepts.
const SLICE_MAX: usize = 1_000;
/// Ports of each Service of the victims.
const PORTS: usize = 3;
/// The time between two new connections on one path.
const PACE: Duration = Duration::from_millis(100);
/// The address that the older hostile Service received before the victims were created.
const OLDER_VIP: u8 = 99;

/// The victims with their traffic, the attacker's API client, and the gateway.
struct Setup {
    // Declared first, so that the loads end before the lab.
    loads: Vec<(ModePath, Load)>,
    established: Vec<(ModePath, EchoConnection)>,
    world: World,
    api: TestApiServer,
}

#[test]
fn a_hostile_namespace_harms_no_connection_address_or_check_of_another() {
    let _machine = alone();
    let mut setup = Setup::start();
    for (name, attack) in ATTACKS {
        attack(&setup);
        setup.assert_unharmed(name);
        setup.assert_changes_are_seen(name);
    }
    setup.assert_no_new_connection_failed();
    setup.assert_a_dead_backend_is_noticed_in_time();
}

/// One kind of attack.
type Attack = fn(&Setup);

/// The attacks, in sequence. The objects of all attacks stay until the end.
const ATTACKS: [(&str, Attack); 7] = [
    ("Services beyond every limit", Setup::attack_by_size),
    ("objects that are broken in part", Setup::attack_by_broken_objects),
    ("requests for addresses of others", Setup::attack_by_address_requests),
    ("VIPs and gateway addresses as endpoints", Setup::attack_by_endpoints),
    ("thousands of checks that nobody answers", Setup::attack_by_slow_checks),
    ("connections that stay idle on health ports", Setup::attack_by_idle_connections),
    ("changes without end", Setup::attack_by_changes),
];

impl Setup {
    fn start() -> Self {
        let lab = lab(2);
        let api = lab.gateway().enter(|| TestApiServer::start(Options::default())).expect("a free port");
        // The namespace of the Lease.
        api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: tidegate-system}}").expect("legal");
        let kubeconfig = api.kubeconfig(lab.directory()).expect("kubeconfig written");
        // The attacker was here first, but its older object must not get a frontend that another Service has.
        api.put(load_balancer("older", Some(&plan::routed_vip(Family::V4, OLDER_VIP).to_string())))
            .expect("a legal Service");
        for service in victims() {
            api.apply(&service.to_yaml()).expect("a legal Service");
        }
        let options = GatewayOptions {
            kubeconfig: Some(kubeconfig),
            health_interval: Duration::from_secs(3),
            ..GatewayOptions::default()
        };
        let world = World::over(lab, options, &[], "");
        let mut established = Vec::new();
        for path in all_paths() {
            world.wait_until_served(path);
            established.extend((0..ESTABLISHED).map(|n| (path, world.connect(path, n).expect("served"))));
        }
        let load = |path: ModePath| {
            Load::start_at(PACE, world.lab.client(), client(path.family, 7), path.tcp_echo())
        };
        let loads = all_paths().into_iter().map(|path| (path, load(path))).collect();
        let setup = Self { loads, established, world, api };
        setup.wait_for_addresses();
        setup
    }

    // --- expectations for the victims ---

    fn assert_unharmed(&mut self, attack: &str) {
        crate::world::assert_alive(attack, self.established.iter_mut().map(|pair| &mut *pair));
        for service in victims() {
            assert_eq!(self.addresses_of(&service.name), sorted(&service.vips), "{attack}: {}", service.name);
        }
        // Checks every port of every victim for the backends that its owner wrote.
        for path in all_paths() {
            let expected = [1, 2].map(|n| plan::server(path.backends, n).to_string());
            let (label, family) = (path.label(), path.family);
            let kept = wait_for("every port to have its backends", APPLIED, || {
                let ports = self.world.ports_at(path.vip).ok()?;
                // The list also contains ports that other Services requested but did not get.
                let mut own = ports.iter().filter(|port| port["refused"].is_null());
                (own.clone().count() == PORTS && own.all(|port| active_of(port) == expected)).then_some(())
            });
            assert!(kept.is_ok(), "{attack}: {label} {family}: {:#?}", self.world.ports_at(path.vip));
        }
        let probe = |path| self.world.gateway().probe(path);
        for path in ["/livez", "/healthz", "/readyz"] {
            let answered = wait_for(path, APPLIED, || probe(path).filter(|status| *status == 200));
            assert!(answered.is_ok(), "{attack}: {path} says {:?}", probe(path));
        }
    }

    /// Checks that a new Service is served, and a deleted one is withdrawn.
    fn assert_changes_are_seen(&self, attack: &str) {
        let path = late_path();
        let service = Manifest::new(path.service, path.forwarding, &[path.vip], tcp_echo_port())
            .with_endpoints([EndpointSpec::ready(plan::server(path.family, 1))]);
        self.api.apply(&service.to_yaml()).expect("a legal Service");
        let served = wait_for("it", APPLIED, || self.world.connect(path, 0).ok());
        assert!(served.is_ok(), "{attack}: a new Service of others is not served");
        assert!(self.api.delete("discovery.k8s.io/v1", "EndpointSlice", "lab", "late-v4"));
        self.api.delete("v1", "Service", "lab", path.service);
        wait_for("the late Service to be gone", APPLIED, || {
            self.world.ports_at(path.vip).ok().filter(Vec::is_empty)
        })
        .unwrap_or_else(|error| panic!("{attack}: {error:#}"));
    }

    fn assert_no_new_connection_failed(&mut self) {
        let mut failures = String::new();
        for (path, load) in self.loads.drain(..) {
            let attempts = load.finish();
            assert!(!attempts.is_empty(), "{} {} made attempts", path.label(), path.family);
            let failed: Vec<_> = attempts.iter().filter_map(|one| one.outcome.as_ref().err()).collect();
            if let Some(first) = failed.first() {
                let (label, family) = (path.label(), path.family);
                let _ =
                    write!(failures, "\n{label} {family}: {} of {}: {first}", failed.len(), attempts.len());
            }
        }
        assert!(failures.is_empty(), "new connections failed:{failures}");
    }

    /// Checks the detection of a dead backend while the attacker's objects still exist.
    fn assert_a_dead_backend_is_noticed_in_time(&mut self) {
        self.world.lab.server_mut(1).kill();
        let bound = 2 * self.world.options.detection_bound();
        for path in all_paths() {
            let left = plan::server(path.backends, 2).to_string();
            let noticed = wait_for("the dead backend to be noticed", bound, || {
                let ports = self.world.ports_at(path.vip).ok()?;
                let mut own = ports.iter().filter(|port| port["refused"].is_null());
                // UDP without a health check does not detect the failure.
                own.all(|port| port["protocol"] == "UDP" || active_of(port) == [left.clone()]).then_some(())
            });
            let (label, family) = (path.label(), path.family);
            let ports = self.world.ports_at(path.vip);
            assert!(noticed.is_ok(), "{label} {family}, after {bound:?}: {ports:#?}");
        }
    }

    fn wait_for_addresses(&self) {
        for service in victims() {
            let expected = sorted(&service.vips);
            wait_for("the addresses of the victims", APPLIED, || {
                (self.addresses_of(&service.name) == expected).then_some(())
            })
            .unwrap_or_else(|error| panic!("{}: {error:#}", service.name));
        }
    }

    /// The addresses in the status of a victim.
    fn addresses_of(&self, name: &str) -> Vec<String> {
        let service = self.api.get("v1", "Service", "lab", name).unwrap_or_default();
        let ingress = service["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        let mut addresses: Vec<String> =
            ingress.iter().filter_map(|one| one["ip"].as_str().map(str::to_owned)).collect();
        addresses.sort();
        addresses
    }

    // --- attacks ---

    fn attack_by_size(&self) {
        self.put(load_balancer("huge", None));
        for part in 0..66 {
            self.put(slice("huge", part, "TCP", 80, &silent_addresses(part, SLICE_MAX)));
        }
        let external: Vec<String> = (0..256).map(|n| format!("203.0.113.{n}")).collect();
        let ports: Vec<Value> =
            (1..=400).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
        let mut wide = load_balancer("wide", None);
        wide["spec"]["externalIPs"] = json!(external);
        wide["spec"]["ports"] = json!(ports);
        self.put(wide);
        // The attacker gets an event. The caller checks the effect on others.
        for name in ["huge", "wide"] {
            wait_for("an event about the limit", APPLIED, || self.has_event(name, "LimitExceeded"))
                .unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    fn attack_by_broken_objects(&self) {
        let mut broken = load_balancer("broken", None);
        broken["spec"]["loadBalancerIP"] = json!("x");
        broken["metadata"]["annotations"] = json!({
            "tidegate.dev/forwarding": "by-pigeon",
            "tidegate.dev/health-check-interval": "-1s",
            "tidegate.dev/table-size": "many",
            "Example.COM/Upper": "case",
        });
        self.put(broken);
        self.put(slice("broken", 0, "TCP", 0, &["2001:db8::66:1".to_owned()]));
        self.put(slice("nobody", 0, "TCP", 80, &["2001:db8::66:2".to_owned()]));
    }

    fn attack_by_address_requests(&self) {
        let victims = victims();
        let stolen: Vec<String> =
            victims.iter().flat_map(|victim| victim.vips.iter().map(ToString::to_string)).collect();
        for (n, address) in stolen.iter().enumerate() {
            let mut thief = load_balancer(&format!("thief-{n}"), Some(address));
            thief["metadata"]["annotations"]["tidegate.dev/allow-shared-ip"] = json!("everybody");
            self.put(thief);
        }
        // Edits a Service that is older than all victims.
        let v4: Vec<&String> = stolen.iter().filter(|address| address.contains('.')).collect();
        self.edit("older", |service| {
            service["spec"]["externalIPs"] = json!(v4);
            service["metadata"]["annotations"]["tidegate.dev/load-balancer-ips"] = json!(v4[0]);
        });
        // The gateway's own addresses.
        let mut own = load_balancer("own", None);
        own["spec"]["externalIPs"] = json!([plan::GATEWAY_FOR_CLIENTS[0], plan::SNAT[0], "127.0.0.1"]);
        self.put(own);
    }

    fn attack_by_endpoints(&self) {
        self.put(load_balancer("loop", None));
        let vips: Vec<String> = (1..=4).map(|n| plan::routed_vip(Family::V4, n).to_string()).collect();
        let own = [plan::GATEWAY_FOR_SERVERS[0], plan::SNAT[0], "127.0.0.1", "169.254.169.254", "224.0.0.1"];
        let all: Vec<String> = vips.into_iter().chain(own.map(str::to_owned)).collect();
        self.put(slice("loop", 0, "TCP", TCP_ECHO_PORT, &all));
    }

    fn attack_by_slow_checks(&self) {
        let mut slow = load_balancer("slow", None);
        slow["metadata"]["annotations"] = json!({
            "tidegate.dev/health-check-protocol": "udp",
            "tidegate.dev/health-check-interval": "1h",
            "tidegate.dev/health-check-timeout": "1h",
        });
        slow["spec"]["ports"] = json!([{"name": "http", "protocol": "UDP", "port": 53}]);
        slow["spec"]["ipFamilies"] = json!(["IPv6"]);
        self.put(slow);
        for part in 0..6 {
            self.put(slice("slow", part, "UDP", 53, &silent_addresses(100 + part, SLICE_MAX)));
        }
    }

    fn attack_by_idle_connections(&self) {
        // Kept open until the test process exits: the gateway has to close them.
        for address in ["127.0.0.1:10356", "127.0.0.1:9469"] {
            let to: SocketAddr = address.parse().expect("an address");
            let streams: Vec<TcpStream> = self.world.lab.gateway().enter(|| {
                (0..400)
                    .filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_secs(2)).ok())
                    .collect()
            });
            assert!(streams.len() > 100, "{address}: {} connections", streams.len());
            std::mem::forget(streams);
        }
    }

    fn attack_by_changes(&self) {
        for round in 0..300 {
            self.edit("loop", |service| {
                service["metadata"]["annotations"] = json!({"tidegate.dev/weight": round.to_string()});
                service["spec"]["ports"][0]["port"] = json!(1_000 + round);
            });
            self.put(slice("loop", 0, "TCP", 2_000 + round, &silent_addresses(200, 50)));
        }
        for n in 0..100 {
            self.put(load_balancer(&format!("many-{n}"), None));
        }
    }

    fn put(&self, object: Value) {
        let name = object["metadata"]["name"].clone();
        self.api.put(object).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.api
            .edit("v1", "Service", HOSTILE, name, change)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    fn has_event(&self, name: &str, reason: &str) -> Option<()> {
        let events = self.api.list("events.k8s.io/v1", "Event", HOSTILE);
        let mut about = events.iter().filter(|event| event["regarding"]["name"] == name);
        about.any(|event| event["reason"] == reason).then_some(())
    }
}

/// The Services of the lab: every forwarding mode, both families.
fn victims() -> Vec<Manifest> {
    manifests(&[1, 2])
}

fn tcp_echo_port() -> Vec<PortSpec> {
    vec![PortSpec::tcp("tcp-echo", TCP_ECHO_PORT)]
}

/// The backends of a port that take new flows, sorted.
fn active_of(port: &Value) -> Vec<String> {
    let backends = port["backends"].as_array().into_iter().flatten();
    let active = backends.filter(|backend| backend["state"] == "active");
    let mut addresses: Vec<String> =
        active.filter_map(|backend| backend["address"].as_str().map(str::to_owned)).collect();
    addresses.sort();
    addresses
}

/// A Service of the victims that is created and deleted during the test.
fn late_path() -> ModePath {
    let vip = plan::routed_vip(Family::V4, 11);
    ModePath { service: "late", forwarding: "fullnat", family: Family::V4, backends: Family::V4, vip }
}

fn sorted(addresses: &[IpAddr]) -> Vec<String> {
    let mut texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

/// A Service of the attacker that requests an address.
fn load_balancer(name: &str, address: Option<&str>) -> Value {
    let annotations = address.map(|address| json!({"tidegate.dev/load-balancer-ips": address}));
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": HOSTILE, "annotations": annotations.unwrap_or_else(|| json!({}))},
        "spec": {
            "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway",
            "allocateLoadBalancerNodePorts": false, "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        },
    })
}

/// `count` unused addresses on the servers' link, different for each `part`.
fn silent_addresses(part: u16, count: usize) -> Vec<String> {
    let address = |n: usize| {
        let n = u16::try_from(n).expect("a slice has at most 1,000");
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0x66, part, 1 + n).to_string()
    };
    (0..count).map(address).collect()
}

/// An EndpointSlice of the attacker for the port named `http`.
fn slice(service: &str, part: u16, protocol: &str, port: u16, addresses: &[String]) -> Value {
    let family = if addresses[0].contains('.') { "IPv4" } else { "IPv6" };
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-{part}"), "namespace": HOSTILE,
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "ports": [{"name": "http", "protocol": protocol, "port": port}],
        "endpoints": endpoints,
    })
}
