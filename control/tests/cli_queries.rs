//! Tests of the commands that query the daemon: columns, formats, filters and exit codes. The admin socket and the
//! binary are real, and the daemon's state is simulated; the end-to-end tests query a real daemon.

use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;
use tempfile::TempDir;
use tidegate::admin::{AdminBackend, Server};
use tidegate_admin_api::explain::{Explanation, Packet, Step};
use tidegate_admin_api::*;
use tidegate_events::{Event, Field, ObjectKind, Reason, Recorder};
use tidegate_model::objects::ServiceType;
use tidegate_policy::reconcile::DrainTarget;
use tidegate_spec::{ForwardingMode, Protocol};

#[derive(Default)]
struct Daemon {
    drained: Mutex<Vec<String>>,
    /// The drain of the gateway, and the number of further status queries that still see packets.
    gateway: Mutex<(GatewayDrainState, u32)>,
    requests: AtomicU64,
    events: OnceLock<Recorder>,
    /// The number of lists of Services; the second one differs from the first.
    service_lists: AtomicU64,
    /// The number of deletions of flows.
    deletions: AtomicU64,
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn backend(last: u8, state: BackendViewState, why: BackendWhy) -> BackendView {
    BackendView {
        address: IpAddr::from([10, 0, 0, last]),
        port: 8080,
        weight: 1,
        state,
        why,
        warm_up_percent: None,
        node: Some("node-a".into()),
        zone: None,
        pod: Some(format!("default/web-{last}")),
        health: HealthView::default(),
    }
}

fn port(name: &str, number: u16, refused: Option<&str>) -> PortView {
    PortView {
        vip: ip("203.0.113.1"),
        name: name.into(),
        port: number,
        protocol: Protocol::Tcp,
        mode: ForwardingMode::Nat,
        app_protocol: None,
        refused: refused.map(|why| PortRefusal::from(why.to_owned())),
        fail_open: false,
        note: None,
        route: None,
        rejected_ppm: 0,
        backends: match refused {
            Some(_) => vec![],
            None => vec![
                backend(1, BackendViewState::Active, BackendWhy::Ready),
                backend(2, BackendViewState::Down, BackendWhy::Unhealthy),
            ],
        },
    }
}

fn service(namespace: &str, name: &str, ports: Vec<PortView>, pending: Option<&str>) -> ServiceView {
    let vip = |p: &PortView| VipView {
        address: p.vip,
        kind: VipKind::LoadBalancer,
        pool: "public".into(),
        edge: Default::default(),
    };
    ServiceView {
        namespace: namespace.into(),
        name: name.into(),
        service_type: Some(ServiceType::LoadBalancer),
        vips: ports.first().map(vip).into_iter().collect(),
        pending: pending.map(str::to_owned),
        refused: None,
        unapplied: None,
        warnings: vec![],
        ports,
        mode: None,
        bgp: Default::default(),
        created: None,
        since: None,
    }
}

fn services() -> Vec<ServiceView> {
    vec![
        service("default", "web", vec![port("http", 80, None)], None),
        service("kube-system", "dns", vec![], Some("pool public is full")),
        service("kube-system", "mixed", vec![port("http", 80, None), port("sig", 99, Some("SCTP"))], None),
    ]
}

fn flow(client: &str, is_live: bool) -> FlowRow {
    FlowRow {
        namespace: "default".into(),
        service: "web".into(),
        port_name: "http".into(),
        protocol: "TCP".into(),
        client: client.parse().expect("an address"),
        vip: "203.0.113.1:80".parse().expect("an address"),
        backend: is_live.then(|| "10.0.0.1:8080".parse().expect("an address")),
        mode: "fullnat".into(),
        kind: FlowRowKind::Nat,
        source: Some("192.0.2.3:1024".parse().expect("an address")),
        state: "established".into(),
        idle_seconds: 200,
        packets: None,
        bytes: None,
    }
}

impl Daemon {
    /// A recorder with two events.
    fn recorder(&self) -> &Recorder {
        self.events.get_or_init(|| {
            let recorder = Recorder::in_memory(100);
            let down = Event::new(
                Reason::BackendDown,
                ObjectKind::Backend,
                "10.0.0.2:8080",
                "backend down; 1 of 2 left",
            );
            recorder.record(down.of_service("default", "web").number(Field::Left, 1));
            recorder.record(Event::new(Reason::LinkDown, ObjectKind::Interface, "uplink", "link lost"));
            recorder
        })
    }

    /// The current drain status. After some queries the drain is complete.
    fn gateway_drain(&self) -> GatewayDrainStatus {
        let mut gateway = self.gateway.lock().expect("no test panics with the lock");
        let (state, left) = &mut *gateway;
        if *state == GatewayDrainState::Serving {
            return GatewayDrainStatus::default();
        }
        *left = left.saturating_sub(1);
        if *left == 0 {
            *state = GatewayDrainState::Drained;
        }
        GatewayDrainStatus {
            state: *state,
            by: vec![DrainRequester::Command],
            since: Some("2026-01-31T12:00:00Z".into()),
            flows: 12,
            packets_per_second: 34.6,
            last_packet: Some("2026-01-31T12:00:07Z".into()),
            quiet_seconds: 5,
        }
    }
}

impl AdminBackend for Daemon {
    fn status(&self) -> Status {
        Status {
            name: "edge-1".into(),
            uptime_seconds: 200,
            healthy: true,
            generation_desired: 8,
            generation_applied: 7,
            workers: vec![WorkerStatus {
                worker: 0,
                core: 1,
                state: "running".into(),
                busy_ratio: 0.125,
                cycles_per_packet: 81.4,
                flows: 3,
                flow_table_pages: "transparent huge pages".into(),
                flow_table_bytes: 97 << 20,
            }],
            latencies: vec![LatencyStatus {
                name: "worker-turn".into(),
                count: 1000,
                p50_us: 6.25,
                p99_us: 12.0,
                max_us: 1503.99,
            }],
            drain: self.gateway_drain(),
            interfaces: vec![InterfaceStatus {
                name: "uplink".into(),
                device: "net_null0".into(),
                mac: "02:00:00:00:00:02".into(),
                link_up: true,
                link: LinkStatus { state: "up".into(), ..LinkStatus::default() },
                tap: None,
                port: PortStatus::default(),
                rx_packets: 1,
                rx_bytes: 60,
                tx_packets: 2,
                tx_bytes: 120,
            }],
            ..Status::default()
        }
    }

