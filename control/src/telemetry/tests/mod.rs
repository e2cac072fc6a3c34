//! Tests of pages from a constructed sample. A strict parser reads them back.

mod announcing;
mod document;
mod service_limits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_announce::decide::Withheld;
use tidegate_conntrack::{EvictionReason, Phase};
use tidegate_dataplane::gateway::{
    BackendFlowStats, BackendStats, InterfaceLink, InterfaceStats, LinkState, LinkStatus, NeighborUsage,
    Pages, PortReport, PuntClassStats, Restored, ServiceStats, SlowPathStats, Stats, TableMemoryStats,
    WorkerState, WorkerStats,
};
use tidegate_dataplane::punt::class::PuntClass;
use tidegate_flow_log::Lost;
use tidegate_health::CheckLoad;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ObjectKey, ServiceType};
use tidegate_pipeline::pipeline::{CookieCounts, RestoreCounts};
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::view::{BackendView, BackendViewState, PortRefusal, PortView, ServiceView};
use tidegate_policy::reconcile::{Finding, ObjectKind, Reason};
use tidegate_snapshot::counters::Traffic;
use tidegate_snapshot::service_limits::LimitedService;
use tidegate_source::{KeptObjects, SourceState, StaleFile};
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::verdict::{AnswerKind, DropReason, PuntReason, Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceKey};
use tidegate_structures::histogram::{Durations, Recorder};

use super::*;
use crate::views_testing;

/// A parsed page.
#[derive(Debug, Default)]
struct Page {
    /// TYPE by name.
    families: BTreeMap<String, String>,
    /// (sample name, labels) to the value.
    series: BTreeMap<(String, Vec<(String, String)>), f64>,
}

impl Page {
    /// Parses a page.
    ///
    /// # Panics
    /// At the first violation of the format or of the conventions for exporters.
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends as well");
        let mut page = Self::default();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line
                .strip_prefix("# HELP ")
                .and_then(|rest| rest.split_once(' '))
                .unwrap_or_else(|| panic!("a family begins with HELP and a text: {line}"));
            assert!(is_name(name) && help.ends_with('.'), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.unwrap_or_else(|| panic!("TYPE follows HELP of {name}"));
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{name}: {kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: {kind}");
            let twice = page.families.insert(name.to_owned(), kind.to_owned());
            assert!(twice.is_none(), "{name} is one family");
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                page.sample(name, kind, line);
            }
            if kind == "histogram" {
                page.check_histogram(name);
            }
        }
        page
    }

    fn sample(&mut self, family: &str, kind: &str, line: &str) {
        let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("a value follows: {line}"));
        let (name, rest) = line.split_at(end);
        match kind {
            "histogram" => {
                let part = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} in {family}"));
                assert!(["_bucket", "_sum", "_count"].contains(&part), "{line}");
            }
            _ => assert_eq!(name, family, "samples stand with their family"),
        }
        let (labels, rest) = labels(rest).unwrap_or_else(|what| panic!("{what}: {line}"));
        let names: BTreeSet<_> = labels.iter().map(|(label, _)| label).collect();
        assert_eq!(names.len(), labels.len(), "each label once: {line}");
        let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("one space before the value: {line}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("a number: {line}"));
        assert!(kind == "gauge" || value >= 0.0, "what counts is never negative: {line}");
        let twice = self.series.insert((name.to_owned(), labels), value);
        assert!(twice.is_none(), "no series twice: {line}");
    }

    fn check_histogram(&self, name: &str) {
        let buckets: Vec<(f64, f64)> = self
            .of(&format!("{name}_bucket"))
            .map(|(labels, count)| (labels[0].1.parse().expect("le is a number"), count))
            .collect();
        let mut buckets = buckets;
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} is cumulative: {buckets:?}");
        let (last, count) = *buckets.last().expect("there are buckets");
        assert_eq!((last, count), (f64::INFINITY, self.value(&format!("{name}_count"), &[])));
        self.value(&format!("{name}_sum"), &[]);
    }

    fn of(&self, name: &str) -> impl Iterator<Item = (&[(String, String)], f64)> {
        self.series.iter().filter(move |((n, _), _)| n == name).map(|((_, l), v)| (l.as_slice(), *v))
    }

    /// The value of one series.
    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Vec<_> = labels.iter().map(|(l, v)| ((*l).to_owned(), (*v).to_owned())).collect();
        let key = (name.to_owned(), labels);
        *self.series.get(&key).unwrap_or_else(|| panic!("{key:?} is on the page"))
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

type Labels = Vec<(String, String)>;

