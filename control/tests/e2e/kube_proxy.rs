//! Target `node` with the real kube-proxy. A kube-proxy on each node reads the same API server as the gateway, and
//! finds the VIP in the status that the gateway wrote.
//!
//! `make kube-proxy` runs these tests with the kube-proxy that `deploy/tools` pins, in mode nftables, and sets its path
//! in `KUBE_PROXY`. A normal test run skips them, because building the program needs Go. Each test uses one family.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde_json::{Value, json};
use test_apiserver::{ADMIN_TOKEN, Options, TestApiServer};
use tidegate_netlab::addresses::{
    self as plan, Family, GATEWAY_FOR_SERVERS, TCP_ECHO_PORT, UDP_ECHO_PORT, client,
};
use tidegate_netlab::client::{BackendAnswer, EchoConnection, udp_request};
use tidegate_netlab::manifests::{Manifest, PortSpec};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{GatewayOptions, Lab, Namespace, wait_for};

use crate::http::{self, Answer};
use crate::nodes::expect::{assert_every_pod_answered, masqueraded_by, seen, wait_until_weighted};
use crate::nodes::{self, CLUSTER_CIDR, POD_TCP_ECHO_PORT, POD_UDP_ECHO_PORT, Pod, Return, node_name};
use crate::world::{APPLIED, World, alone, assert_alive, lab_with};

const NODES: u8 = 3;
/// The number of Pods on each node. The last node has none.
const PODS: [u8; 3] = [2, 1, 0];
const API_PORT: u16 = 6443;
const HEALTH_NODE_PORT: u16 = 31_500;

/// Long tests, each with a kube-proxy on every node.
mod long {
    use super::*;

    #[test]
    #[ignore = "needs a kube-proxy: make kube-proxy"]
    fn a_real_kube_proxy_serves_what_the_gateway_sends_to_its_node_in_ipv4() {
        let _machine = alone();
        serves(Family::V4);
    }

    #[test]
    #[ignore = "needs a kube-proxy: make kube-proxy"]
    fn a_real_kube_proxy_serves_what_the_gateway_sends_to_its_node_in_ipv6() {
        let _machine = alone();
        serves(Family::V6);
    }

    #[test]
    #[ignore = "needs a kube-proxy: make kube-proxy"]
    fn health_check_node_ports_answer_as_a_real_kube_proxy_does() {
        let _machine = alone();
        let cluster = Cluster::start(Family::V4, &["dsr-l2"], Return::Direct);
        let path = cluster.path(&cluster.services[1]);
        assert!(is_local(&cluster.services[1]));
        wait_until_weighted(&cluster.world, path, &[(1, 2), (2, 1)]);

        // Only the Pods of node-1 remain. The gateway is outside the cluster and reports the same count as that node.
        cluster.set_endpoints(|pod| pod.node == 1);
        wait_until_weighted(&cluster.world, path, &[(1, 2)]);
        cluster.compare_health_answers(2, 200);
        cluster.set_endpoints(|_| false);
        cluster.compare_health_answers(0, 503);

        let theirs = answer(cluster.world.lab.gateway(), plan::server(Family::V4, 1), 10_256, "/healthz");
        let ours = answer(cluster.world.lab.gateway(), IpAddr::from(Ipv4Addr::LOCALHOST), 10_356, "/healthz");
        let (theirs, ours) = (theirs.expect("kube-proxy answers"), ours.expect("the gateway answers"));
        eprintln!("kube-proxy: {:?} {}", theirs.headers, theirs.body);
        assert_eq!((ours.status, theirs.status), (200, 200));
        for key in ["content-type", "x-content-type-options"] {
            assert_eq!(ours.headers.get(key), theirs.headers.get(key), "{key}");
        }
        // The keys must match, also in their order.
        let keys = |body: &str| -> Vec<String> {
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(body).expect("a JSON object");
            let mut keys: Vec<(usize, String)> = object
                .into_iter()
                .map(|(key, _)| (body.find(&format!("\"{key}\"")).expect("it is a key of the body"), key))
                .collect();
            keys.sort();
            keys.into_iter().map(|(_, key)| key).collect()
        };
        assert_eq!(keys(&ours.body), ["lastUpdated", "currentTime", "nodeEligible", "healthy", "status"]);
        assert_eq!(keys(&theirs.body), keys(&ours.body));
    }
}