    fn services(&self) -> ServicesAnswer {
        let mut services = services();
        if self.service_lists.fetch_add(1, Ordering::Relaxed) > 0 {
            services[1].pending = None;
        }
        let finding = |object: &str, message: &str| FindingView {
            object: object.into(),
            reason: "InvalidValue".into(),
            severity: "warning".into(),
            location: None,
            message: message.into(),
            accepted: None,
        };
        let findings =
            vec![finding("default/web", "a weight of 0"), finding("default/gateway/web", "no such class")];
        ServicesAnswer { services, findings }
    }

    fn backends(&self) -> BackendsAnswer {
        BackendsAnswer {
            backends: BackendRow::of_services(&services(), |_, b| BackendForwarding {
                connections: (b.port == 8080).then_some(5),
                active: (b.port == 8080).then_some(2),
                packets: (b.port == 8080).then_some(40),
                bytes: (b.port == 8080).then_some(4_000),
                path_mtu: (b.port == 8080).then_some(1480),
                set_aside_workers: (b.address == ip("10.0.0.1")).then_some(2),
            }),
        }
    }

    async fn flows(&self, query: FlowsQuery) -> Result<FlowsAnswer, AdminError> {
        if let Some(service) = query.service.as_ref().filter(|service| service.name != "web") {
            return Err(AdminError::NotFound(format!("Service {service} is not served")));
        }
        let workers = vec![WorkerFlows { worker: 0, flows: 3, capacity: 12 }];
        let mut flows = vec![flow("198.51.100.7:40000", true), flow("198.51.100.8:40001", false)];
        if self.deletions.load(Ordering::Relaxed) > 0 {
            flows.clear();
        }
        flows.retain(|flow| query.client.is_none_or(|client| client == flow.client.ip()));
        flows.retain(|flow| query.client_port.is_none_or(|port| port == flow.client.port()));
        flows.retain(|flow| query.state.is_none_or(|state| state.as_str() == flow.state));
        flows.retain(|flow| flow.idle_seconds >= query.idle_seconds_min);
        if query.order == FlowOrder::Bytes {
            // The flow of the first client is not in the flow log.
            flows.reverse();
            for flow in flows.iter_mut().filter(|flow| flow.client.port() == 40_001) {
                (flow.packets, flow.bytes) = (Some(12), Some(34_567));
            }
        }
        let more = flows.len() > query.limit;
        flows.truncate(query.limit);
        Ok(FlowsAnswer { workers, flows, more, ..FlowsAnswer::default() })
    }

    fn events(&self, selection: &EventsSelection) -> EventsAnswer {
        let events = self.recorder().select(selection);
        EventsAnswer { events: events.iter().map(|event| EventRow::from(&**event)).collect() }
    }

    async fn delete_flows(&self, query: FlowsQuery) -> Result<DeletedFlowsAnswer, AdminError> {
        let deleted = self.flows(query).await?.flows.len() as u64;
        self.deletions.fetch_add(1, Ordering::Relaxed);
        Ok(DeletedFlowsAnswer { deleted, silent_workers: 0 })
    }

    fn neighbors(&self) -> NeighborsAnswer {
        let neighbor = |address: &str, interface: &str, mac: Option<&str>, state| NeighborView {
            address: ip(address),
            interface: interface.into(),
            mac: mac.map(str::to_owned),
            state,
            routes: if address == "192.0.2.1" { vec!["0.0.0.0/0".into()] } else { vec![] },
        };
        NeighborsAnswer {
            neighbors: vec![
                neighbor("10.0.0.1", "backends", None, NeighborViewState::Unresolved),
                neighbor("192.0.2.1", "uplink", Some("02:00:00:00:00:01"), NeighborViewState::Reachable),
            ],
        }
    }

    fn routes(&self) -> RoutesAnswer {
        let route = |to: &str, via: Option<&str>, interface: Option<&str>, state| RouteView {
            to: to.into(),
            via: via.map(ip),
            interface: interface.map(str::to_owned),
            mac: None,
            state,
        };
        RoutesAnswer {
            routes: vec![
                route("192.0.2.0/24", None, Some("uplink"), None),
                route("0.0.0.0/0", Some("192.0.2.1"), Some("uplink"), Some(NeighborViewState::Reachable)),
                route("10.9.0.0/16", Some("198.51.100.1"), None, None),
            ],
        }
    }

    fn drops(&self) -> DropsAnswer {
        let count = |reason: &str, count, meaning: &str| ReasonView {
            reason: reason.into(),
            count,
            meaning: meaning.into(),
            by: vec![],
        };
        // The counter grows by 3 with each request.
        let dropped = 2 + 3 * self.requests.fetch_add(1, Ordering::Relaxed);
        let by = vec![PartCount { service: Some("default/web".into()), interface: None, count: dropped }];
        DropsAnswer {
            drops: vec![
                ReasonView { by, ..count("no_route", dropped, "No route to the next hop. More.") },
                count("bad_source", 0, "Forged."),
            ],
            punts: vec![count("local", 7, "To the gateway.")],
        }
    }