/// `{a="x",b="y"}` or nothing, and the rest of the line.
fn labels(text: &str) -> Result<(Labels, &str), String> {
    let Some(mut rest) = text.strip_prefix('{') else { return Ok((Vec::new(), text)) };
    let mut labels = Vec::new();
    loop {
        let (name, value) = rest.split_once("=\"").ok_or("a label has a value in quotes")?;
        if !is_name(name) {
            return Err(format!("{name} is no label"));
        }
        let mut text = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().ok_or("a label value ends")? {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('\\' | '"'))) => c,
                    other => return Err(format!("no such escape: {other:?}")),
                }),
                (_, c) => text.push(c),
            }
        };
        labels.push((name.to_owned(), text));
        rest = &value[end + 1..];
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b'}') => return Ok((labels, &rest[1..])),
            _ => return Err(format!("a comma or a brace after {name}")),
        }
    }
}

/// The data that a sample borrows.
struct World {
    interfaces: Vec<String>,
    links: Vec<InterfaceLink>,
    ports: Vec<PortReport>,
    stats: Stats,
    service_stats: Vec<ServiceStats>,
    services: Vec<Arc<ServiceView>>,
    findings: Vec<Finding>,
    pools: Vec<PoolUsage>,
    timings: Timings,
    latencies: Latencies,
    flow_sharing: FlowSharingSample,
    stale_files: Vec<StaleFile>,
    source: SourceState,
}

impl World {
    fn sample(&self) -> Sample<'_> {
        Sample {
            build: BuildSample {
                version: "1.2.3",
                commit: "0d7309f",
                dpdk: "DPDK 22.11.7",
                gateway: "edge-1",
            },
            dataplane: DataplaneSample {
                interfaces: &self.interfaces,
                links: &self.links,
                ports: &self.ports,
                stats: &self.stats,
                services: &self.service_stats,
                limited: &[],
                backend_flows: &[],
                packet_buffers: (1000, 400),
            },
            round: RoundSample {
                services: &self.services,
                findings: &self.findings,
                own_findings: &[],
                pools: &self.pools,
                stale_files: &self.stale_files,
                slices_left_out: 7,
            },
            publication: PublicationSample {
                generations: Generations { desired: 8, applied: 7 },
                failures: 3,
                timings: &self.timings,
            },
            checks: CheckSample {
                results: &[("success", 21), ("failure", 2)],
                load: CheckLoad { targets: 9, failing: 2, damped: 1, in_progress: 4, late: 5, stretch: 3 },
            },
            gateway: GatewaySample {
                drain: GatewayDrainState::Draining,
                ready: true,
                degraded: 2,
                configuration_refused: true,
                unsaved: &[("addresses", false), ("objects", true)],
                comparisons: &[("reconcile", 5, 0), ("allocation", 5, 1)],
            },
            latencies: &self.latencies,
            flow_sharing: Some(&self.flow_sharing),
            flow_log: Some(&FlowLogSample {
                records: [("begin", 21), ("end", 20)],
                lost: [
                    (Lost::QueueFull, 0),
                    (Lost::NoEntry, 1),
                    (Lost::Unnamed, 2),
                    (Lost::File, 3),
                    (Lost::Collector, 4),
                ],
            }),
            log: LogSample { suppressed: 11, lost: 12, events: &[(tidegate_events::Reason::LinkDown, 13)] },
            source: &self.source,
            credentials_expire: Timestamp::from_second(1_700_000_900).ok(),
            cluster: None,
            announce: None,
            layer2: Some(super::Layer2Counts { owned: 3, groups: 8, taken: 5, failures: 1 }),
            process: None,
            per_backend: true,
        }
    }

    fn page(&self) -> Page {
        Page::parse(&render(&self.sample()))
    }
}

fn worker(worker: u8, state: WorkerState) -> WorkerStats {
    WorkerStats {
        worker,
        core: 1,
        state,
        busy_ratio: 0.25,
        cycles_per_packet: 120.5,
        frames: 1000 + u64::from(worker),
        flows: 50,
        flow_memory: TableMemoryStats { pages: Pages::Small, bytes: 0 },
        neighbor_events_lost: 3,
        syn_cookies: CookieCounts { sent: 61, accepted: 62, refused: 63 },
        services_under_flood: 2,
        hangs: 5,
    }
}

fn finding(reason: Reason) -> Finding {
    let object = ObjectKey { namespace: "default".into(), name: "web".into() };
    Finding { object, kind: ObjectKind::Service, reason, diagnostic: Diagnostic::error("refused".to_owned()) }
}

/// `shop/web:http` on one VIP.
fn service_stats(vip: &str, packets: u64, backends: &[(&str, u64)]) -> ServiceStats {
    let backend = |(at, (address, connections)): (usize, &(&str, u64))| BackendStats {
        // Backends of different VIPs have different ids.
        id: BackendId::new(at + if vip.contains(':') { 10 } else { 0 }, 0),
        address: address.parse::<std::net::IpAddr>().unwrap().into(),
        port: 8080,
        traffic: [packets, 3].map(|packets| Traffic { packets, bytes: packets * 100 }),
        connections: *connections,
        set_aside: usize::from(at == 0),
    };
    ServiceStats {
        id: ServiceId::new(0, 0),
        key: ServiceKey { vip: vip.parse().unwrap(), protocol: Protocol::Tcp, port: 80 },
        namespace: "shop".into(),
        name: "web".into(),
        port_name: "http".into(),
        mode: ForwardingMode::FullNat,
        partial_checksums: 0,
        from_router: 0,
        traffic: [packets, 3].map(|packets| Traffic { packets, bytes: packets * 100 }),
        backends: backends.iter().enumerate().map(backend).collect(),
    }
}

