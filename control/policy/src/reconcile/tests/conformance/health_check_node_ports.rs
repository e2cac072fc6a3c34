//! Section 4: objects from both sources are reconciled, and the answers are read from real sockets, as a load balancer
//! or kubelet does.
//!
//! [`Asked`] is the two gateways of [`Both`] with their real listeners: the gateway of the directory on 127.0.0.1, the
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
struct Asked {
    both: Both,
    health: Arc<ProxyHealth>,
    /// The daemon's clock.
    now: Arc<Mutex<Duration>>,
    listeners: [HealthCheckNodePorts; 2],
}

impl Asked {
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
        let mut asked = Self { both, health, now, listeners };
        asked.publish();
        asked
    }

    fn now_is(&mut self, yaml: &str) {
        self.both.now_is(yaml);
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
    let asking = async {
        loop {
            if let Ok(answer) = exchange(address, request).await
                && answer.contains(part)
            {
                return answer.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect();
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asking)
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
fn served_for_every_service_with_type_load_balancer_external_traffic_policy_local_and_a_health_check_node_port()
 {
    let ports = |yaml: &str| Both::new(yaml).look().health_check_node_ports.len();
    assert_eq!(ports(&local(30_500)), 1);
    let other_class = local(30_500)
        .replace("type: LoadBalancer\n", "type: LoadBalancer\n  loadBalancerClass: example.com/lb\n");
    assert_eq!(ports(&other_class), 0, "what another controller balances is asked of others");
    let node_port = other_class.replace("targetPort: 8080}", "targetPort: 8080, nodePort: 30080}");
    let serving = Both::new(&node_port).with(|world| {
        world.settings.services.node_port_addresses = vec!["0.0.0.0/0".parse().expect("a network")];
    });
    assert_eq!(serving.look().health_check_node_ports.len(), 1, "the gateway serves its node port");
    for (spec, why) in [
        ("  externalTrafficPolicy: Cluster\n", "policy Cluster"),
        (
            "  externalTrafficPolicy: Local\n  healthCheckNodePort: 0\n",
            "the directory gives one out, see there",
        ),
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
    let said = refused(&web("  healthCheckNodePort: 30500\n"));
    assert!(
        said[0].contains("valid only with type LoadBalancer and externalTrafficPolicy Local"),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_tcp_listener_on_all_addresses_or_on_those_that_node_port_addresses_allows() {
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
async fn the_answer_has_status_headers_and_body_byte_for_byte_at_any_path_by_any_method() {
    let port = free_port().await;
    let mut asked = Asked::new(Both::new(&(local(port) + &endpoints(&TWO))));
    let answer = asked.answer(port, GET, "200 OK").await;
    assert_eq!(
        answer,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: 2\r\nContent-Length: 114\r\nConnection: close\r\n\r\n\
         {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
    );
    for head in ["POST /any/path?x=1", "PUT /healthz", "DELETE /x", "OPTIONS /"] {
        let request = format!("{head} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert_eq!(asked.answer(port, &request, "200 OK").await, answer, "{head}");
    }
    asked.now_is(&local(port));
    assert_eq!(
        asked.answer(port, GET, "503 Service Unavailable").await,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: 0\r\nContent-Length: 114\r\nConnection: close\r\n\r\n\
         {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}",
        "the weight is there with 503 too"
    );
}

#[tokio::test]
async fn n_counts_distinct_ips_of_ready_endpoints_of_the_node_or_all_that_an_appliance_can_forward_to() {
    let port = free_port().await;
    let yaml = local(port) + &endpoints(&TWO);
    let mut asked = Asked::new(Both::new(&yaml));
    assert_eq!(counted(&asked.answer(port, GET, "200 OK").await), "2", "an IP with two ports is 1");
    let failing = |world: &mut World, addresses: &[&str]| {
        let targets = reconcile(&world.input()).targets;
        let fails =
            |target: &tidegate_model::health::Target| addresses.iter().any(|a| ip(a) == target.address.ip());
        world.verdicts = targets.into_iter().filter(fails).collect();
    };
    asked.both.both(|world| failing(world, &["10.1.0.2"]));
    asked.publish();
    asked.answer(port, GET, "\"localEndpoints\": 1,").await;
    asked.both.both(|world| failing(world, &["10.1.0.1", "10.1.0.2"]));
    asked.publish();
    asked.answer(port, GET, "\"localEndpoints\": 0,").await;
    assert_eq!(
        weights(&asked.both.look().spec.services[0]).len(),
        2,
        "though none is set aside: others may do better"
    );
    asked.both.both(|world| {
        world.verdicts = Verdicts::default();
        world.settings.node = Some("b".into());
    });
    asked.publish();
    asked.answer(port, GET, "\"localEndpoints\": 1,").await;
    asked.both.both(|world| world.settings.node = Some("c".into()));
    asked.publish();
    asked.answer(port, GET, "\"localEndpoints\": 0,").await;
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
async fn terminating_ones_do_not_count_so_the_port_goes_503_while_their_flows_still_drain() {
    for node in [None, Some("a")] {
        let port = free_port().await;
        let both = Both::new(&(local(port) + &endpoints(&TWO[..1])));
        let mut asked = Asked::new(both.with(|world| world.settings.node = node.map(str::to_owned)));
        asked.answer(port, GET, "200 OK").await;
        asked.now_is(&(local(port) + &endpoints(&[LEAVING])));
        let answer = asked.answer(port, GET, "503 Service Unavailable").await;
        assert_eq!(counted(&answer), "0");
        let outcome = asked.both.look();
        let served = outcome.spec.services.first().expect("it is served");
        assert_eq!(states(served), ["10.1.0.1:8080 active"], "it still serves: there is no other");
    }
}

#[test]
fn with_target_node_an_appliance_counts_the_ready_endpoints_on_nodes_that_it_can_forward_to() {
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
async fn the_proxy_is_healthy_when_every_worker_runs_and_has_applied_the_newest_snapshot_within_the_timeout()
{
    let port = free_port().await;
    let asked = Asked::new(Both::new(&(local(port) + &endpoints(&TWO))));
    asked.health.update_queued(Duration::ZERO);
    asked.wait(TIMEOUT);
    asked.answer(port, GET, "200 OK").await;
    asked.wait(Duration::from_millis(1));
    let answer = asked.answer(port, GET, "503 Service Unavailable").await;
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 2\r\n"), "{answer}");
    assert!(answer.ends_with("\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": false\n}"), "{answer}");
    asked.health.applied(Timestamp::UNIX_EPOCH);
    asked.answer(port, GET, "200 OK").await;
    asked.health.set_workers_run(false);
    asked.answer(port, GET, "503 Service Unavailable").await;
}

#[tokio::test]
async fn the_port_closes_when_the_policy_leaves_local_or_the_service_goes() {
    let port = free_port().await;
    let slices = endpoints(&TWO);
    let mut asked = Asked::new(Both::new(&(local(port) + &slices)));
    asked.answer(port, GET, "200 OK").await;
    asked.now_is(&(web("  externalTrafficPolicy: Cluster\n") + &slices));
    asked.closed(port).await;
    asked.now_is(&(local(port) + &slices));
    asked.answer(port, GET, "200 OK").await;
    asked.now_is(&slices);
    asked.closed(port).await;
}

#[tokio::test]
async fn a_port_that_cannot_be_bound_is_an_event_failed_to_start_service_healthcheck_tried_again_and_others_go_on()
 {
    let number = free_port().await;
    let first = TcpListener::bind((LOOPBACK[0], number)).await.expect("it is free");
    let second = TcpListener::bind((LOOPBACK[1], number)).await.expect("it is free");
    let fine = free_port().await;
    let unlucky = local(number).replace("metadata: {name: web}", "metadata: {name: unlucky}");
    let asked = Asked::new(Both::new(&(unlucky + &local(fine) + &endpoints(&TWO))));
    asked.answer(fine, GET, "200 OK").await;
    for (listeners, own) in asked.listeners.iter().zip(LOOPBACK) {
        let mut failures = listeners.failures();
        let failed =
            tokio::time::timeout(Duration::from_secs(10), failures.wait_for(|list| !list.is_empty()));
        let failure = failed.await.expect("it is told").expect("the task lives")[0].clone();
        let finding = Finding::of_unopened_port(&failure.service, failure.address, &failure.error, None);
        assert_eq!(finding.reason.as_str(), "FailedToStartServiceHealthcheck");
        let expected =
            format!("healthCheckNodePort {number} of Service default/unlucky cannot be served on {own}: ");
        assert!(finding.diagnostic.what.starts_with(&expected), "{}", finding.diagnostic);
    }
    drop((first, second));
    tokio::time::pause(); // From here on, only the timer of the retry advances the time.
    for listeners in &asked.listeners {
        let mut failures = listeners.failures();
        failures.wait_for(Vec::is_empty).await.expect("the task lives");
    }
    tokio::time::resume();
    asked.answer(number, GET, "503 Service Unavailable").await;
}

#[test]
fn of_two_services_with_one_health_check_node_port_the_first_keeps_it_and_the_other_is_told() {
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
    let told = api.findings.iter().find(|f| f.reason == Reason::FailedToStartServiceHealthcheck);
    let what = &told.expect("it is told").diagnostic.what;
    assert!(what.contains("healthCheckNodePort 30500 of Service default/web is not served"), "{what}");
}
