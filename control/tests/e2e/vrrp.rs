//! VRRP decides which gateway owns the VIPs: two gateways in their own namespaces on one link, each with Debian's
//! keepalived on its tap. A station sends ARP requests all the time and records who answers.
//!
//! The short form kills the master twice. `TIDEGATE_FAILOVERS=20 cargo test --workspace --test e2e vrrp` produced the
//! figures in `benches/results`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_netlab::arp_watch::ArpWatch;
use tidegate_netlab::keepalived::{Keepalived, KeepalivedPlan};
use tidegate_netlab::manifests::put;
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, LabPlan, Namespace, wait_for};
use tidegate_wire::MacAddr;

use crate::world::{alone, tidegate};

const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
/// `announce.l2.vrrp.heartbeatTimeout`.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time of any step on a busy machine. These tests prove bounds on overlap, not speed.
const BOUND: Duration = Duration::from_secs(60);

const OBJECTS: &str = "\
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: LoadBalancer, ports: [{name: http, port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, labels: {kubernetes.io/service-name: web}},
 addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [192.0.2.50]}]}
";

fn mac(n: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 3, n])
}

/// One gateway with its keepalived.
struct Edge {
    n: u8,
    /// keepalived's line about preempting a gateway with a lower priority.
    preempt: &'static str,
    // Declared first, so that both end before the namespace is removed.
    keepalived: Option<Keepalived>,
    gateway: Option<LabProcess>,
    namespace: Namespace,
    directory: PathBuf,
}

impl Edge {
    fn new(lab: &Lab, n: u8, preempt: &'static str) -> Self {
        let namespace = Namespace::create(&format!("{}-edge{n}", lab.id())).expect("a namespace");
        let switch = lab.switch();
        let lines = format!(
            "link add p-edge{n} type veth peer name eth0 address {} netns {}\nlink set p-edge{n} master br0 up",
            mac(n),
            namespace.name()
        );
        switch.ip_batch(&lines).expect("a link");
        switch.turn_off_offloads(&format!("p-edge{n}")).expect("ethtool");
        namespace.turn_off_offloads("eth0").expect("ethtool");
        namespace
            .sysctls(&[("ipv4/conf/eth0/rp_filter", "1"), ("ipv6/conf/eth0/disable_ipv6", "1")])
            .expect("sysctls");
        namespace.ip_batch("link set eth0 arp off up").expect("it is up");
        let directory = lab.directory().join(format!("edge{n}"));
        std::fs::create_dir_all(directory.join("manifests")).expect("a directory");
        put(&directory.join("manifests"), "objects.yaml", OBJECTS).expect("objects written");
        let edge = Self { n, preempt, keepalived: None, gateway: None, namespace, directory };
        std::fs::write(edge.directory.join("gateway.yaml"), edge.gateway_yaml())
            .expect("configuration written");
        edge
    }

    fn gateway_yaml(&self) -> String {
        let Self { n, directory, .. } = self;
        format!(
            r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: edge-{n}}}
dataplane:
  cores: [1]
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: 64}}
  flowTable: {{entriesPerCore: 4096, directory: ""}}
  interfaces:
    - {{name: uplink, device: "net_af_packet{n},iface=eth0", mac: "{mac}", addresses: ["192.0.2.{n}/24"]}}
  snatAddresses: ["192.0.2.10{n}"]
source: {{directory: {{path: manifests, stateDirectory: ""}}}}
pools: [{{name: public, addresses: ["{VIP}/32"]}}]
health: {{protocol: none}}
announce:
  l2: {{mode: vrrp, vrrp: {{fifo: {fifo}, heartbeatTimeout: {timeout}s}}}}