fn port_view(vip: &str, backends: &[(&str, BackendViewState)]) -> PortView {
    let backend = |&(address, state): &(&str, BackendViewState)| {
        let at = std::net::SocketAddr::new(address.parse().unwrap(), 8080).to_string();
        let warm_up_percent = (state == BackendViewState::Active).then_some(30);
        BackendView { warm_up_percent, ..views_testing::backend(&at, state) }
    };
    views_testing::port(vip, ForwardingMode::FullNat, backends.iter().map(backend).collect())
}

fn recorded(nanos: &[u64]) -> Durations {
    let recorder = Recorder::default();
    nanos.iter().for_each(|&one| recorder.record(one));
    recorder.read()
}

/// Counters of the dataplane, each with a different value.
fn stats() -> Stats {
    let interface = |n: u64| InterfaceStats {
        rx_packets: n,
        rx_bytes: n + 1,
        tx_packets: n + 2,
        tx_bytes: n + 3,
        address_conflicts: n + 4,
        checksums_sampled: n + 6,
        checksums_partial: n + 5,
    };
    let drops = DropReason::all().enumerate().map(|(at, why)| (why, at as u64));
    Stats {
        interfaces: vec![interface(10), interface(20)],
        drops: drops.collect(),
        transmits: TransmitReason::ALL.iter().map(|&why| (why, 100 + why.index() as u64)).collect(),
        punts: PuntReason::ALL.iter().map(|&why| (why, 200 + why.index() as u64)).collect(),
        hand_overs: 31,
        arrivals_as_computed: 40,
        arrivals_elsewhere: 2,
        workers: vec![worker(0, WorkerState::Running), worker(1, WorkerState::Failed)],
        iterations: vec![recorded(&[1_500, 8_000]), recorded(&[8_000, 3_000_000])],
        punt_queue: recorded(&[40_000, 4_500_000]),
        evictions: EvictionReason::ALL.iter().map(|&why| (why, 300 + why as u64)).collect(),
        flows_refused: 32,
        backends_set_aside: 34,
        backends_returned: 35,
        answers_suppressed: AnswerKind::ALL.iter().map(|&kind| (kind, 400 + kind.index() as u64)).collect(),
        punt_classes: PuntClass::ALL
            .map(|class| {
                let n = 400 + 10 * class as u64;
                (class, PuntClassStats { passed: n, rate_limited: n + 1, queue_full: n + 2 })
            })
            .into(),
        restored: Some(Restored {
            counts: RestoreCounts { restored: 55, not_restored: std::array::from_fn(|n| 500 + n as u64) },
            refused_tables: 56,
            took: Duration::from_millis(250),
            is_done: true,
        }),
        neighbors: NeighborUsage { next_hops: 51, next_hops_max: 52, on_demand: 53, on_demand_max: 54 },
        path_mtus_received: 33,
        slow_path: SlowPathStats {
            to_kernel: 41,
            to_kernel_dropped: 42,
            from_kernel: 43,
            from_kernel_dropped: 44,
            neighbor_frames: 45,
            neighbors_refused: 48,
            neighbors_evicted: 49,
            injected: 46,
            injected_dropped: 47,
            is_healthy: false,
            hangs: 57,
        },
    }
}

