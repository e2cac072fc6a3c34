//! Section 4: objects from both sources are reconciled, and the answers are read from real sockets, as a load balancer
//! or kubelet does.
//!
//! [`Listening`] is the two gateways of [`Both`] with their real listeners: the gateway of the directory on 127.0.0.1, the
//! gateway of the API server on 127.0.0.2.

use tidegate_health::health_check_node_port::{Bind, Clients, HealthCheckNodePorts, ProxyHealth};

use super::*;
use jiff::Timestamp;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(super) const LOOPBACK: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
/// The maximum wait for an update.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Both gateways with the listeners of their health-check node ports.
struct Listening {
    both: Both,
    health: Arc<ProxyHealth>,
    /// The daemon's clock.
    now: Arc<Mutex<Duration>>,
    listeners: [HealthCheckNodePorts; 2],
}

impl Listening {
    fn new(both: Both) -> Self {
        let health = Arc::new(ProxyHealth::new(TIMEOUT, Timestamp::UNIX_EPOCH));
        health.applied(Timestamp::UNIX_EPOCH);
        let now = Arc::new(Mutex::new(Duration::ZERO));
        let listeners = LOOPBACK.map(|own| {
            let (health, now) = (Arc::clone(&health), Arc::clone(&now));
            let report =
                move || health.report(*now.lock().expect("no panic with the lock"), Timestamp::UNIX_EPOCH);
            HealthCheckNodePorts::start(&Bind::Only(vec![ip(own)]), Clients::default(), report)
        });
        let mut listening = Self { both, health, now, listeners };
        listening.publish();
        listening
    }

    fn set(&mut self, yaml: &str) {
        self.both.set(yaml);
        self.publish();
    }

    fn publish(&mut self) {
        for (listeners, outcome) in self.listeners.iter().zip(self.both.step_each()) {
            listeners.set(outcome.health_check_node_ports.to_vec());
        }
    }

    fn wait(&self, time: Duration) {
        *self.now.lock().expect("no panic with the lock") += time;
    }

    /// The answer of both gateways, once it contains `part`. Listeners open and apply changes in their own task.
    async fn answer(&self, port: u16, request: &str, part: &str) -> String {
        let [directory, api] = LOOPBACK.map(|own| until(SocketAddr::new(ip(own), port), request, part));
        let (directory, api) = (directory.await, api.await);
        assert_eq!(directory, api);
        directory
    }

    /// Waits until both ports are closed.
    async fn closed(&self, port: u16) {
        for own in LOOPBACK {
            let closing = async {
                while TcpStream::connect((ip(own), port)).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), closing).await.expect("it closes");
        }
    }
}