/// Tests all client traffic through nodes with a kube-proxy, in one family.
fn serves(family: Family) {
    for (modes, back) in [(["dsr-l2", "dsr-ipip"], Return::Direct), (["nat", "fullnat"], Return::Gateway)] {
        let mut cluster = Cluster::start(family, &modes, back);
        let mut open = Vec::new();
        for service in cluster.services.clone() {
            let path = cluster.path(&service);
            let name = format!("{} {family}", service.name);
            let weights: &[(u8, u64)] =
                if is_local(&service) { &[(1, 2), (2, 1)] } else { &[(1, 1), (2, 1), (3, 1)] };
            wait_until_weighted(&cluster.world, path, weights);
            let connections = cluster.connections(path, 60);
            let answers: Vec<BackendAnswer> =
                connections.iter().map(|connection| connection.answer.clone()).collect();
            let datagrams = cluster.datagrams(path, 60);
            for (answers, of) in [(&answers, 1), (&datagrams, 2)] {
                assert_every_pod_answered(&name, answers, &cluster.pods);
                if is_local(&service) {
                    assert_eq!(seen(answers), [path.seen_client(client(family, of))].into(), "{name}");
                } else {
                    assert_eq!(masqueraded_by(path, NODES, answers), [1, 2, 3].into(), "{name}");
                }
            }
            eprintln!("{name}: {} connections and {} datagrams answered", answers.len(), datagrams.len());
            open.extend(connections.into_iter().map(|connection| (path, connection)));
        }
        assert_alive("over nodes with a real kube-proxy", &mut open);

        // Removes its Pods from the slices: the node's own proxy answers 503, and the node gets no new flow.
        cluster.set_endpoints(|pod| pod.node == 1);
        cluster.wait_for_proxies([2, 0, 0]);
        for service in cluster.services.iter().filter(|service| is_local(service)) {
            let path = cluster.path(service);
            wait_until_weighted(&cluster.world, path, &[(1, 2)]);
            let answers: Vec<BackendAnswer> =
                cluster.connections(path, 20).iter().map(|connection| connection.answer.clone()).collect();
            assert!(answers.iter().all(|answer| answer.backend.starts_with("pod-1-")), "{answers:?}");
        }
        cluster.set_endpoints(|_| true);
        cluster.wait_for_proxies(PODS);
        for service in &cluster.services {
            let weights: &[(u8, u64)] =
                if is_local(service) { &[(1, 2), (2, 1)] } else { &[(1, 1), (2, 1), (3, 1)] };
            wait_until_weighted(&cluster.world, cluster.path(service), weights);
        }

        // A dead kube-proxy leaves its rules in place. Its node gets no new flows, and no connection breaks.
        cluster.proxies[0].kill();
        for service in &cluster.services {
            let weights: &[(u8, u64)] = if is_local(service) { &[(2, 1)] } else { &[(2, 1), (3, 1)] };
            wait_until_weighted(&cluster.world, cluster.path(service), weights);
            cluster.connections(cluster.path(service), 10);
        }
        open.retain(|(_, connection)| !connection.answer.backend.starts_with("pod-2-"));
        assert_alive("after a kube-proxy died", &mut open);
    }
}

/// An API server, the gateway, and nodes with one kube-proxy each, in one family.
struct Cluster {
    // The fields are in the order in which they are dropped.
    proxies: Vec<LabProcess>,
    pods: Vec<Pod>,
    services: Vec<Manifest>,
    family: Family,
    world: World,
    api: TestApiServer,
}