fn world() -> World {
    let stats = stats();
    let timings = Timings::default();
    timings.observe_sync(Duration::from_micros(500));
    timings.observe_programming(Duration::from_millis(18));
    timings.observe_programming(Duration::from_secs(120));
    timings.observe_publication(Duration::from_micros(300));
    let round_trips = recorded(&[800_000, 1_000_000_000]);
    let latencies = Latencies::merge(&stats, round_trips, &timings);
    let (active, down) = (BackendViewState::Active, BackendViewState::Down);
    World {
        interfaces: vec!["uplink".into()],
        ports: vec![PortReport {
            mbps: Some(10_000),
            stats: vec![("rx_missed_errors".to_owned(), 3), ("rx_q0_packets".to_owned(), 50)],
        }],
        links: vec![InterfaceLink {
            name: "uplink".into(),
            port: LinkStatus { state: LinkState::NoCarrier, since: UNIX_EPOCH, transitions: 3 },
            tap: Some((
                "tg-uplink".into(),
                LinkStatus { state: LinkState::Up, since: UNIX_EPOCH, transitions: 2 },
            )),
            fault: None,
            short_mtu: None,
            other_mac: None,
            renamed: None,
            tap_recreated: None,
            mac_changes: 4,
        }],
        stats,
        service_stats: vec![
            service_stats("203.0.113.1", 5, &[("10.0.0.1", 2), ("10.0.0.2", 1)]),
            service_stats("2001:db8:1::1", 7, &[("2001:db8::a", 4), ("10.0.0.1", 3)]),
        ],
        services: vec![Arc::new(ServiceView {
            service_type: Some(ServiceType::LoadBalancer),
            ..views_testing::service(
                "web",
                vec![
                    port_view("203.0.113.1", &[("10.0.0.1", active), ("10.0.0.2", down)]),
                    port_view(
                        "2001:db8:1::1",
                        &[("10.0.0.1", active), ("2001:db8::a", BackendViewState::Draining)],
                    ),
                ],
            )
        })],
        findings: vec![
            finding(Reason::ExternalIpDenied),
            finding(Reason::Conflict),
            finding(Reason::ExternalIpDenied),
        ],
        pools: vec![PoolUsage {
            pool: "public".into(),
            total: 1 << 70,
            assigned: 3,
            reserved: 1,
            outside: 2,
            ..PoolUsage::default()
        }],
        timings,
        latencies,
        flow_sharing: FlowSharingSample {
            peers: vec![
                ("192.0.2.3:10358".into(), true, 9, Some(0.25)),
                ("192.0.2.4:10358".into(), false, 0, None),
            ],
            datagrams: (40, 5, 30),
            rejected: vec![("unauthentic", 6)],
            results: vec![("conflict", 7)],
            lost: [("worker", 8), ("peer", 0)],
        },
        stale_files: [1_700_000_100, 1_700_000_000]
            .map(|at| StaleFile { path: "a.yaml".into(), since: UNIX_EPOCH + Duration::from_secs(at) })
            .to_vec(),
        source: SourceState {
            last_sync: Some(Timestamp::from_second(1_700_000_300).expect("a time")),
            last_error: Some("gone".into()),
            from_disk: true,
            failures: 4,
            corrupt_files: 1,
            kept: [KeptObjects {
                kind: "Service",
                count: 6,
                some: vec!["shop/web".into()],
                until: Timestamp::from_second(1_700_000_600).expect("a time"),
            }]
            .into(),
            ..SourceState::unconnected_since(Timestamp::from_second(1_700_000_200).expect("a time"))
        },
    }
}

const WEB: [(&str, &str); 4] =
    [("namespace", "shop"), ("service", "web"), ("port", "http"), ("protocol", "TCP")];

fn web_direction(direction: &str) -> Vec<(&str, &str)> {
    WEB.into_iter().chain([("direction", direction)]).collect()
}

fn web_backend(backend: &str) -> Vec<(&str, &str)> {
    WEB.into_iter().chain([("backend", backend)]).collect()
}

#[test]
fn every_promised_metric_is_on_the_page_with_its_kind() {
    let page = world().page();
    for (name, kind) in [
        ("packets_total", "counter"),
        ("bytes_total", "counter"),
        ("drops_total", "counter"),
        ("service_packets_total", "counter"),
        ("service_bytes_total", "counter"),
        ("backend_connections_total", "counter"),
        ("backend_set_aside_workers", "gauge"),
        ("backends_set_aside_total", "counter"),
        ("backends_returned_total", "counter"),
        ("backend_up", "gauge"),
        ("snat_ports", "gauge"),
        ("snat_ports_max", "gauge"),
        ("flows", "gauge"),
        ("flow_evictions_total", "counter"),
        ("worker_busy_ratio", "gauge"),
        ("worker_cycles_per_packet", "gauge"),
        ("snapshot_generation", "gauge"),
        ("sync_duration_seconds", "histogram"),
        ("network_programming_duration_seconds", "histogram"),
        ("worker_turn_seconds", "histogram"),
        ("punt_queue_seconds", "histogram"),
        ("health_check_seconds", "histogram"),
        ("publication_seconds", "histogram"),
        ("health_checks_total", "counter"),
        ("health_fail_open", "gauge"),
        ("pool_addresses", "gauge"),
    ] {
        assert_eq!(page.families.get(&format!("tidegate_{name}")).map(String::as_str), Some(kind), "{name}");
    }
    assert!(page.families.keys().all(|name| name.starts_with("tidegate_")));
}