/// Repeats the request until the answer contains `part`. Returns the answer without its `Date`, which changes with
/// time.
pub(super) async fn until(address: SocketAddr, request: &str, part: &str) -> String {
    let polling = async {
        loop {
            if let Ok(answer) = exchange(address, request).await
                && answer.contains(part)
            {
                return answer.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), polling)
        .await
        .unwrap_or_else(|_| panic!("no answer with {part}"))
}

async fn exchange(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// A port that is currently free on both addresses, and that no other test gets. Not one of those that the kernel gives to
/// clients (32768 and up): tests that run meanwhile connect all the time.
async fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Other processes that run these tests begin elsewhere.
    let begin = std::process::id() % 100 * 100;
    loop {
        let taken = u32::from(TAKEN.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(20_000 + (begin + taken) % 10_000).expect("below 30,000");
        let one = TcpListener::bind((LOOPBACK[0], port)).await;
        if one.is_ok() && TcpListener::bind((LOOPBACK[1], port)).await.is_ok() {
            return port;
        }
    }
}

/// `default/web` with policy Local, the ports `http` and `https`, and a health-check node port.
fn local(port: u16) -> String {
    web(&format!("  externalTrafficPolicy: Local\n  healthCheckNodePort: {port}\n")).replace(
        "ports: [{name: http, port: 80, targetPort: 8080}]",
        "ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]",
    )
}

/// Endpoints of both ports.
fn endpoints(endpoints: &[&str]) -> String {
    slice_of_web("s", "IPv4", endpoints)
        .replace("port: 8080}]", "port: 8080}, {name: https, protocol: TCP, port: 8443}]")
}

const TWO: [&str; 2] = ["addresses: [10.1.0.1], nodeName: a", "addresses: [10.1.0.2], nodeName: b"];
const LEAVING: &str =
    "addresses: [10.1.0.1], nodeName: a, conditions: {ready: false, serving: true, terminating: true}";

fn counted(answer: &str) -> String {
    let (_, rest) = answer.split_once("\"localEndpoints\": ").expect("it is in the body");
    rest.split(',').next().expect("a number").to_owned()
}

#[test]
fn every_local_load_balancer_service_has_its_health_check_node_port() {
    let ports = |yaml: &str| Both::new(yaml).look().health_check_node_ports.len();
    assert_eq!(ports(&local(30_500)), 1);
    let other_class = local(30_500)
        .replace("type: LoadBalancer\n", "type: LoadBalancer\n  loadBalancerClass: example.com/lb\n");
    assert_eq!(ports(&other_class), 0, "other controllers serve health-check node ports of their Services");
    let node_port = other_class.replace("targetPort: 8080}", "targetPort: 8080, nodePort: 30080}");
    let serving = Both::new(&node_port).with(|world| {
        world.settings.services.node_port_addresses = vec!["0.0.0.0/0".parse().expect("a network")];
    });
    assert_eq!(serving.look().health_check_node_ports.len(), 1, "the gateway serves its node port");
    for (spec, why) in [
        ("  externalTrafficPolicy: Cluster\n", "policy Cluster"),
        ("  externalTrafficPolicy: Local\n  healthCheckNodePort: 0\n", "the directory assigns one"),
    ] {
        let outcome = |objects: Objects| {
            let mut world = World::new(vec![], vec![]);
            world.objects = objects;
            world.look().health_check_node_ports.len()
        };
        let api = outcome(tidegate_source::kubernetes::testing::objects_of(&web(spec)));
        let directory = outcome(read(&web(spec)));
        assert_eq!((api, directory), (0, usize::from(spec.contains("Local"))), "{why}");
    }
    let text = refused(&web("  healthCheckNodePort: 30500\n"));
    assert!(
        text[0].contains("valid only with type LoadBalancer and externalTrafficPolicy Local"),
        "{text:?}"
    );
}

#[tokio::test]
async fn it_listens_on_all_addresses_or_those_in_node_port_addresses() {
    let report =
        || ProxyHealth::new(TIMEOUT, Timestamp::UNIX_EPOCH).report(Duration::ZERO, Timestamp::UNIX_EPOCH);
    let own = LOOPBACK.map(ip);
    for networks in [vec![], vec!["127.0.0.2/32".parse().expect("a network")]] {
        for source in [0, 1] {
            // Each gateway gets its own port, because both would listen on all addresses.
            let port = free_port().await;
            let both = Both::new(&(local(port) + &endpoints(&TWO)))
                .with(|world| world.settings.services.node_port_addresses = networks.clone());
            let listeners =
                HealthCheckNodePorts::start(&Bind::new(&networks, own), Clients::default(), report);
            listeners.set(both.each()[source].health_check_node_ports.to_vec());
            until(SocketAddr::new(own[1], port), GET, "200 OK").await;
            let first = SocketAddr::new(own[0], port);
            if networks.is_empty() {
                until(first, GET, "200 OK").await;
                if TcpListener::bind(("::1", 0)).await.is_ok() {
                    until(SocketAddr::new(ip("::1"), port), GET, "200 OK").await;
                }
            } else {
                assert!(TcpStream::connect(first).await.is_err(), "not among them");
            }
        }
    }
}

#[tokio::test]
async fn the_answer_is_byte_for_byte_equal_for_any_path_and_method() {
    let port = free_port().await;
    let mut listening = Listening::new(Both::new(&(local(port) + &endpoints(&TWO))));
    let answer = listening.answer(port, GET, "200 OK").await;
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: 2\r\nContent-Length: 114\r\nConnection: close\r\n\r\n\
         {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
    );
    for head in ["POST /any/path?x=1", "PUT /healthz", "DELETE /x", "OPTIONS /"] {
        let request = format!("{head} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert_eq!(listening.answer(port, &request, "200 OK").await, answer, "{head}");
    }
    listening.set(&local(port));
    assert_eq!(
        listening.answer(port, GET, "503 Service Unavailable").await,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: 0\r\nContent-Length: 114\r\nConnection: close\r\n\r\n\
         {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}",
        "the weight is there with 503 too"
    );
}

#[tokio::test]
async fn n_counts_distinct_ready_ips_on_the_node_or_all_for_an_appliance() {
    let port = free_port().await;
    let yaml = local(port) + &endpoints(&TWO);
    let mut listening = Listening::new(Both::new(&yaml));
    assert_eq!(counted(&listening.answer(port, GET, "200 OK").await), "2", "an IP with two ports is 1");
    let failing = |world: &mut World, addresses: &[&str]| {
        let targets = reconcile(&world.input()).targets;
        let fails =
            |target: &tidegate_model::health::Target| addresses.iter().any(|a| ip(a) == target.address.ip());
        world.verdicts = targets.into_iter().filter(fails).collect();
    };
    listening.both.both(|world| failing(world, &["10.1.0.2"]));
    listening.publish();
    listening.answer(port, GET, "\"localEndpoints\": 1,").await;
    listening.both.both(|world| failing(world, &["10.1.0.1", "10.1.0.2"]));
    listening.publish();
    listening.answer(port, GET, "\"localEndpoints\": 0,").await;
    assert_eq!(
        weights(&listening.both.look().spec.services[0]).len(),
        2,
        "though none is set aside: others may do better"
    );
    listening.both.both(|world| {
        world.verdicts = Verdicts::default();
        world.settings.node = Some("b".into());
    });
    listening.publish();
    listening.answer(port, GET, "\"localEndpoints\": 1,").await;
    listening.both.both(|world| world.settings.node = Some("c".into()));
    listening.publish();
    listening.answer(port, GET, "\"localEndpoints\": 0,").await;
}

#[test]
fn an_endpoint_that_is_refused_does_not_count_on_its_node_either() {
    let service = local(30_500)
        .replace("  externalTrafficPolicy", "  loadBalancerIP: 203.0.113.4\n  externalTrafficPolicy");
    let counted = |address: &str| {
        let here = format!("addresses: [{address}], nodeName: a");
        let yaml = service.clone() + &endpoints(&[here.as_str(), "addresses: [10.1.0.9], nodeName: b"]);
        let both = Both::new(&yaml).with(|world| world.settings.node = Some("a".into()));
        both.look().health_check_node_ports[0].local_endpoints
    };
    assert_eq!(counted("10.1.0.1"), 1);
    for (refused, why) in [
        ("203.0.113.4", "a VIP"),
        ("10.0.0.1", "an address of the gateway, as a Pod with hostNetwork has it"),
        ("10.0.0.0", "the network address of the gateway's network"),
        ("10.0.255.255", "its broadcast address"),
    ] {
        assert_eq!(counted(refused), 0, "{why}");
    }
}

#[tokio::test]
async fn terminating_endpoints_do_not_count_so_the_port_answers_503() {
    for node in [None, Some("a")] {
        let port = free_port().await;
        let both = Both::new(&(local(port) + &endpoints(&TWO[..1])));
        let mut listening = Listening::new(both.with(|world| world.settings.node = node.map(str::to_owned)));
        listening.answer(port, GET, "200 OK").await;
        listening.set(&(local(port) + &endpoints(&[LEAVING])));
        let answer = listening.answer(port, GET, "503 Service Unavailable").await;
        assert_eq!(counted(&answer), "0");
        let outcome = listening.both.look();
        let served = outcome.spec.services.first().expect("it is served");
        assert_eq!(states(served), ["10.1.0.1:8080 active"], "it still serves: there is no other");
    }
}

#[test]
fn with_target_node_an_appliance_counts_endpoints_on_reachable_nodes() {
    let annotations = "tidegate.dev/target: node, tidegate.dev/forwarding: dsr-l2";
    let yaml = with_annotations(&local(30_500), annotations)
        + &endpoints(&TWO)
        + &node_yaml("a", &["10.0.1.1"], "")
        + &node_yaml("b", &["10.0.1.2"], "");
    let both = Both::new(&yaml);
    assert_eq!(both.look().health_check_node_ports[0].local_endpoints, 2);
    let without_b = both.with(|world| {
        let targets = reconcile(&world.input()).targets;
        world.verdicts = targets.into_iter().filter(|target| target.address.ip() == ip("10.0.1.2")).collect();
    });
    assert_eq!(without_b.look().health_check_node_ports[0].local_endpoints, 1);
}

#[tokio::test]
async fn the_proxy_is_healthy_if_all_workers_run_and_apply_snapshots_in_time() {
    let port = free_port().await;
    let listening = Listening::new(Both::new(&(local(port) + &endpoints(&TWO))));
    listening.health.update_queued(Duration::ZERO);
    listening.wait(TIMEOUT);
    listening.answer(port, GET, "200 OK").await;
    listening.wait(Duration::from_millis(1));
    let answer = listening.answer(port, GET, "503 Service Unavailable").await;
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 2\r\n"), "{answer}");
    assert!(answer.ends_with("\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n}"), "{answer}");
    listening.health.applied(Timestamp::UNIX_EPOCH);
    listening.answer(port, GET, "200 OK").await;
    listening.health.set_workers_run(false);
    listening.answer(port, GET, "503 Service Unavailable").await;
}

#[tokio::test]
async fn the_port_closes_if_the_policy_changes_or_the_service_is_removed() {
    let port = free_port().await;
    let slices = endpoints(&TWO);
    let mut listening = Listening::new(Both::new(&(local(port) + &slices)));
    listening.answer(port, GET, "200 OK").await;
    listening.set(&(web("  externalTrafficPolicy: Cluster\n") + &slices));
    listening.closed(port).await;
    listening.set(&(local(port) + &slices));
    listening.answer(port, GET, "200 OK").await;
    listening.set(&slices);
    listening.closed(port).await;
}

#[tokio::test]
async fn a_port_that_cannot_be_bound_is_an_event_and_is_retried() {
    let number = free_port().await;
    let first = TcpListener::bind((LOOPBACK[0], number)).await.expect("it is free");
    let second = TcpListener::bind((LOOPBACK[1], number)).await.expect("it is free");
    let fine = free_port().await;
    let unlucky = local(number).replace("metadata: {name: web}", "metadata: {name: unlucky}");
    let listening = Listening::new(Both::new(&(unlucky + &local(fine) + &endpoints(&TWO))));
    listening.answer(fine, GET, "200 OK").await;
    for (listeners, own) in listening.listeners.iter().zip(LOOPBACK) {
        let mut failures = listeners.failures();
        let failed =
            tokio::time::timeout(Duration::from_secs(10), failures.wait_for(|list| !list.is_empty()));
        let failure = failed.await.expect("it is reported").expect("the task lives")[0].clone();
        let finding = Finding::of_unopened_port(&failure.service, failure.address, &failure.error, None);
        assert_eq!(finding.reason.as_str(), "FailedToStartServiceHealthcheck");
        let expected =
            format!("healthCheckNodePort {number} of Service default/unlucky cannot be served on {own}: ");
        assert!(finding.diagnostic.what.starts_with(&expected), "{}", finding.diagnostic);
    }
    drop((first, second));
    tokio::time::pause(); // From here on, only the timer of the retry advances the time.
    for listeners in &listening.listeners {
        let mut failures = listeners.failures();
        failures.wait_for(Vec::is_empty).await.expect("the task lives");
    }
    tokio::time::resume();
    listening.answer(number, GET, "503 Service Unavailable").await;
}

#[test]
fn a_contested_health_check_node_port_stays_with_the_first_service() {
    let yaml = local(30_500) + &local(30_500).replace("metadata: {name: web}", "metadata: {name: a}");
    let outcome = |objects: Objects| {
        let mut world = World::new(vec![], vec![]);
        world.objects = objects;
        world.look()
    };
    // The directory replaces the API server, which would have refused the second Service.
    let (objects, report) = load(&yaml);
    let directory = outcome(objects);
    assert!(report.errors().any(|fault| fault.what.contains("30500")), "{report}");
    let api = outcome(tidegate_source::kubernetes::testing::objects_of(&yaml));
    assert_eq!(directory.health_check_node_ports[0], api.health_check_node_ports[0]);
    assert_eq!(api.health_check_node_ports.len(), 1);
    assert_eq!(api.health_check_node_ports[0].service.name, "a");
    let reported = api.findings.iter().find(|f| f.reason == Reason::FailedToStartServiceHealthcheck);
    let what = &reported.expect("it is reported").diagnostic.what;
    assert!(what.contains("healthCheckNodePort 30500 of Service default/web is not served"), "{what}");
}