admin: {{socket: {socket}, listen: "", healthz: ""}}
"#,
            mac = mac(*n),
            fifo = directory.join("vrrp.fifo").display(),
            timeout = HEARTBEAT_TIMEOUT.as_secs(),
            socket = directory.join("tidegate.sock").display(),
        )
    }

    fn start(&mut self) {
        self.start_gateway();
        self.start_keepalived();
    }

    fn start_gateway(&mut self) {
        let config = self.directory.join("gateway.yaml").display().to_string();
        let run = ["run", "-c", &config];
        let gateway = LabProcess::start(&self.namespace, &self.directory, "gateway", tidegate(), &run);
        self.gateway = Some(gateway.expect("it starts"));
        self.wait("the gateway to be ready", |status| status["ready"] == true);
    }

    /// Restarts the gateway; its keepalived stays.
    fn restart_gateway(&mut self, signal: Signal) {
        let mut gateway = self.gateway.take().expect("it runs");
        gateway.signal(signal);
        gateway.wait(BOUND).expect("it ends");
        self.start_gateway();
        self.wait("the state of its group", |status| {
            ["master", "backup"].iter().any(|state| status["layer2"]["tidegate"] == *state)
        });
    }

    fn start_keepalived(&mut self) {
        // As in docs/layer2.md, with a shorter time.
        let plan = KeepalivedPlan {
            priority: 100 + 10 * u32::from(self.n),
            preempt: self.preempt,
            advert_int: "0.2",
            check_timeout: 1,
            address: "169.254.51.1/32 dev lo",
        };
        let keepalived = Keepalived::start(&self.namespace, &self.directory, &tidegate(), &plan);
        self.keepalived = Some(keepalived.expect("keepalived starts (apt-get install keepalived)"));
    }

    fn wait(&self, what: &str, is_met: impl Fn(&serde_json::Value) -> bool) {
        let socket = self.directory.join("tidegate.sock");
        let waited = wait_for(what, BOUND, || {
            let mut command = self.namespace.command(tidegate());
            let text = output_of(command.args(["status", "-o", "json", "--socket"]).arg(&socket)).ok()?;
            is_met(&serde_json::from_str(&text).ok()?).then_some(())
        });
        waited.unwrap_or_else(|error| panic!("{error:#}\n{}", self.logs()));
    }

    fn wait_for_state(&self, state: &str) {
        self.wait(&format!("edge {} to be {state}", self.n), |status| status["layer2"]["tidegate"] == state);
    }

    fn logs(&self) -> String {
        let gateway = self.gateway.as_ref().map_or_else(String::new, |one| one.log_tail(30));
        let keepalived = self.keepalived.as_ref().map_or_else(String::new, |one| one.log_tail(30));
        format!("edge {}:\n{gateway}\n{keepalived}", self.n)
    }

    /// Kills everything in its namespace at once, like a power failure.
    fn die(&mut self) {
        self.to_all(Signal::KILL, |_| true);
        (self.gateway, self.keepalived) = (None, None);
    }

    /// Sends a signal to the processes of its namespace whose command line matches.
    fn to_all(&self, signal: Signal, is_one: impl Fn(&str) -> bool) {
        let pids = output_of(std::process::Command::new("ip").args(["netns", "pids", self.namespace.name()]));
        for pid in pids.expect("ip").lines().filter_map(|line| line.trim().parse().ok()) {
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if let Some(pid) = Pid::from_raw(pid).filter(|_| is_one(command.trim())) {
                // The process may have exited.
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Two edges on a link, and the station that watches them.
struct Pair {
    edges: [Edge; 2],
    watch: ArpWatch,
    _lab: Lab,
}

impl Pair {
    /// Two edges, of which neither preempts the other.
    fn new() -> Self {
        Self::with("preempt_delay 1000")
    }

    fn with(preempt: &'static str) -> Self {
        let lab = Lab::build(&LabPlan { servers: 0, vips: Vec::new(), tidegate: tidegate() });
        let lab = lab.expect("the lab is built (needs root)");
        let mut edges = [1, 2].map(|n| Edge::new(&lab, n, preempt));
        let watch =
            ArpWatch::start(lab.switch(), "br0", Ipv4Addr::new(192, 0, 2, 200), &[VIP]).expect("it watches");
        edges.iter_mut().for_each(Edge::start);
        let pair = Self { edges, watch, _lab: lab };
        let owner = pair.owner();
        pair.edges[1 - owner].wait_for_state("backup");
        pair
    }

    /// The position of the edge that answers now.
    fn owner(&self) -> usize {
        let since = Instant::now();
        let found = wait_for("an answer", BOUND, || self.watch.owner(VIP, since));
        let found = found
            .unwrap_or_else(|error| panic!("{error:#}\n{}{}", self.edges[0].logs(), self.edges[1].logs()));
        usize::from(found != mac(1))
    }

    /// Waits until the other edge answers. Returns the time from `since` to its first answer, and how long the former
    /// owner still answered after that, observed for `quiet`.
    fn taken_over(&self, former: usize, since: Instant, quiet: Duration) -> (Duration, Duration) {
        let former_mac = mac(self.edges[former].n);
        let first =
            wait_for("the other gateway to answer", BOUND, || self.watch.first_other(VIP, former_mac, since));
        let first = first.unwrap_or_else(|error| panic!("{error:#}\n{}", self.edges[1 - former].logs()));
        pause_until(first.at + quiet);
        (first.at - since, self.watch.overlap(VIP, former_mac, first.at))
    }
}

/// Waits until a point in time, while the station records.
fn pause_until(end: Instant) {
    wait_for("some time", BOUND, || (Instant::now() >= end).then_some(())).expect("time passes");
}

#[test]
fn only_the_vrrp_master_answers_and_the_backup_takes_over_when_it_dies() {
    let _machine = alone();
    let failovers: usize = std::env::var("TIDEGATE_FAILOVERS").map_or(2, |n| n.parse().expect("a number"));
    let mut pair = Pair::new();
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..failovers {
        let owner = pair.owner();
        let died = Instant::now();
        pair.edges[owner].die();
        let (after, overlap) = pair.taken_over(owner, died, Duration::from_millis(500));
        assert_eq!(overlap, Duration::ZERO);
        took.push(after);
        pair.edges[owner].start();
        pair.edges[owner].wait_for_state("backup");
    }
    took.sort_unstable();
    let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
    eprintln!(
        "VRRP, advert_int 0.2: {failovers} masters died: median {median:.2?}, worst {worst:.2?}; overlap of owners: none"
    );
}

#[test]
fn a_master_whose_gateway_was_paused_is_silent_when_it_resumes() {
    let _machine = alone();
    let pair = Pair::new();
    let owner = pair.owner();
    let edge = &pair.edges[owner];
    let stopped = Instant::now();
    edge.to_all(Signal::STOP, |command| command == "tidegate");
    let (after, _) = pair.taken_over(owner, stopped, HEARTBEAT_TIMEOUT);
    let woken = Instant::now();
    edge.to_all(Signal::CONT, |command| command == "tidegate");
    edge.wait_for_state("backup");
    pause_until(woken + Duration::from_secs(2));
    assert_eq!(pair.watch.overlap(VIP, mac(edge.n), woken), Duration::ZERO, "it answered after it woke up");
    assert_eq!(pair.owner(), 1 - owner);
    eprintln!("stopped (SIGSTOP): the other gateway answers after {after:.2?}; no answer after SIGCONT");
}

#[test]
fn a_gateway_without_keepalived_stops_answering_within_the_timeout() {
    let _machine = alone();
    let mut pair = Pair::new();
    let owner = pair.owner();
    let hung = Instant::now();
    pair.edges[owner].to_all(Signal::STOP, |command| command.contains("keepalived"));
    let (after, overlap) = pair.taken_over(owner, hung, HEARTBEAT_TIMEOUT + Duration::from_secs(1));
    // One answer may already be on its way.
    assert!(overlap <= HEARTBEAT_TIMEOUT + Duration::from_millis(100), "{overlap:?}");
    eprintln!(
        "keepalived hung (SIGSTOP): two owners for {overlap:.2?}, bound {HEARTBEAT_TIMEOUT:?}; takeover after {after:.2?}"
    );
    // A keepalived that exits closes the FIFO, which the gateway notices immediately.
    let owner = 1 - owner;
    let ended = Instant::now();
    pair.edges[owner].to_all(Signal::KILL, |command| command.contains("keepalived"));
    pair.edges[owner].keepalived = None;
    pair.edges[owner].wait_for_state("unknown");
    pause_until(ended + Duration::from_secs(1));
    let replies = pair.watch.replies();
    let last = replies.iter().rfind(|one| one.is_answer && one.mac == mac(pair.edges[owner].n));
    let answered = last.expect("it answered").at.saturating_duration_since(ended);
    eprintln!("keepalived killed: the gateway answered for another {answered:.2?}");
    assert!(answered < Duration::from_secs(1), "{answered:?}");
    pair.edges[owner].start_keepalived();
    pair.edges[owner].wait("its state to be known again", |status| status["layer2"]["tidegate"] != "unknown");
}

/// Whether a line of `DEGRADED` contains this text.
fn is_degraded(status: &serde_json::Value, part: &str) -> bool {
    let degraded = status["degraded"].as_array().into_iter().flatten();
    degraded.filter_map(serde_json::Value::as_str).any(|why| why.contains(part))
}

#[test]
fn gateways_that_restart_alone_still_take_over_from_each_other() {
    let _machine = alone();
    // With `nopreempt`, a keepalived that has lost its sockets stays backup.
    for preempt in ["preempt_delay 2", "nopreempt"] {
        let mut pair = Pair::with(preempt);
        for signal in [Signal::TERM, Signal::KILL] {
            for n in [0, 1] {
                pair.edges[n].restart_gateway(signal);
                pair.owner();
            }
        }
        // With `preempt_delay`, the edge with the higher priority gets the group back.
        let owner = if preempt == "nopreempt" { pair.owner() } else { 1 };
        pair.edges[owner].wait_for_state("master");
        pair.edges[1 - owner].wait_for_state("backup");
        for edge in &pair.edges {
            edge.wait("no fault of VRRP", |status| !is_degraded(status, "VRRP"));
        }
        let died = Instant::now();
        pair.edges[owner].die();
        let (after, overlap) = pair.taken_over(owner, died, Duration::from_millis(500));
        assert_eq!(overlap, Duration::ZERO);
        eprintln!("{preempt}, after both gateways were restarted alone: takeover after {after:.2?}");
    }
}

#[test]
fn a_starting_gateway_takes_no_group_over_before_it_has_the_flows() {
    let _machine = alone();
    let lab = Lab::build(&LabPlan { servers: 0, vips: Vec::new(), tidegate: tidegate() });
    let lab = lab.expect("the lab is built (needs root)");
    let mut edge = Edge::new(&lab, 1, "preempt_delay 1000");
    // The peer doesn't answer, so the gateway waits for it as long as it may.
    let sharing = format!(
        "flowSharing: {{mode: nat, peers: [\"192.0.2.1:10358\", \"192.0.2.2:10358\"], key: {{value: \"{}\"}}}}\n",
        "7".repeat(64)
    );
    std::fs::write(edge.directory.join("gateway.yaml"), edge.gateway_yaml() + &sharing).expect("written");
    // keepalived starts later, so that its start does not use up the time for which the gateway waits.
    edge.start_gateway();
    let mut reasons = Vec::new();
    let checked = wait_for("a check that passes", BOUND, || {
        let mut check = edge.namespace.command(tidegate());
        let socket = edge.directory.join("tidegate.sock");
        let checked = check.args(["vrrp-check", "--socket"]).arg(socket).output().ok()?;
        reasons.push(String::from_utf8_lossy(&checked.stderr).into_owned());
        checked.status.success().then_some(())
    });
    checked.unwrap_or_else(|error| panic!("{error:#}\n{reasons:?}\n{}", edge.logs()));
    let waited = reasons.iter().any(|why| why.contains("has not imported the flows of its peers yet"));
    assert!(waited, "{reasons:?}");
    edge.start_keepalived();
    edge.wait_for_state("master");
}

#[test]
fn a_backup_whose_keepalived_has_lost_its_sockets_is_degraded() {
    let _machine = alone();
    // docs/layer2.md warns of this case.
    let mut pair = Pair::with("nopreempt");
    let owner = pair.owner();
    let backup = 1 - owner;
    pair.edges[backup].namespace.ip_batch("link del tg-uplink").expect("it was there");
    pair.edges[backup].wait("its tap to be back", |status| status["ready"] == true);
    pair.edges[backup].wait_for_state("backup");
    pair.edges[owner].die();
    let since = Instant::now();
    pair.edges[backup].wait("the fault", |status| {
        let is_reported = is_degraded(status, "it is backup, and no other station sends VRRP advertisements");
        is_reported || status["layer2"]["tidegate"] == "master"
    });
    eprintln!("a backup without sockets: seen after {:.2?}", since.elapsed());
}