impl Cluster {
    /// Creates two Services for each mode: policy Cluster, then Local.
    fn start(family: Family, modes: &[&'static str], back: Return) -> Self {
        let lab = lab_with(NODES, Vec::new());
        let pods = nodes::start(&lab, &PODS, back);
        // The API server runs beside the gateway's daemon. Nodes reach it at the gateway's own address, through DPDK
        // and the kernel.
        let options = Options { listen: (Ipv4Addr::UNSPECIFIED, API_PORT).into(), ..Options::default() };
        let api = lab.gateway().enter(|| TestApiServer::start(options)).expect("the port is free");
        // The namespace of the Lease.
        api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: tidegate-system}}").expect("legal");
        let services: Vec<Manifest> =
            (0..).zip(modes).flat_map(|(n, mode)| services(family, mode, n)).collect();
        api.apply(&nodes::node_objects(NODES)).expect("legal Nodes");
        let kubeconfig = kubeconfig(&api, &lab, "gateway", IpAddr::from(Ipv4Addr::LOCALHOST));
        let options = GatewayOptions { kubeconfig: Some(kubeconfig), ..GatewayOptions::default() };
        for service in &services {
            api.apply(&service.to_yaml()).expect("a legal Service");
        }
        let world = World::over(lab, options, &[], "");
        let mut cluster = Self { proxies: Vec::new(), pods, services, family, world, api };
        cluster.set_endpoints(|_| true);
        for service in &cluster.services {
            wait_for("the gateway to write the VIP", APPLIED, || {
                let vip = service.vips[0].to_string();
                let object = cluster.api.get("v1", "Service", "lab", &service.name)?;
                (object["status"]["loadBalancer"]["ingress"][0]["ip"] == vip).then_some(())
            })
            .unwrap_or_else(|error| panic!("{}: {error:#}", service.name));
        }
        cluster.proxies =
            (1..=NODES).map(|n| kube_proxy(&cluster.world.lab, &cluster.api, family, n)).collect();
        cluster.wait_for_proxies(PODS);
        for service in &cluster.services {
            cluster.wait_until_passing(cluster.path(service));
        }
        cluster
    }

    fn path(&self, service: &Manifest) -> ModePath {
        ModePath {
            service: service.forwarding,
            forwarding: service.forwarding,
            family: self.family,
            backends: self.family,
            vip: service.vips[0],
        }
    }

    /// Publishes the Pods that are endpoints.
    fn set_endpoints(&self, is_endpoint: impl Fn(&Pod) -> bool) {
        let chosen: Vec<&Pod> = self.pods.iter().filter(|pod| is_endpoint(pod)).collect();
        for service in &self.services {
            let endpoints: Vec<Value> = chosen
                .iter()
                .map(|pod| {
                    json!({
                        "addresses": [pod.address(self.family).to_string()], "conditions": {"ready": true},
                        "nodeName": node_name(pod.node),
                    })
                })
                .collect();
            let ports: Vec<Value> = service
                .ports
                .iter()
                .map(|port| json!({"name": port.name, "protocol": port.protocol, "port": port.target_port}))
                .collect();
            self.put(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": format!("{}-1", service.name), "namespace": "lab",
                    "labels": {"kubernetes.io/service-name": service.name}},
                "addressType": self.family.to_string(), "ports": ports, "endpoints": endpoints,
            }));
        }
    }

    /// Waits until every kube-proxy has programmed this many Pods of its node. It reports the number after its rules
    /// are in place.
    fn wait_for_proxies(&self, pods: [u8; 3]) {
        for port in self.services.iter().filter_map(|service| service.health_check_node_port) {
            for (n, count) in (1..).zip(pods) {
                let expected = format!("\"localEndpoints\": {count}");
                // By default, kube-proxy in mode nftables listens at the first address of its node only.
                let address = plan::server(self.family, n);
                let waited = wait_for(&format!("{expected} at node-{n}"), APPLIED, || {
                    answer(self.world.lab.gateway(), address, port, "/")
                        .filter(|answer| answer.body.contains(&expected))
                });
                let proxy = &self.proxies[usize::from(n) - 1];
                waited.unwrap_or_else(|error| panic!("{error:#}\n{}", proxy.log_tail(30)));
            }
        }
    }

    /// Waits until the gateway's checks of all nodes pass. They failed before the kube-proxies were up.
    fn wait_until_passing(&self, path: ModePath) {
        let mut seen = Vec::new();
        let waited = wait_for("the checks of all nodes to pass", APPLIED, || {
            seen = self.world.ports_at(path.vip).ok()?;
            let backends = || seen.iter().flat_map(|port| port["backends"].as_array().into_iter().flatten());
            (backends().count() > 0 && backends().all(|backend| backend["health"]["state"] == "passing"))
                .then_some(())
        });
        waited.unwrap_or_else(|error| panic!("{error:#}; seen last: {seen:?}"));
    }

    fn put(&self, object: Value) {
        self.api.put(object).expect("a legal object");
    }

    fn connections(&self, path: ModePath, count: u8) -> Vec<EchoConnection> {
        let source = SocketAddr::new(client(path.family, 1), 0);
        self.world.lab.client().enter(|| {
            (0..count)
                .map(|_| EchoConnection::connect_here(source, path.tcp_echo()).expect("a node takes it"))
                .collect()
        })
    }

    fn datagrams(&self, path: ModePath, count: u8) -> Vec<BackendAnswer> {
        let source = SocketAddr::new(client(path.family, 2), 0);
        let from = self.world.lab.client();
        (0..count)
            .map(|n| {
                udp_request(from, source, path.udp_echo(), &format!("datagram {n}")).expect("a Pod answers")
            })
            .collect()
    }

    /// Compares the health-check node ports of the gateway and of the kube-proxy of node-1. They must agree in every
    /// byte of the body and every header but the date.
    fn compare_health_answers(&self, endpoints: u32, status: u16) {
        let count = format!("\"localEndpoints\": {endpoints}");
        let request = |of: &str, address: IpAddr| {
            let what = format!("{count} from {of}");
            wait_for(&what, APPLIED, || {
                answer(self.world.lab.gateway(), address, HEALTH_NODE_PORT, "/")
                    .filter(|answer| answer.body.contains(&count))
            })
            .unwrap_or_else(|error| panic!("{error:#}"))
        };
        let theirs = request("kube-proxy", plan::server(Family::V4, 1));
        let ours = request("the gateway", IpAddr::from(Ipv4Addr::LOCALHOST));
        assert_eq!((ours.status, theirs.status), (status, status));
        eprintln!("kube-proxy: {:?}\n{}", theirs.headers, theirs.body);
        let headers = |answer: &Answer| {
            let mut headers = answer.headers.clone();
            headers.remove("date");
            headers
        };
        assert_eq!(headers(&ours), headers(&theirs));
        assert_eq!(ours.body, theirs.body);
    }
}