#[test]
fn values_of_the_dataplane_are_those_of_the_sample() {
    let page = world().page();
    let check = |name: &str, labels: &[(&str, &str)], expected: f64| {
        assert_eq!(page.value(&format!("tidegate_{name}"), labels), expected, "{name} {labels:?}");
    };
    check(
        "build_info",
        &[("version", "1.2.3"), ("commit", "0d7309f"), ("dpdk", "DPDK 22.11.7"), ("gateway", "edge-1")],
        1.0,
    );
    check("packets_total", &[("interface", "uplink"), ("direction", "rx")], 10.0);
    check("bytes_total", &[("interface", "uplink"), ("direction", "rx")], 11.0);
    check("packets_total", &[("interface", "uplink"), ("direction", "tx")], 12.0);
    check("bytes_total", &[("interface", "uplink"), ("direction", "tx")], 13.0);
    check("packets_total", &[("interface", "1"), ("direction", "rx")], 20.0);
    let uplink = [("interface", "uplink")];
    for (name, expected) in [
        ("interface_up", 0.0),
        ("interface_transitions_total", 3.0),
        ("interface_mac_changes_total", 4.0),
        ("tap_up", 1.0),
        ("tap_transitions_total", 2.0),
    ] {
        check(name, &uplink, expected);
    }
    for (at, why) in DropReason::all().enumerate() {
        check("drops_total", &[("reason", why.as_str())], at as f64);
    }
    check("transmits_total", &[("reason", "forward")], 100.0);
    check("transmits_total", &[("reason", "reply")], 101.0);
    check("punts_total", &[("reason", "local")], 201.0);
    check("hand_overs_total", &[], 31.0);
    check("kernel_packets_total", &[("direction", "to_kernel")], 41.0);
    check("kernel_drops_total", &[("direction", "to_kernel")], 42.0);
    check("kernel_packets_total", &[("direction", "from_kernel")], 43.0);
    check("kernel_drops_total", &[("direction", "from_kernel")], 44.0);
    check("neighbor_frames_total", &[], 45.0);
    check("neighbors_refused_total", &[], 48.0);
    check("neighbors_evicted_total", &[], 49.0);
    check("neighbors", &[("kind", "next_hop")], 51.0);
    check("neighbors_max", &[("kind", "next_hop")], 52.0);
    check("neighbors", &[("kind", "on_demand")], 53.0);
    check("neighbors_max", &[("kind", "on_demand")], 54.0);
    check("punts_by_class_total", &[("class", "neighbor_answer"), ("result", "passed")], 400.0);
    check("punts_by_class_total", &[("class", "answer"), ("result", "rate_limited")], 421.0);
    check("punts_by_class_total", &[("class", "other"), ("result", "queue_full")], 452.0);
    check("address_conflicts_total", &[("interface", "uplink")], 14.0);
    check("injected_packets_total", &[], 46.0);
    check("injected_drops_total", &[], 47.0);
    check("slow_path_up", &[], 0.0);
    check("thread_hangs_total", &[("thread", "worker 0")], 5.0);
    check("thread_hangs_total", &[("thread", "slow path")], 57.0);
    check("restored_flows", &[("result", "restored")], 55.0);
    check("restored_flows", &[("result", "expired")], 501.0);
    check("restored_refused_tables", &[], 56.0);
    check("restored_seconds", &[], 0.25);
    check("recorded_events_total", &[("reason", "LinkDown")], 13.0);
    check("worker_up", &[("worker", "0")], 1.0);
    check("worker_up", &[("worker", "1")], 0.0);
    check("worker_busy_ratio", &[("worker", "0")], 0.25);
    check("worker_cycles_per_packet", &[("worker", "1")], 120.5);
    check("worker_packets_total", &[("worker", "1")], 1001.0);
    check("neighbor_events_lost_total", &[("worker", "0")], 3.0);
    check("flows", &[("worker", "0")], 50.0);
    check("syn_cookies_total", &[("result", "sent")], 122.0);
    check("syn_cookies_total", &[("result", "refused")], 126.0);
    check("services_under_syn_flood", &[("worker", "1")], 2.0);
    check("flow_evictions_total", &[("reason", "bucket_full")], 301.0);
    check("flows_refused_total", &[], 32.0);
    check("path_mtus_learnt_total", &[], 33.0);
    check("answers_suppressed_total", &[("kind", "time_exceeded")], 401.0);
}

