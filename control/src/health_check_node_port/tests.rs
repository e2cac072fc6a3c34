//! Claims about the servers, by raw bytes over loopback.

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::ProxyHealth;
use super::super::probes::Probes;
use super::*;
use crate::model::Port;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn report(healthy: bool) -> HealthReport {
    let health = ProxyHealth::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    health.applied(Timestamp::UNIX_EPOCH);
    health.set_workers_run(healthy);
    health.report(Duration::ZERO, Timestamp::UNIX_EPOCH)
}

fn wanted(port: u16, name: &str, local_endpoints: usize) -> HealthCheckNodePort {
    let port = Port::new(port).expect("a port above zero");
    HealthCheckNodePort { port, service: ObjectKey::new("default", name), local_endpoints }
}

/// A port that was free a moment ago.
async fn free_port() -> u16 {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

async fn exchange(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Asks until the answer holds `part`, as opening and closing happen in another task.
async fn until(address: SocketAddr, request: &str, part: &str) -> String {
    let asking = async {
        loop {
            if let Ok(answer) = exchange(address, request).await
                && answer.contains(part)
            {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asking)
        .await
        .unwrap_or_else(|_| panic!("no answer with {part}"))
}

const GET: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// The answer without its `Date`, which tells the time.
fn undated(answer: &str) -> String {
    answer.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect()
}

#[tokio::test]
async fn the_answer_is_kube_proxys_byte_for_byte() {
    let port = free_port().await;
    let ports = HealthCheckNodePorts::start(&Bind::Only(vec![LOCALHOST]), || report(true));
    let address = SocketAddr::new(LOCALHOST, port);
    ports.set(vec![wanted(port, "web", 2)]);
    let answer = until(address, GET, "200 OK").await;
    assert_eq!(
        undated(&answer),
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: 2\r\nConnection: close\r\nContent-Length: 114\r\n\r\n\
         {\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
    );
    let other = "POST /any/path?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(undated(&until(address, other, "200 OK").await), undated(&answer), "any path, any method");

    ports.set(vec![wanted(port, "web", 0)]);
    let answer = until(address, GET, "503 Service Unavailable").await;
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 0\r\n"), "{answer}");
    assert!(answer.contains("\"localEndpoints\": 0,\n"), "{answer}");
}

#[tokio::test]
async fn an_unhealthy_proxy_answers_503_with_its_endpoints() {
    let port = free_port().await;
    let healthy = Arc::new(AtomicBool::new(true));
    let seen = healthy.clone();
    let bind = Bind::Only(vec![LOCALHOST]);
    let ports = HealthCheckNodePorts::start(&bind, move || report(seen.load(Ordering::Relaxed)));
    ports.set(vec![wanted(port, "web", 3)]);
    let address = SocketAddr::new(LOCALHOST, port);
    until(address, GET, "200 OK").await;
    healthy.store(false, Ordering::Relaxed);
    let answer = until(address, GET, "503 Service Unavailable").await;
    assert!(answer.contains("X-Load-Balancing-Endpoint-Weight: 3\r\n"), "{answer}");
    assert!(answer.ends_with("\"serviceProxyHealthy\": false\n}"), "{answer}");
}

#[tokio::test]
async fn a_taken_port_is_reported_and_the_others_go_on() {
    let taken = TcpListener::bind((LOCALHOST, 0)).await.expect("a free port");
    let taken_port = taken.local_addr().expect("it is bound").port();
    let port = free_port().await;
    let ports = HealthCheckNodePorts::start(&Bind::Only(vec![LOCALHOST]), || report(true));
    let mut failures = ports.failures();
    ports.set(vec![wanted(taken_port, "unlucky", 1), wanted(port, "web", 1)]);
    failures.changed().await.expect("the task lives");
    until(SocketAddr::new(LOCALHOST, port), GET, "200 OK").await;
    let failure = failures.borrow_and_update()[0].clone();
    let finding = failure.finding(None);
    assert_eq!(finding.reason, Reason::FailedToStartServiceHealthcheck);
    assert!(
        finding.diagnostic.what.starts_with(&format!(
            "healthCheckNodePort {taken_port} of Service default/unlucky cannot be served on 127.0.0.1: "
        )),
        "{}",
        finding.diagnostic
    );

    drop(taken);
    // The next attempt: here at once, because something changed; else after `RETRY`.
    ports.set(vec![wanted(taken_port, "unlucky", 2), wanted(port, "web", 1)]);
    failures.changed().await.expect("the task lives");
    assert!(failures.borrow().is_empty());
    until(SocketAddr::new(LOCALHOST, taken_port), GET, "200 OK").await;
}

#[tokio::test]
async fn a_taken_port_is_tried_again_by_itself() {
    let taken = TcpListener::bind((LOCALHOST, 0)).await.expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let ports = HealthCheckNodePorts::start(&Bind::Only(vec![LOCALHOST]), || report(true));
    let mut failures = ports.failures();
    ports.set(vec![wanted(port, "web", 1)]);
    failures.changed().await.expect("the task lives");
    assert_eq!(failures.borrow_and_update().len(), 1);
    drop(taken);
    tokio::time::pause(); // From here only the retry's timer can move time.
    failures.changed().await.expect("the task lives");
    assert!(failures.borrow().is_empty());
}

#[tokio::test]
async fn a_port_that_is_no_longer_wanted_closes() {
    let port = free_port().await;
    let ports = HealthCheckNodePorts::start(&Bind::Only(vec![LOCALHOST]), || report(true));
    ports.set(vec![wanted(port, "web", 1)]);
    let address = SocketAddr::new(LOCALHOST, port);
    until(address, GET, "200 OK").await;
    ports.set(vec![]);
    let closing = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), closing).await.expect("it closes");
}

#[tokio::test]
async fn by_default_both_families_are_served() {
    let port = free_port().await;
    let ports = HealthCheckNodePorts::start(&Bind::All, || report(true));
    ports.set(vec![wanted(port, "web", 1)]);
    until(SocketAddr::new(LOCALHOST, port), GET, "200 OK").await;
    let has_ipv6 = Socket::new(Domain::IPV6, Type::STREAM, None)
        .and_then(|s| s.bind(&SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0).into()))
        .is_ok();
    if has_ipv6 {
        until(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port), GET, "200 OK").await;
    }
}

#[test]
fn node_port_addresses_choose_among_the_gateways_own() {
    let ip = |s: &str| s.parse::<IpAddr>().expect("an address");
    let own = [ip("192.0.2.2"), ip("198.51.100.2"), ip("2001:db8::2")];
    let networks = ["192.0.2.0/24".parse().expect("a network"), "2001:db8::/32".parse().expect("a network")];
    assert_eq!(Bind::new(&networks, own), Bind::Only(vec![own[0], own[2]]));
    assert_eq!(Bind::new(&[], own), Bind::All);
}

#[tokio::test]
async fn the_probes_have_the_shape_of_kube_proxys() {
    let probes = Probes::start(SocketAddr::new(LOCALHOST, 0), || report(true)).await.expect("it binds");
    let ask = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        exchange(probes.local_addr(), &request).await.expect("it answers")
    };
    assert_eq!(
        undated(&ask("/healthz").await),
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\nContent-Length: 99\r\n\r\n\
         {\"lastUpdated\": \"1970-01-01T00:00:00Z\",\"currentTime\": \"1970-01-01T00:00:00Z\", \"nodeEligible\": true}"
    );
    assert!(ask("/livez").await.ends_with("\"currentTime\": \"1970-01-01T00:00:00Z\"}"));
    assert!(ask("/readyz").await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(ask("/").await.starts_with("HTTP/1.1 404 Not Found\r\n"));
}

#[test]
fn an_update_that_waits_too_long_makes_the_gateway_unhealthy_until_it_is_applied() {
    let second = Duration::from_secs;
    let wall = |s| Timestamp::from_second(s).expect("a time");
    let health = ProxyHealth::new(second(60), wall(0));
    let status = |now: u64, path: &str| {
        answer::probe(path, &health.report(second(now), wall(i64::try_from(now).expect("small"))))
            .status()
            .as_u16()
    };
    assert_eq!((status(0, "/readyz"), status(0, "/livez")), (503, 200), "nothing is applied yet");
    health.update_queued(second(1));
    health.applied(wall(2));
    assert_eq!(status(500, "/readyz"), 200);
    health.update_queued(second(1000));
    health.update_queued(second(1050));
    assert_eq!(status(1060, "/healthz"), 200);
    assert_eq!((status(1061, "/healthz"), status(1061, "/livez")), (503, 503), "the oldest counts");
    let report = health.report(second(1061), wall(1061));
    assert_eq!(report.last_applied, Some(wall(2)));
    health.applied(wall(1062));
    assert_eq!(status(1062, "/healthz"), 200);
    health.set_node_eligible(false);
    assert_eq!((status(1062, "/healthz"), status(1062, "/livez")), (503, 200), "livez does not ask the node");
    health.set_workers_run(false);
    assert_eq!((status(1062, "/livez"), status(1062, "/readyz")), (503, 503));
}