    fn pools(&self) -> PoolsAnswer {
        let pool = |name: &str, free, disabled| PoolView {
            name: name.into(),
            total: 16,
            assigned: 16 - free,
            free,
            disabled,
            ..PoolView::default()
        };
        PoolsAnswer { pools: vec![pool("public", 0, false), pool("old", 4, true)] }
    }

    fn traffic(&self) -> TrafficAnswer {
        // The counter grows by 50 packets with each request.
        let packets = 50 * self.requests.fetch_add(1, Ordering::Relaxed);
        let service = |name: &str, packets| ServiceTraffic {
            namespace: "default".into(),
            service: name.into(),
            port_name: "http".into(),
            vip: SocketAddr::new(ip("203.0.113.1"), 80),
            protocol: "TCP".into(),
            packets,
            bytes: 100 * packets,
            connections: packets / 10,
        };
        TrafficAnswer { services: vec![service("idle", 7), service("web", packets)] }
    }

    fn watch(&self, query: WatchQuery) -> Result<WatchAnswer, AdminError> {
        match query.port {
            Some(port) => Err(AdminError::Unavailable(format!("requested port {port}"))),
            None => Ok(WatchAnswer { id: 3, interfaces: vec!["uplink".into(), "backends".into()] }),
        }
    }

    async fn watched(&self, _: u64) -> Result<WatchedAnswer, AdminError> {
        let frame = |hex: &str| WatchedFrame { length: 60, hex: hex.into() };
        let sent = WatchedRow {
            timestamp_ns: 1_900_000_000_123_456_789,
            interface: "uplink".into(),
            protocol: Some("TCP".into()),
            source: Some("198.51.100.7:40000".into()),
            destination: Some("203.0.113.1:80".into()),
            verdict: "transmit".into(),
            reason: "forward".into(),
            service: Some("default/web:http".into()),
            vip: Some(ip("203.0.113.1")),
            backend: Some(SocketAddr::new(ip("10.0.0.1"), 8080)),
            mode: Some("nat".into()),
            flow: "new".into(),
            detail: Some("SYN".into()),
            checksum: Some("ok".into()),
            received: frame("0203"),
            sent: Some(SentFrame { interface: "backends".into(), frame: frame("0405") }),
            ..WatchedRow::default()
        };
        let dropped = WatchedRow {
            verdict: "drop".into(),
            reason: "no_flow".into(),
            flow: "none".into(),
            sent: None,
            service: None,
            ..sent.clone()
        };
        Ok(WatchedAnswer { packets: vec![sent, dropped], lost: 4 })
    }

    fn unwatch(&self, _: u64) -> Result<UnwatchAnswer, AdminError> {
        Ok(UnwatchAnswer { lost: 4 })
    }

    fn metrics(&self) -> String {
        "tidegate_drops_total{reason=\"no_route\"} 2\n".into()
    }

    fn explain(&self, packet: &Packet) -> Result<Explanation, AdminError> {
        let mut explanation: Explanation = serde_json::from_value(serde_json::json!({
            "packet": packet, "generation": 7, "verdict": "punt", "reason": "not_ours", "steps": []
        }))
        .expect("the least explanation");
        explanation
            .steps
            .push(Step { step: "destination".into(), found: "no address of the gateway".into() });
        Ok(explanation)
    }

    async fn drain(&self, target: DrainTarget) -> Result<DrainAnswer, AdminError> {
        let mut drained = self.drained.lock().expect("no test panics with the lock");
        drained.push(target.to_string());
        Ok(DrainAnswer { target: target.to_string(), backends: 2, drained: drained.clone(), not_kept: None })
    }

    async fn undrain(&self, target: DrainTarget) -> Result<DrainAnswer, AdminError> {
        let mut drained = self.drained.lock().expect("no test panics with the lock");
        let Some(at) = drained.iter().position(|one| *one == target.to_string()) else {
            return Err(AdminError::NotFound(format!("{target} is not drained")));
        };
        drained.remove(at);
        Ok(DrainAnswer { target: target.to_string(), backends: 0, drained: drained.clone(), not_kept: None })
    }

    async fn drain_gateway(&self) -> Result<GatewayDrainAnswer, AdminError> {
        let mut gateway = self.gateway.lock().expect("no test panics with the lock");
        *gateway = (GatewayDrainState::Draining, 2);
        drop(gateway);
        Ok(GatewayDrainAnswer { gateway: "edge-1".into(), drain: self.gateway_drain(), not_kept: None })
    }

    async fn undrain_gateway(&self) -> Result<GatewayDrainAnswer, AdminError> {
        let mut gateway = self.gateway.lock().expect("no test panics with the lock");
        if gateway.0 == GatewayDrainState::Serving {
            return Err(AdminError::NotFound("gateway edge-1 is not drained".into()));
        }
        gateway.0 = GatewayDrainState::Serving;
        Ok(GatewayDrainAnswer { gateway: "edge-1".into(), ..GatewayDrainAnswer::default() })
    }

    async fn diff(&self, _: Option<PathBuf>) -> Result<DiffAnswer, AdminError> {
        let port = |port: u16, before: Option<&str>, after: Option<&str>| PortDiff {
            namespace: "default".into(),
            service: "web".into(),
            vip: ip("203.0.113.1"),
            port,
            protocol: "TCP".into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            added: vec![],
            removed: vec![],
        };
        let ports = vec![port(80, Some("fullnat"), Some("nat")), port(443, None, Some("nat"))];
        let (reload, restart) = (vec!["services".into()], vec!["dataplane.cores".into()]);
        Ok(DiffAnswer { reload, restart, ports, ..DiffAnswer::default() })
    }