#[test]
fn values_of_the_control_plane_are_those_of_the_sample() {
    let page = world().page();
    let check = |name: &str, labels: &[(&str, &str)], expected: f64| {
        assert_eq!(page.value(&format!("tidegate_{name}"), labels), expected, "{name} {labels:?}");
    };
    check("snapshot_generation", &[("kind", "desired")], 8.0);
    check("snapshot_generation", &[("kind", "applied")], 7.0);
    check("health_checks_total", &[("result", "success")], 21.0);
    check("health_checks_total", &[("result", "failure")], 2.0);
    check("health_checks_late_total", &[], 5.0);
    check("health_checks_in_flight", &[], 4.0);
    check("health_targets", &[("state", "passing")], 7.0);
    check("health_targets", &[("state", "failing")], 2.0);
    check("health_targets", &[("state", "damped")], 1.0);
    check("health_interval_stretch_ratio", &[], 3.0);
    check("pool_addresses", &[("pool", "public"), ("state", "assigned")], 3.0);
    check("pool_addresses", &[("pool", "public"), ("state", "reserved")], 1.0);
    check("pool_addresses", &[("pool", "public"), ("state", "free")], (1_u128 << 70) as f64 - 4.0);
    check("external_ip_denied", &[], 2.0);
    check("source_stale_files", &[], 2.0);
    check("source_endpoint_slices_left_out", &[], 7.0);
    check("log_lines_left_out_total", &[], 11.0);
    check("log_lines_lost_total", &[], 12.0);
    check("configuration_refused", &[], 1.0);
    check("gateway_state", &[("state", "draining")], 1.0);
    check("gateway_state", &[("state", "serving")], 0.0);
    check("gateway_state", &[("state", "drained")], 0.0);
    check("flow_sharing_peer_up", &[("peer", "192.0.2.3:10358")], 1.0);
    check("flow_sharing_peer_up", &[("peer", "192.0.2.4:10358")], 0.0);
    check("flow_sharing_peer_queue", &[("peer", "192.0.2.3:10358")], 9.0);
    check("flow_sharing_peer_silence_seconds", &[("peer", "192.0.2.3:10358")], 0.25);
    check("flow_sharing_datagrams_total", &[("direction", "sent")], 40.0);
    check("flow_sharing_datagrams_total", &[("direction", "received")], 30.0);
    check("flow_sharing_resent_total", &[], 5.0);
    check("flow_sharing_rejected_total", &[("reason", "unauthentic")], 6.0);
    check("flow_sharing_learned_total", &[("result", "conflict")], 7.0);
    check("flow_sharing_lost_total", &[("at", "worker")], 8.0);
    check("flow_log_records_total", &[("event", "begin")], 21.0);
    check("flow_log_lost_total", &[("reason", "file")], 3.0);
    check("state_unsaved", &[("state", "addresses")], 0.0);
    check("state_unsaved", &[("state", "objects")], 1.0);
    check("source_stale_timestamp_seconds", &[], 1_700_000_000.0);
    check("source_connected", &[], 0.0);
    check("source_connected_timestamp_seconds", &[], 1_700_000_200.0);
    check("source_last_sync_timestamp_seconds", &[], 1_700_000_300.0);
    check("source_credentials_expiry_timestamp_seconds", &[], 1_700_000_900.0);
    check("source_failures_total", &[], 4.0);
    check("source_from_disk", &[], 1.0);
    check("source_corrupt_files_total", &[], 1.0);
    check("source_kept_objects", &[("kind", "Service")], 6.0);
    check("packet_buffers", &[("state", "free")], 400.0);
    check("packet_buffers", &[("state", "used")], 600.0);
}

#[test]
fn timings_land_in_their_buckets() {
    let page = world().page();
    let bucket = |name: &str, le: &str| page.value(&format!("tidegate_{name}_bucket"), &[("le", le)]);
    assert_eq!(bucket("sync_duration_seconds", "0.001"), 1.0);
    assert_eq!(page.value("tidegate_sync_duration_seconds_sum", &[]), 0.0005);
    assert_eq!(bucket("network_programming_duration_seconds", "0.015"), 0.0);
    assert_eq!(bucket("network_programming_duration_seconds", "0.02"), 1.0);
    assert_eq!(bucket("network_programming_duration_seconds", "60"), 1.0);
    assert_eq!(bucket("network_programming_duration_seconds", "+Inf"), 2.0);
    assert_eq!(page.value("tidegate_network_programming_duration_seconds_sum", &[]), 120.018);
}

#[test]
fn recorded_durations_are_histograms_over_all_workers() {
    let page = world().page();
    let bucket = |name: &str, le: &str| page.value(&format!("tidegate_{name}_bucket"), &[("le", le)]);
    let total = |name: &str| {
        let of = |part: &str| page.value(&format!("tidegate_{name}_{part}"), &[]);
        (of("count"), of("sum"))
    };
    assert_eq!(
        ["0.000001", "0.000002", "0.00001", "0.002", "0.005"].map(|le| bucket("worker_turn_seconds", le)),
        [0.0, 1.0, 3.0, 3.0, 4.0]
    );
    assert_eq!(total("worker_turn_seconds"), (4.0, 0.003_017_5));
    assert_eq!(["0.00002", "0.00005", "0.005"].map(|le| bucket("punt_queue_seconds", le)), [0.0, 1.0, 2.0]);
    assert_eq!(total("punt_queue_seconds"), (2.0, 0.004_54));
    assert_eq!(["0.0005", "0.001", "2"].map(|le| bucket("health_check_seconds", le)), [0.0, 1.0, 2.0]);
    assert_eq!(total("health_check_seconds"), (2.0, 1.000_8));
    assert_eq!(["0.0002", "0.0005", "5"].map(|le| bucket("publication_seconds", le)), [0.0, 1.0, 1.0]);
    assert_eq!(total("publication_seconds"), (1.0, 0.000_3));
}