fn answer(from: &Namespace, host: IpAddr, port: u16, path: &str) -> Option<Answer> {
    http::get(from, &format!("http://{}{path}", SocketAddr::new(host, port)), 5)
}

fn is_local(service: &Manifest) -> bool {
    service.health_check_node_port.is_some()
}

fn services(family: Family, mode: &'static str, number: u16) -> [Manifest; 2] {
    ["cluster", "local"].map(|policy| {
        let place = number * 2 + u16::from(policy == "local");
        let in_plan = u8::try_from(place).expect("few Services");
        let vip = if mode == "dsr-l2" {
            plan::on_link_vip(family, 3 + in_plan)
        } else {
            plan::routed_vip(family, 31 + in_plan)
        };
        let ports = vec![
            PortSpec::tcp("tcp-echo", TCP_ECHO_PORT).to(POD_TCP_ECHO_PORT).at_node_port(30_700 + place),
            PortSpec::udp("echo", UDP_ECHO_PORT).to(POD_UDP_ECHO_PORT).at_node_port(30_800 + place),
        ];
        let mut service = Manifest::new(&format!("{mode}-{policy}"), mode, &[vip], ports);
        service.annotations.push(("tidegate.dev/target", "node".to_owned()));
        service.health_check_node_port = (policy == "local").then_some(HEALTH_NODE_PORT + number);
        service
    })
}

/// A kubeconfig for the API server at `host`.
fn kubeconfig(api: &TestApiServer, lab: &Lab, name: &str, host: IpAddr) -> std::path::PathBuf {
    let mut config: Value = serde_json::from_str(&api.kubeconfig_text(ADMIN_TOKEN)).expect("JSON");
    let cluster = &mut config["clusters"][0]["cluster"];
    cluster["server"] = format!("https://{}", SocketAddr::new(host, API_PORT)).into();
    // The name in its certificate.
    cluster["tls-server-name"] = "127.0.0.1".into();
    let path = lab.directory().join(format!("kubeconfig-{name}"));
    std::fs::write(&path, config.to_string()).expect("kubeconfig written");
    path
}

/// Starts a kube-proxy on a node. It does not change the limits of connection tracking, which apply to the whole
/// machine.
fn kube_proxy(lab: &Lab, api: &TestApiServer, family: Family, n: u8) -> LabProcess {
    let program = std::env::var("KUBE_PROXY").expect("KUBE_PROXY names the program (make kube-proxy)");
    let at = GATEWAY_FOR_SERVERS[Family::V4 as usize].parse().expect("the plan has addresses");
    let own = plan::server(family, n);
    let kubeconfig = kubeconfig(api, lab, &node_name(n), at);
    let arguments = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={}", node_name(n)),
        format!("--bind-address={own}"),
        format!("--healthz-bind-address={}", SocketAddr::new(own, 10_256)),
        format!("--cluster-cidr={}", CLUSTER_CIDR[family as usize]),
        "--metrics-bind-address=127.0.0.1:10249".to_owned(),
        "--proxy-mode=nftables".to_owned(),
        "--conntrack-max-per-core=0".to_owned(),
        "--conntrack-tcp-timeout-established=0".to_owned(),
        "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        "--v=2".to_owned(),
    ];
    let name = format!("kube-proxy-{n}");
    LabProcess::start(lab.server(n).namespace(), lab.directory(), &name, program, &arguments)
        .expect("kube-proxy starts")
}