    async fn reload(&self) -> Result<ReloadAnswer, AdminError> {
        Ok(ReloadAnswer::default())
    }
}

/// A server with the simulated daemon, and the binary that queries it.
struct Lab {
    daemon: Arc<Daemon>,
    directory: TempDir,
    _server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl Lab {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let inside = runtime.enter();
        let path = directory.path().join("tidegate.sock");
        let daemon = Arc::new(Daemon::default());
        let server = Server::start(&path, Arc::clone(&daemon)).expect("it binds");
        drop(inside);
        Self { daemon, directory, _server: server, _runtime: runtime }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("tidegate.sock")
    }

    /// (exit code, standard output, standard error)
    fn run(&self, line: &str) -> (i32, String, String) {
        run(&self.socket(), line)
    }

    fn shown(&self, line: &str) -> String {
        let (code, out, err) = self.run(line);
        assert_eq!(code, 0, "{line}: {err}");
        out
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.shown(line)).expect("JSON")
    }
}

fn run(socket: &std::path::Path, line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ran = command.args(line.split(' ')).arg("--socket").arg(socket).output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (ran.status.code().expect("it ends by itself"), text(ran.stdout), text(ran.stderr))
}

#[test]
fn services_show_in_kubectls_columns() {
    let lab = Lab::new();
    assert_eq!(
        lab.shown("services"),
        "\
NAMESPACE     NAME    TYPE           VIP           PORT(S)         MODE     BACKENDS   STATUS       SINCE       AGE
default       web     LoadBalancer   203.0.113.1   80/TCP          nat      1/2        Programmed   <unknown>   <unknown>
kube-system   dns     LoadBalancer   <pending>     <none>          <none>   0/0        Pending      <unknown>   <unknown>
kube-system   mixed   LoadBalancer   203.0.113.1   80/TCP,99/TCP   nat      1/2        Partial      <unknown>   <unknown>
"
    );
    let wide = Lab::new().shown("services -o wide");
    assert!(wide.contains("pool public is full") && wide.contains("99/TCP: SCTP"), "{wide}");
}

#[test]
fn namespaces_and_names_select_and_a_missing_name_is_an_error() {
    let lab = Lab::new();
    let names = |line: &str| -> Vec<String> {
        let shown = lab.shown(line);
        shown.lines().map(|l| l.split_whitespace().nth(1).expect("a name").to_owned()).collect()
    };
    assert_eq!(names("services -n kube-system --no-headers"), ["dns", "mixed"]);
    assert_eq!(names("services -A --no-headers"), ["web", "dns", "mixed"]);
    assert_eq!(names("services web --no-headers"), ["web"]);
    let (code, out, err) = lab.run("services web nobody");
    assert_eq!((code, err.as_str()), (1, "Error from gateway (NotFound): services \"nobody\" not found\n"));
    assert!(out.contains("web"), "existing Services are shown");
    assert_eq!(
        lab.run("services -n empty"),
        (0, String::new(), "No resources found in empty namespace.\n".into())
    );
    assert_eq!(lab.run("services -A -n empty").0, 2, "one or the other");
}