#[test]
fn any_app_protocol_of_a_service_port_is_a_label() {
    for app_protocol in ["kubernetes.io/h2c", "example.com/unheard-of"] {
        let mut world = world();
        Arc::make_mut(&mut world.services[0]).ports[0].app_protocol = Some(app_protocol.into());
        let (namespace, name) = (world.services[0].namespace.clone(), world.services[0].name.clone());
        let labels = [
            ("namespace", namespace.as_str()),
            ("service", name.as_str()),
            ("port", "http"),
            ("protocol", "TCP"),
            ("app_protocol", app_protocol),
        ];
        assert_eq!(world.page().value("tidegate_service_info", &labels), 1.0);
    }
    assert_eq!(world().page().of("tidegate_service_info").count(), 0);
}

#[test]
fn two_vips_of_a_service_are_one_series_with_their_sum() {
    let page = world().page();
    assert_eq!(page.of("tidegate_service_packets_total").count(), 2);
    assert_eq!(page.value("tidegate_service_packets_total", &web_direction("request")), 12.0);
    assert_eq!(page.value("tidegate_service_packets_total", &web_direction("reply")), 6.0);
    assert_eq!(page.value("tidegate_service_bytes_total", &web_direction("request")), 1200.0);
    let connections = |backend| page.value("tidegate_backend_connections_total", &web_backend(backend));
    assert_eq!(connections("10.0.0.1:8080"), 5.0);
    assert_eq!(connections("10.0.0.2:8080"), 1.0);
    assert_eq!(connections("[2001:db8::a]:8080"), 4.0);
}

#[test]
fn replies_that_bypass_the_gateway_have_no_series() {
    let mut world = world();
    world.service_stats.iter_mut().for_each(|one| one.mode = ForwardingMode::DsrL2);
    let page = world.page();
    let labels: Vec<_> =
        page.of("tidegate_service_packets_total").map(|(labels, _)| labels[4].1.clone()).collect();
    assert_eq!(labels, ["request"]);
}

#[test]
fn the_same_port_of_two_protocols_is_two_series() {
    let mut world = world();
    let mut udp = service_stats("203.0.113.1", 9, &[("10.0.0.1", 6)]);
    udp.key.protocol = Protocol::Udp;
    world.service_stats.push(udp);
    let page = world.page();
    assert_eq!(page.value("tidegate_service_packets_total", &web_direction("request")), 12.0);
    let udp = [WEB[0], WEB[1], WEB[2], ("protocol", "UDP"), ("direction", "request")];
    assert_eq!(page.value("tidegate_service_packets_total", &udp), 9.0);
}

#[test]
fn a_service_port_that_fails_open_on_one_vip_shows_it() {
    let mut world = world();
    assert_eq!(world.page().value("tidegate_health_fail_open", &WEB), 0.0);
    let shop = Arc::make_mut(&mut world.services[0]);
    shop.ports.last_mut().expect("a port").fail_open = true;
    assert_eq!(world.page().value("tidegate_health_fail_open", &WEB), 1.0);
}

#[test]
fn a_warming_backend_shows_its_fraction_of_the_new_flows() {
    let mut world = world();
    let name = "tidegate_backend_warm_up_ratio";
    assert_eq!(world.page().value(name, &web_backend("10.0.0.1:8080")), 0.3);
    for port in &mut Arc::make_mut(&mut world.services[0]).ports {
        port.backends.iter_mut().for_each(|backend| backend.warm_up_percent = None);
    }
    assert!(!world.page().series.keys().any(|(family, _)| family == name), "all are warm");
}

#[test]
fn a_backend_is_up_while_it_accepts_new_flows_on_any_vip() {
    let mut world = world();
    let up = |world: &World, backend| world.page().value("tidegate_backend_up", &web_backend(backend));
    assert_eq!(up(&world, "10.0.0.1:8080"), 1.0);
    assert_eq!(up(&world, "10.0.0.2:8080"), 0.0, "down");
    assert_eq!(up(&world, "[2001:db8::a]:8080"), 0.0, "draining");
    Arc::make_mut(&mut world.services[0]).ports[0].backends[0].state = BackendViewState::Draining;
    assert_eq!(up(&world, "10.0.0.1:8080"), 1.0, "still active on the other VIP");
    Arc::make_mut(&mut world.services[0]).ports[1].refused =
        Some(PortRefusal::from("a request that is not granted".to_owned()));
    assert_eq!(up(&world, "10.0.0.1:8080"), 0.0, "a port that is not programmed does not count");
}

