//! Tests of the probes and of the listening sockets. `reconcile/tests/conformance/health_check_node_ports.rs` tests the
//! answers of health-check node ports, from objects to bytes over loopback.

use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::ProxyHealth;
use super::super::probes::Probes;
use super::*;

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn report() -> HealthReport {
    let health = ProxyHealth::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    health.applied(Timestamp::from_millisecond(120).expect("a time"));
    health.report(Duration::ZERO, Timestamp::from_second(60).expect("a time"))
}

async fn exchange(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The answer without its `Date` header, which changes with time.
fn undated(answer: &str) -> String {
    answer.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect()
}

#[test]
fn node_port_addresses_choose_among_the_gateways_own() {
    let ip = |s: &str| s.parse::<IpAddr>().expect("an address");
    let own = [ip("192.0.2.2"), ip("198.51.100.2"), ip("2001:db8::2")];
    let networks = ["192.0.2.0/24".parse().expect("a network"), "2001:db8::/32".parse().expect("a network")];
    assert_eq!(Bind::new(&networks, own), Bind::Only(vec![own[0], own[2]]));
    assert_eq!(Bind::new(&[], own), Bind::All);
}

#[test]
fn all_ports_together_have_a_limited_number_of_connections() {
    assert_eq!(connections_of_each(0), CONNECTIONS_MAX);
    for listeners in [1, 32, 600, 2_048] {
        assert!(listeners * connections_of_each(listeners) <= CONNECTIONS_MAX);
    }
    assert_eq!(connections_of_each(65_536), CONNECTIONS_MIN, "each port answers");
}

#[tokio::test]
async fn a_listener_that_has_ended_is_opened_again() {
    let free = std::net::TcpListener::bind((LOCALHOST, 0)).expect("a port");
    let address = free.local_addr().expect("its address");
    drop(free);
    let port = HealthCheckNodePort {
        port: address.port().try_into().expect("it is not 0"),
        service: ObjectKey::new("shop", "web"),
        local_endpoints: 1,
    };
    let (failures, _) = watch::channel(Vec::new());
    let mut listeners = Listeners {
        clients: Clients::default(),
        addresses: vec![LOCALHOST],
        report: Arc::new(report),
        open: BTreeMap::new(),
        each: Arc::new(AtomicUsize::new(CONNECTIONS_MAX)),
        failures,
    };
    assert_eq!(listeners.replace(std::slice::from_ref(&port)), []);
    let open = listeners.open.get_mut(&address).expect("it is open");
    open.task.abort();
    (&mut open.task).await.expect_err("it is aborted");
    assert_eq!(listeners.replace(std::slice::from_ref(&port)), []);
    let answer = exchange(address, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.expect("it answers").starts_with("HTTP/1.1 200 OK\r\n"));
    assert_kept(address).await;
}

/// Asserts that a connection is kept as Go's server keeps it.
async fn assert_kept(address: SocketAddr) {
    let head = "200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
                X-Load-Balancing-Endpoint-Weight: 1\r\nDate: Thu, 01 Jan 1970 00:01:00 GMT\r\nContent-Length: 111\r\n";
    let body = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 1,\n\
                \t\"serviceProxyHealthy\": true\n}";
    let one = format!("HTTP/1.1 {head}\r\n{body}");
    let last = format!("HTTP/1.1 {head}Connection: close\r\n\r\n{body}");
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let end = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = exchange(address, &[get, get, end].concat()).await.expect("it answers");
    assert_eq!(answers, [&*one, &*one, &*last].concat());
    // Keep-alive for clients that know only HTTP/1.0 and request it.
    let old = format!("HTTP/1.0 {head}Connection: keep-alive\r\n\r\n{body}");
    let last = format!("HTTP/1.0 {head}\r\n{body}");
    let (get, end) = ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET / HTTP/1.0\r\n\r\n");
    let answers = exchange(address, &[get, end].concat()).await.expect("it answers");
    assert_eq!(answers, old + &last);
}

#[test]
fn only_readyz_reports_a_lost_link_and_does_not_name_it() {
    let lost = "interface \"uplink\" is gone".to_owned();
    let report = HealthReport { ready: false, degraded: vec![lost], ..report() };
    let status = |path: &str| http_answer::probe(path, &report).status().as_u16();
    assert_eq!((status("/healthz"), status("/livez"), status("/readyz")), (200, 200, 503));
    for path in ["/healthz", "/livez", "/readyz"] {
        let body = format!("{:?}", http_answer::probe(path, &report).body());
        assert!(!body.contains("uplink") && !body.contains("degraded"), "{body}");
    }
}

#[test]
fn watchdog_reports_only_a_hung_loop() {
    let status = |path: &str, report: &HealthReport| http_answer::probe(path, report).status().as_u16();
    let hangs = HealthReport { loop_alive: false, ..report() };
    assert_eq!((status("/watchdog", &hangs), status("/livez", &hangs)), (503, 200));
    let fails = HealthReport { healthy: false, ready: false, node_eligible: false, ..report() };
    assert_eq!((status("/watchdog", &fails), status("/livez", &fails)), (200, 503));
}

#[tokio::test]
async fn the_probes_have_the_shape_of_kube_proxys() {
    let probes =
        Probes::start(SocketAddr::new(LOCALHOST, 0), Clients::default(), report).await.expect("it binds");
    let get = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        exchange(probes.local_addr(), &request).await.expect("it answers")
    };
    let family = "{\"lastUpdated\":\"1970-01-01T00:00:00.12Z\",\"healthy\":true}";
    let times = "\"lastUpdated\":\"1970-01-01T00:01:00Z\",\"currentTime\":\"1970-01-01T00:01:00Z\"";
    let end = format!("\"healthy\":true,\"status\":{{\"IPv4\":{family},\"IPv6\":{family}}}}}");
    let head = |length: usize| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        )
    };
    let healthz = format!("{{{times},\"nodeEligible\":true,{end}");
    assert_eq!(undated(&get("/healthz").await), head(healthz.len()) + &healthz);
    let livez = format!("{{{times},{end}");
    assert_eq!(undated(&get("/livez").await), head(livez.len()) + &livez);
    for path in ["/readyz", "/watchdog"] {
        let short = format!("{{{times}}}");
        assert_eq!(undated(&get(path).await), head(short.len()) + &short);
    }
    assert!(get("/").await.starts_with("HTTP/1.1 404 Not Found\r\n"));
}

#[test]
fn a_late_update_makes_the_gateway_unhealthy_until_it_is_applied() {
    let second = Duration::from_secs;
    let wall = |s| Timestamp::from_second(s).expect("a time");
    let health = ProxyHealth::new(second(60), wall(0));
    let status = |now: u64, path: &str| {
        http_answer::probe(path, &health.report(second(now), wall(i64::try_from(now).expect("small"))))
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
    assert_eq!(
        (status(1062, "/healthz"), status(1062, "/livez")),
        (503, 200),
        "livez ignores the node's state"
    );
    health.set_workers_run(false);
    assert_eq!((status(1062, "/livez"), status(1062, "/readyz")), (503, 503));
}