#[test]
fn backends_report_their_state_and_the_reason() {
    let lab = Lab::new();
    assert_eq!(
        lab.shown("backends web"),
        "\
NAMESPACE   SERVICE   PORT     VIP           BACKEND         STATE    REASON      SINCE       WEIGHT   CONNECTIONS
default     web       80/TCP   203.0.113.1   10.0.0.1:8080   Active   Ready       <unknown>   1        5
default     web       80/TCP   203.0.113.1   10.0.0.2:8080   Down     Unhealthy   <unknown>   1        5
"
    );
    let wide = lab.shown("backends -o wide");
    assert!(wide.contains("default/web-1"), "{wide}");
    let shows = |line: &str| line.trim_end().ends_with(" 1480");
    assert!(wide.lines().next().is_some_and(|head| head.contains("SET-ASIDE")), "{wide}");
    assert!(wide.lines().skip(1).all(shows), "a path MTU that is known is shown: {wide}");
    assert!(wide.lines().nth(1).is_some_and(|line| line.contains(" 2 ")), "{wide}");
    let items = lab.json("backends -n kube-system -o json");
    assert_eq!((&items["items"][0]["connections"], &items["items"][0]["pathMtu"]), (&5.into(), &1480.into()));
    assert_eq!(items["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(items["items"][0]["backend"]["address"], "10.0.0.1");
}

#[test]
fn data_formats_show_the_answer_and_agree() {
    let lab = Lab::new();
    let list = lab.json("services -o json");
    assert_eq!((&list["kind"], &list["items"][0]["name"]), (&Value::from("List"), &Value::from("web")));
    let yaml = lab.shown("services web -o yaml");
    assert!(yaml.starts_with("apiVersion: v1\nitems:\n- name: web\n"), "{yaml}");
    assert_eq!(lab.json("status -o json")["generationApplied"], 7);
    assert_eq!(lab.json("drops -o json")["drops"].as_array().map(Vec::len), Some(2), "those that are 0 too");
}

#[test]
fn status_flows_drops_and_pools_show_what_matters() {
    let lab = Lab::new();
    let status = lab.shown("status");
    for line in ["Name:        edge-1", "Up for:      3m20s", "Generation:  7 applied, 8 desired"] {
        assert!(status.contains(line), "{line} in\n{status}");
    }
    assert!(status.contains("0        1      running   12.5%   81              3"), "{status}");
    assert_eq!(
        lab.shown("flows --count"),
        "WORKER   FLOWS   CAPACITY   USED\n0        3       12         25.0%\n"
    );
    assert_eq!(
        lab.shown("drops"),
        "KIND   REASON     COUNT   MEANING\n\
         drop   no_route   2       No route to the next hop\n\
         punt   local      7       To the gateway\n"
    );
    assert!(lab.shown("drops -o wide").contains("default/web (5)"));
    let delta = lab.shown("drops --delta 1s --no-headers");
    assert!(delta.starts_with("drop   no_route   3 ") && delta.lines().count() == 1, "{delta}");
    let delta = lab.json("drops --delta 1s -o json");
    assert_eq!(delta["drops"][0]["by"][0]["count"], 3);
    assert!(delta["drops"][0]["perSecond"].as_f64().is_some_and(|rate| rate > 0.0), "{delta}");
    let pools = lab.shown("pools --no-headers");
    assert_eq!(pools, "public   16   16   0   Full\nold      16   12   4   Disabled\n");
    assert_eq!(lab.shown("metrics"), "tidegate_drops_total{reason=\"no_route\"} 2\n");
}

#[test]
fn events_are_selected_by_service_and_time_and_followed() {
    let lab = Lab::new();
    let table = lab.shown("events -o wide");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["TIME", "LEVEL", "REASON", "OBJECT", "SERVICE", "MESSAGE", "DETAILS"]);
    assert_eq!(&lines[1][1..5], ["info", "BackendDown", "backend/10.0.0.2:8080", "default/web"], "{table}");
    assert!(table.lines().nth(1).is_some_and(|line| line.ends_with("1 of 2 left   left=1")), "{table}");
    assert_eq!(&lines[2][1..5], ["warning", "LinkDown", "interface/uplink", "<none>"], "{table}");
    assert_eq!(lab.shown("events --service default/web --no-headers").lines().count(), 1);
    assert_eq!(lab.shown("events --since 1h --no-headers").lines().count(), 2);
    let event = &lab.json("events -o json")["items"][0];
    assert_eq!((&event["reason"], &event["fields"]["left"]), (&"BackendDown".into(), &1.into()));
    assert_eq!(lab.run("events --service shop/web"), (0, String::new(), "No resources found\n".into()));
    for wrong in ["events --service web", "events --since yesterday"] {
        assert_eq!(lab.run(wrong).0, 2, "{wrong}");
    }

    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["events", "--watch", "--no-headers", "-o", "json", "--socket"]).arg(lab.socket());
    let mut watching = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let mut shown = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    let mut next = || -> Value {
        let line = shown.next().expect("it follows").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!([next()["reason"].clone(), next()["reason"].clone()], ["BackendDown", "LinkDown"]);
    lab.daemon.recorder().record(Event::new(Reason::LinkUp, ObjectKind::Interface, "uplink", "link up"));
    assert_eq!(next()["reason"], "LinkUp");
    watching.kill().expect("it runs");
    watching.wait().expect("it ends");
}

#[test]
fn status_shows_latencies_in_microseconds_where_it_is_wide() {
    let lab = Lab::new();
    assert!(!lab.shown("status").contains("LATENCY"));
    let wide = lab.shown("status -o wide");
    let table = "LATENCY       COUNT   P50(us)   P99(us)   MAX(us)\nworker-turn   1000    6.2       12.0      1504.0\n";
    assert!(wide.contains(table), "{wide}");
    assert_eq!(lab.json("status -o json")["latencies"][0]["p99Us"], 12.0);
}

#[test]
fn flows_are_listed_filtered_and_cut_with_a_note() {
    let lab = Lab::new();
    assert_eq!(
        lab.shown("flows"),
        "NAMESPACE   SERVICE   PROTOCOL   CLIENT               VIP              BACKEND         STATE         IDLE\n\
         default     web       TCP        198.51.100.7:40000   203.0.113.1:80   10.0.0.1:8080   established   3m20s\n\
         default     web       TCP        198.51.100.8:40001   203.0.113.1:80   <gone>          established   3m20s\n"
    );
    let wide = lab.shown("flows --client 198.51.100.7 --service default/web:http -o wide --no-headers");
    assert!(wide.ends_with("http   fullnat   nat   192.0.2.3:1024\n"), "{wide}");
    assert_eq!(wide.lines().count(), 1);
    let answer = lab.json("flows -o json");
    assert_eq!(answer["flows"][0]["client"], "198.51.100.7:40000");
    assert_eq!((&answer["workers"][0]["flows"], &answer["more"]), (&3.into(), &false.into()));
    let (code, out, err) = lab.run("flows --limit 1 --no-headers");
    assert_eq!((code, out.lines().count()), (0, 1));
    assert_eq!(err, "Showing the first 1 flows only; use --limit, --count or a filter to see more\n");
    let (code, _, err) = lab.run("flows --service api");
    assert_eq!((code, err.as_str()), (1, "Error from gateway (NotFound): Service api is not served\n"));
    assert_eq!(lab.run("flows --client nobody").0, 2);
    assert_eq!(lab.run("flows --limit 50001").0, 2);
    assert_eq!(lab.run("flows --count --client 198.51.100.7").0, 2, "counts are of all");
    for (filter, found) in [
        ("--client-port 40001", 1),
        ("--state closing", 0),
        ("--state established --idle 3m", 2),
        ("--idle 1h", 0),
        ("--sort client", 2),
    ] {
        assert_eq!(lab.shown(&format!("flows --no-headers {filter}")).lines().count(), found, "{filter}");
    }
    assert_eq!(lab.run("flows --state open").0, 2);
}

#[test]
fn flows_are_sorted_by_bytes_where_they_are_counted() {
    let lab = Lab::new();
    let table = lab.shown("flows --sort bytes -o wide");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][7..], ["IDLE", "PORT", "MODE", "KIND", "SOURCE", "BYTES", "PACKETS"]);
    assert_eq!((lines[1][3], &lines[1][12..]), ("198.51.100.8:40001", &["34567", "12"][..]), "{table}");
    assert_eq!((lines[2][3], &lines[2][12..]), ("198.51.100.7:40000", &["<unknown>"; 2][..]), "{table}");
    assert_eq!(lab.json("flows --sort bytes -o json")["flows"][0]["bytes"], 34_567);
    let (code, out, err) = lab.run("flows --sort bytes --client 198.51.100.7");
    assert!(code == 0 && out.lines().count() == 2, "{out}");
    assert_eq!(
        err,
        "None of these flows is in the flow log, so their bytes are unknown: log them with flowLog.services or the \
         annotation tidegate.dev/flow-log\n"
    );
}