#[test]
fn snat_ports_are_counted_by_address_backend_and_state() {
    let world = world();
    let ports = |address: &str, established| BackendFlowStats {
        backend: BackendId::new(0, 0),
        local: Some(address.parse::<std::net::IpAddr>().unwrap().into()),
        flows: [
            (Phase::Closed, 1),
            (Phase::Opening, 2),
            (Phase::Closing, 3),
            (Phase::Established, established),
        ],
    };
    let gone = BackendFlowStats { backend: BackendId::new(77, 0), ..ports("192.0.2.3", 9) };
    let counted = [ports("192.0.2.3", 40_000), ports("192.0.2.4", 5), gone];
    let dataplane = DataplaneSample { backend_flows: &counted, ..world.sample().dataplane };
    let page = Page::parse(&render(&Sample { dataplane, ..world.sample() }));
    let value = |address, state| {
        let labels = [web_backend("10.0.0.1:8080"), vec![("address", address), ("state", state)]].concat();
        page.value("tidegate_snat_ports", &labels)
    };
    assert_eq!(value("192.0.2.3", "established"), 40_000.0);
    assert_eq!((value("192.0.2.4", "established"), value("192.0.2.4", "opening")), (5.0, 2.0));
    assert_eq!(page.of("tidegate_snat_ports").count(), 8, "none of a backend that is gone");
    assert_eq!(page.value("tidegate_snat_ports_max", &[]), 64_512.0);
    let active = |backend| page.value("tidegate_backend_connections", &web_backend(backend));
    assert_eq!((active("10.0.0.1:8080"), active("10.0.0.2:8080")), (40_005.0, 0.0), "established flows");
    let text = render(&Sample { per_backend: false, dataplane, ..world.sample() });
    assert!(!text.contains("tidegate_snat_ports"));
}

#[test]
fn series_per_backend_can_be_switched_off() {
    let world = world();
    let text = render(&Sample { per_backend: false, ..world.sample() });
    let page = Page::parse(&text);
    assert!(!page.families.keys().any(|name| name.starts_with("tidegate_backend_")));
    assert!(page.series.keys().all(|(_, labels)| labels.iter().all(|(label, _)| label != "backend")));
    let requests = page.value("tidegate_service_packets_total", &web_direction("request"));
    assert_eq!(requests, 12.0, "services stay");
}

#[test]
fn reasons_that_never_happened_are_present_at_zero() {
    let mut world = world();
    world.stats = Stats::default();
    world.stats.drops = vec![(DropReason::Refused(Refusal::NoRoute), 4)];
    let page = world.page();
    assert_eq!(page.of("tidegate_drops_total").count(), DropReason::COUNT);
    assert_eq!(page.of("tidegate_drops_total").map(|(_, count)| count).sum::<f64>(), 4.0);
    assert_eq!(page.value("tidegate_drops_total", &[("reason", "no_route")]), 4.0);
}

#[test]
fn any_label_value_is_escaped_and_read_back() {
    let mut world = world();
    let odd = "q\"b\\n\nend\\";
    world.pools[0].pool = odd.into();
    let text = render(&world.sample());
    assert!(text.contains(r#"{pool="q\"b\\n\nend\\",state="free"}"#), "{text}");
    let page = Page::parse(&text);
    assert_eq!(page.value("tidegate_pool_addresses", &[("pool", odd), ("state", "assigned")]), 3.0);
}

#[test]
fn nan_and_infinities_are_written_in_the_prometheus_format() {
    let mut world = world();
    for (value, text) in [(f64::NAN, "NaN"), (f64::INFINITY, "+Inf"), (f64::NEG_INFINITY, "-Inf")] {
        world.stats.workers[0].busy_ratio = value;
        let page = render(&world.sample());
        let line = format!("\ntidegate_worker_busy_ratio{{worker=\"0\"}} {text}\n");
        assert!(page.contains(&line), "{text}");
    }
}

#[test]
fn counts_are_written_in_full() {
    let mut world = world();
    world.stats.hand_overs = u64::MAX;
    assert!(render(&world.sample()).contains("\ntidegate_hand_overs_total 18446744073709551615\n"));
}

#[test]
fn nothing_stale_is_zero_not_absent() {
    let mut world = world();
    world.stale_files.clear();
    let page = world.page();
    assert_eq!(page.value("tidegate_source_stale_files", &[]), 0.0);
    assert_eq!(page.value("tidegate_source_stale_timestamp_seconds", &[]), 0.0);
}

#[test]
fn process_metrics_have_the_names_of_client_libraries() {
    let world = world();
    let process = Process::read().expect("tests run where /proc is mounted");
    let page = Page::parse(&render(&Sample { process: Some(&process), ..world.sample() }));
    assert_eq!(page.value("process_resident_memory_bytes", &[]), process.resident_bytes as f64);
    assert_eq!(page.value("process_cpu_seconds_total", &[]), process.cpu_seconds);
    assert_eq!(page.value("process_start_time_seconds", &[]), process.start_time_seconds);
}