#[test]
fn flows_are_deleted_only_by_filter_and_with_confirmation() {
    let lab = Lab::new();
    let (code, _, err) = lab.run("flows delete --client 198.51.100.7");
    assert!(code == 1 && err.contains("not a terminal; accepted: --yes"), "{err}");
    let (code, _, err) = lab.run("flows delete --yes");
    assert!(code == 1 && err.contains("no flows are selected; accepted: service, backend"), "{err}");
    assert_eq!(lab.shown("flows --no-headers").lines().count(), 2, "nothing was deleted");
    assert_eq!(lab.shown("flows delete --client 198.51.100.7 --yes"), "1 flows deleted\n");
    assert_eq!(lab.json("flows -o json")["flows"], serde_json::json!([]));
}

#[test]
fn neighbors_routes_and_links_show_what_the_gateway_knows() {
    let lab = Lab::new();
    assert_eq!(
        lab.shown("neighbors -o wide"),
        "ADDRESS     INTERFACE   MAC                 STATE        ROUTES\n\
         10.0.0.1    backends    <none>              unresolved   <none>\n\
         192.0.2.1   uplink      02:00:00:00:00:01   reachable    0.0.0.0/0\n"
    );
    assert_eq!(lab.shown("neighbors --interface uplink --no-headers").lines().count(), 1);
    assert_eq!(
        lab.shown("routes"),
        "TO             VIA            INTERFACE   STATE\n\
         192.0.2.0/24   <connected>    uplink      <none>\n\
         0.0.0.0/0      192.0.2.1      uplink      reachable\n\
         10.9.0.0/16    198.51.100.1   <none>      unreachable\n"
    );
    assert_eq!(lab.json("routes -o json")["items"][1]["via"], "192.0.2.1");
    assert_eq!(
        lab.shown("links --no-headers"),
        "uplink   net_null0   02:00:00:00:00:02   up   <none>   1   2\n"
    );
    assert_eq!(lab.run("links eth9").0, 1);
}

#[test]
fn describe_shows_all_that_is_known_about_one_object() {
    let lab = Lab::new();
    let service = lab.shown("describe service default/web");
    for part in [
        "Name:            web\n",
        "Status:          Programmed\n",
        "VIPs:\n  ADDRESS       KIND           POOL ",
        "203.0.113.1   LoadBalancer   public",
        "10.0.0.2:8080   Down     Unhealthy",
        "Forwarded:\n  PORT   VIP ",
        "Findings:\n  SEVERITY   REASON         OBJECT        MESSAGE",
        "a weight of 0",
    ] {
        assert!(service.contains(part), "{part} in\n{service}");
    }
    assert!(lab.shown("describe service dns").contains("Findings:\n  <none>\n"));
    assert_eq!(lab.json("describe service default/web -o json")["service"]["name"], "web");
    let (code, _, err) = lab.run("describe service other/web");
    assert_eq!(
        (code, err.as_str()),
        (1, "Error from gateway (NotFound): services \"other/web\" not found\n")
    );
    assert!(!service.contains("no such class"), "{service}");
    // A Gateway that isn't accepted has findings, but isn't among the Services.
    let gateway = lab.shown("describe service default/gateway/web");
    for part in
        ["Name:            gateway/web\n", "Status:          NotServed\n", "no such class", "Events:\n"]
    {
        assert!(gateway.contains(part), "{part} in\n{gateway}");
    }
    assert_eq!(lab.json("describe service gateway/web -o json")["gateway"]["name"], "gateway/web");
    assert_eq!(lab.run("describe service default/gateway/api").0, 1);
    let backend = lab.shown("describe backend 10.0.0.1:8080");
    assert!(backend.contains("Pod:             default/web-1\n"), "{backend}");
    assert!(backend.contains("default/web:http   established   2"), "{backend}");
    assert_eq!(lab.run("describe backend 10.9.9.9").0, 1);
    let pool = lab.shown("describe pool public");
    assert!(pool.contains("Status:          Full\n") && pool.contains("203.0.113.1   default/web"), "{pool}");
    let gateway = lab.shown("describe gateway");
    assert!(gateway.starts_with("Name:        edge-1\n") && gateway.contains("Neighbors:\n"), "{gateway}");
    assert_eq!(lab.json("describe gateway -o json")["status"]["name"], "edge-1");
}

/// Runs a command that does not end by itself until it has printed `lines` lines.
fn first_lines(lab: &Lab, line: &str, lines: usize) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(line.split(' ')).arg("--socket").arg(lab.socket()).stdout(Stdio::piped());
    let mut running = command.spawn().expect("the binary runs");
    let out = running.stdout.take().expect("it is piped");
    let read: Vec<String> = BufReader::new(out).lines().take(lines).map(|line| line.expect("text")).collect();
    running.kill().expect("it runs until then");
    running.wait().expect("it ends");
    read
}

#[test]
fn a_watched_list_prints_rows_again_when_they_change() {
    // The second answer differs from the first in one Service.
    let shown = first_lines(&Lab::new(), "services -w", 5);
    assert!(shown[0].starts_with("NAMESPACE") && shown[2].contains("<pending>"), "{shown:?}");
    assert!(shown[4].starts_with("kube-system   dns ") && !shown[4].contains("<pending>"), "{shown:?}");
    let events = first_lines(&Lab::new(), "services -w --output-watch-events -o json", 4);
    let changed: Value = serde_json::from_str(&events[3]).expect("an object in one line");
    assert_eq!((&changed["type"], &changed["object"]["name"]), (&"MODIFIED".into(), &"dns".into()));
    for (line, start) in [
        ("backends -w --no-headers", "default"),
        ("pools -w --no-headers", "old"),
        ("flows -w --no-headers", "default"),
        ("status -w --no-headers", "edge-1"),
        ("drops -w --no-headers", "drop   no_route   3"),
    ] {
        let shown = first_lines(&Lab::new(), line, 1);
        assert!(shown[0].starts_with(start), "{line}: {shown:?}");
    }
    assert_eq!(Lab::new().run("services --output-watch-events").0, 2, "only with --watch");
}

#[test]
fn a_drain_waits_until_no_connection_is_left() {
    let lab = Lab::new();
    let (code, out, err) = lab.run("drain 10.0.0.1:8080 --wait --timeout 0s");
    assert_eq!((code, err.as_str()), (3, "10.0.0.1:8080 still draining: 2 connections left\n"));
    assert_eq!(out, "backend/10.0.0.1:8080 drained (2 backends of service ports)\n");
    lab.shown("flows delete --service web --yes");
    let (code, _, err) = lab.run("drain 10.0.0.1:8080 --wait --timeout 5m");
    assert_eq!((code, err.as_str()), (0, ""));
}

#[test]
fn the_socket_can_be_named_by_a_variable() {
    let lab = Lab::new();
    let run = |variable: &std::path::Path, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let ran = command.args(words).env("TIDEGATE_SOCKET", variable).output().expect("the binary runs");
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    assert_eq!(run(&lab.socket(), &["pools"]), (Some(0), String::new()));
    let (code, err) = run("/nowhere.sock".as_ref(), &["pools"]);
    assert!(code == Some(1) && err.contains("at /nowhere.sock"), "{err}");
    let option = lab.socket();
    let option = option.to_str().expect("text");
    assert_eq!(run("/nowhere.sock".as_ref(), &["pools", "--socket", option]).0, Some(0), "the option wins");
    let (code, err) = run(&lab.socket(), &["pools", "--kubeconfig", "/nowhere"]);
    assert!(code == Some(1) && err.starts_with("Error from cluster: "), "the variable is no conflict: {err}");
}

#[test]
fn a_namespace_belongs_to_a_name_everywhere() {
    let lab = Lab::new();
    assert_eq!(lab.shown("services default/web --no-headers").lines().count(), 1);
    assert_eq!(lab.shown("backends default/web --no-headers").lines().count(), 2);
    let (code, _, err) = lab.run("services kube-system/web");
    assert_eq!(
        (code, err.as_str()),
        (1, "Error from gateway (NotFound): services \"kube-system/web\" not found\n")
    );
}

#[test]
fn drains_are_reported_in_kubectl_wording() {
    let lab = Lab::new();
    assert_eq!(
        lab.shown("drain 10.0.0.1:8080"),
        "backend/10.0.0.1:8080 drained (2 backends of service ports)\n"
    );
    assert_eq!(lab.json("drain node-a -o json")["drained"][1], "node-a");
    let undrained = lab.shown("undrain node-a");
    assert_eq!(undrained, "node/node-a undrained (currently no backend of any Service)\n");
    let (code, _, err) = lab.run("undrain node-a");
    assert_eq!((code, err.as_str()), (1, "Error from gateway (NotFound): node-a is not drained\n"));
    assert_eq!(lab.run("drain no_node").0, 2, "not a valid target");
}

#[test]
fn a_gateway_drain_reports_by_its_exit_code_whether_packets_still_arrive() {
    let lab = Lab::new();
    let progress =
        "35 packets/s, the last packet at 2026-01-31T12:00:07Z, 12 flows; drained after 5 s without a packet";
    assert_eq!(
        lab.run("drain --gateway --timeout 0s"),
        (3, format!("gateway/edge-1 still draining: {progress}\n"), String::new())
    );
    let (code, out, err) = lab.run("drain --gateway");
    assert_eq!((code, out.as_str()), (0, "gateway/edge-1 drained\n"));
    assert_eq!(err, format!("gateway/edge-1 draining: {progress}\n"));
    let status = lab.shown("status");
    let line = format!("Gateway:     drained since 2026-01-31T12:00:00Z (by command): {progress}");
    assert!(status.contains(&line), "{status}");
    assert_eq!(lab.json("drain --gateway -o json")["drain"]["state"], "drained");
    assert_eq!(lab.shown("undrain --gateway"), "gateway/edge-1 undrained\n");
    assert!(!lab.shown("status").contains("Gateway:"), "a gateway that serves needs no line");
    let (code, _, err) = lab.run("undrain --gateway");
    assert_eq!(code, 1);
    assert_eq!(err, "Error from gateway (NotFound): gateway edge-1 is not drained\n");
    for line in
        ["drain", "drain --gateway node-a", "drain node-a --timeout 5s", "drain --gateway --timeout 5"]
    {
        assert_eq!(lab.run(line).0, 2, "{line}");
    }
}

#[test]
fn explain_queries_the_daemon_without_a_configuration() {
    let lab = Lab::new();
    let question = "explain --proto udp --src [2001:db8::9]:1000 --dst [2001:db8::1]:53";
    let explained = lab.shown(question);
    assert!(
        explained.starts_with("UDP [2001:db8::9]:1000 -> [2001:db8::1]:53, with snapshot generation 7\n"),
        "{explained}"
    );
    assert!(explained.ends_with("=> punt (not_ours)\n"), "{explained}");
    assert_eq!(lab.json(&format!("{question} -o json"))["packet"]["destination"], "[2001:db8::1]:53");
    assert_eq!(lab.run("explain --proto icmp --src 1.2.3.4:5 --dst 1.2.3.4:5").0, 2);
}

#[test]
fn a_socket_without_a_daemon_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (code, out, err) = run(&directory.path().join("none.sock"), "status");
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.starts_with("Error from gateway: no gateway answers at "), "{err}");
    assert!(err.contains("none.sock"), "{err}");
}

#[test]
fn trace_prints_a_line_for_each_packet_and_says_how_many_were_missed() {
    let lab = Lab::new();
    let (code, out, err) = lab.run("trace --count 3");
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert!(lines[0].starts_with("TIME"), "{out}");
    for cell in [
        "198.51.100.7:40000",
        "203.0.113.1:80",
        "SYN",
        "transmit",
        "forward",
        "default/web:http",
        "10.0.0.1:8080",
    ] {
        assert!(lines[1].contains(cell), "{out}");
    }
    assert!(
        lines[2].contains("drop") && lines[2].contains("no_flow") && lines[2].contains("<none>"),
        "{out}"
    );
    assert!(err.starts_with("3 packets; 4 further packets matched but were not recorded"), "{err}");

    let (_, out, _) = lab.run("trace --count 2 --no-headers -o json");
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        (rows.len(), &rows[0]["sent"]["interface"], &rows[1]["reason"]),
        (2, &"backends".into(), &"no_flow".into())
    );

    let (code, _, err) = lab.run("trace --port 99");
    assert_eq!((code, err.trim()), (1, "Error from gateway (ServiceUnavailable): requested port 99"));
    let (code, _, err) = lab.run("trace --verdict lost");
    assert!(code == 2 && err.contains("accepted: transmit, punt, drop"), "{err}");
}

#[test]
fn capture_writes_frames_in_and_out_with_the_verdict_as_a_comment() {
    let lab = Lab::new();
    let file = lab.directory.path().join("out.pcapng");
    let (code, _, err) = lab.run(&format!("capture --count 2 -w {}", file.display()));
    assert_eq!(code, 0, "{err}");
    let bytes = std::fs::read(&file).expect("it is written");
    let mut reader = tidegate_capture::Reader::new(&bytes[..]).expect("a capture");
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet().expect("whole packets") {
        packets.push((packet.interface, packet.timestamp_ns, packet.data));
    }
    let at = 1_900_000_000_123_456_789;
    assert_eq!(packets, [(0, at, vec![2, 3]), (1, at, vec![4, 5]), (0, at, vec![2, 3])]);
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("verdict=transmit reason=forward flow=new service=default/web:http"));
    assert!(text.contains("verdict=drop reason=no_flow"));

    let nowhere = lab.directory.path().join("none/out.pcapng");
    let (code, _, err) = lab.run(&format!("capture --count 2 -w {}", nowhere.display()));
    assert!(code == 1 && err.contains("none/out.pcapng"), "{err}");
}

#[test]
fn top_shows_rates_with_the_busiest_services_first() {
    let lab = Lab::new();
    let out = lab.shown("top --iterations 2 --interval 0.1");
    let headings = out.lines().filter(|line| line.starts_with("SERVICE")).count();
    assert_eq!(headings, 2, "{out}");
    let services: Vec<&str> = out.lines().filter(|line| line.starts_with("default/")).collect();
    assert!(
        services[0].starts_with("default/web:http") && services[1].starts_with("default/idle:http"),
        "{out}"
    );

    let of_one = lab.shown("top --iterations 1 --interval 0.1 --service default/web");
    assert!(of_one.contains("default/web:http") && !of_one.contains("default/idle"), "{of_one}");
    assert!(of_one.contains("10.0.0.2:8080   203.0.113.1:80   TCP        Down "), "{of_one}");
    assert_eq!(lab.run("top --iterations 1 --service other/web").0, 1);

    let out = lab.shown("top --iterations 1 --interval 0.1 --rows 1 -o json");
    let figures: Value = serde_json::from_str(&out).expect("one line of JSON");
    assert_eq!(figures["services"].as_array().map(Vec::len), Some(1), "{out}");
    let rate = figures["services"][0]["packetsPerSecond"].as_f64().expect("a number");
    assert!(rate > 0.0, "{out}");
}

#[test]
fn diff_shows_each_port_that_changes_and_counts_the_flows_that_break() {
    let lab = Lab::new();
    let (code, out, err) = lab.run("diff");
    assert_eq!(
        out,
        "\
A reload is refused, because these keys need a restart: dataplane.cores
Changed: services
SERVICE       VIP           PORT      CHANGE                    FLOWS
default/web   203.0.113.1   80/TCP    fullnat -> nat            2 break
default/web   203.0.113.1   443/TCP   served, nat, 0 backends   none
",
        "{err}"
    );
    assert_eq!(code, 2);
    let (_, json, _) = lab.run("diff -o json");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["flows"][0]["flows"], &json["flows"][0]["effect"]), (&2.into(), &"break".into()));
    assert_eq!(json["restart"][0], "dataplane.cores");
}
