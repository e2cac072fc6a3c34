//! The flow log of real connections: as JSON lines in a file, and as IPFIX at a real collector (`nfcapd`). What it
//! counts is compared with what `tcpdump` saw at the client.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidegate_netlab::addresses::Family;
use tidegate_netlab::client::{EchoConnection, curl};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{GatewayOptions, Namespace, wait_for};

use crate::world::{APPLIED, World, beside_others, lab};

const COLLECTOR: &str = "127.0.0.1:4739";

/// The path of IPv4 clients in this mode.
fn path_of(forwarding: &str) -> ModePath {
    let paths = all_paths();
    let is_it = |path: &&ModePath| {
        path.forwarding == forwarding && path.family == Family::V4 && path.backends == Family::V4
    };
    *paths.iter().find(is_it).expect("each mode has a path")
}

/// A collector in the gateway's namespace, which stores what it receives in a directory.
struct Collector {
    process: LabProcess,
    directory: PathBuf,
}

impl Collector {
    fn start(gateway: &Namespace, directory: &Path) -> Self {
        let stored = directory.join("nfcapd");
        fs::create_dir_all(&stored).expect("a directory");
        let (address, port) = COLLECTOR.split_once(':').expect("an address and port");
        let stored_text = stored.display().to_string();
        let arguments = ["-w", &stored_text, "-b", address, "-p", port, "-t", "3600"];
        let process = LabProcess::start(gateway, directory, "collector", "nfcapd", &arguments);
        let process = process.expect("nfcapd starts (make setup installs it)");
        wait_for("nfcapd to receive", APPLIED, || process.log().contains("Startup nfcapd").then_some(()))
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self { process, directory: stored }
    }

    /// Stops it, and returns the flows that it has received, as `nfdump` shows them, and its log.
    fn stop(mut self) -> (Vec<String>, String) {
        self.process.signal(Signal::TERM);
        self.process.wait(APPLIED).expect("it ends");
        let mut nfdump = std::process::Command::new("nfdump");
        nfdump.arg("-R").arg(&self.directory).args(["-o", "raw", "-q"]);
        let shown = output_of(&mut nfdump).expect("nfdump reads the file of nfcapd");
        let flows = shown.split("Flow Record:").skip(1).map(str::to_owned).collect();
        (flows, self.process.log())
    }
}

/// The value of a field of a flow that `nfdump` shows.
fn field<'a>(flow: &'a str, name: &str) -> &'a str {
    let value = |line: &'a str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    };
    flow.lines().find_map(value).unwrap_or_else(|| panic!("{name} is in {flow}"))
}

/// Packets and bytes in one direction.
type Count = (u64, u64);

/// Captures the packets of a port at the client.
struct Capture {
    process: LabProcess,
}

impl Capture {
    fn start(client: &Namespace, directory: &Path, name: &str, of: SocketAddr) -> Self {
        let filter = format!("tcp and host {} and port {}", of.ip(), of.port());
        let arguments = ["-i", "eth0", "-nnvl", "-t", &filter];
        let process = LabProcess::start(client, directory, name, "tcpdump", &arguments);
        let process = process.expect("tcpdump starts");
        wait_for("tcpdump to capture", APPLIED, || process.log().contains("listening on").then_some(()))
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self { process }
    }

    /// What was captured: packets to the VIP, and packets from it.
    fn counts(&self, vip: SocketAddr) -> [Count; 2] {
        let (log, mut counts, mut len) = (self.process.log(), [(0, 0); 2], 0);
        let to_vip = format!(" > {}.{}: ", vip.ip(), vip.port());
        for line in log.lines() {
            // Two lines for each packet: the IP header, and what it contains.
            if let Some((_, rest)) = line.rsplit_once(", length ").filter(|_| line.starts_with("IP ")) {
                len = rest.trim_end_matches(')').parse().unwrap_or(0);
            } else if line.contains(" > ") && len > 0 {
                let count = &mut counts[usize::from(!line.contains(&to_vip))];
                (count.0, count.1) = (count.0 + 1, count.1 + len);
                len = 0;
            }
        }
        counts
    }
}

/// The records in the file of JSON lines.
fn records(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn count(record: &Value, direction: &str) -> Count {
    let number = |name: &str| record[direction][name].as_u64().expect("a number");
    (number("packets"), number("bytes"))
}

/// A gateway whose log goes to a file and to a collector.
fn start(file: &Path) -> World {
    let flow_log = format!(
        "{{services: all, file: {{path: {file:?}}}, ipfix: {{collector: \"{COLLECTOR}\", domain: 7}}}}"
    );
    let lab = lab(1);
    World::over(lab, GatewayOptions { flow_log, ..GatewayOptions::default() }, &manifests(&[1]), "")
}

#[test]
fn a_download_is_logged_as_json_and_as_ipfix_with_its_packets() {
    let _machine = beside_others();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("flows.json");
    let world = start(&file);
    let collector = Collector::start(world.lab.gateway(), directory.path());
    let mut captured = Vec::new();
    for mode in ["fullnat", "dsr-l2"] {
        let path = path_of(mode);
        let vip = path.http();
        let capture = Capture::start(world.lab.client(), directory.path(), mode, vip);
        let url = format!("http://{vip}/large");
        curl(world.lab.client(), &["-r", "0-65535", "-o", "/dev/null", &url]).expect("the download");
        let end = world.wait_until("the end of the download", || {
            let is_it = |record: &Value| {
                record["event"] == "end"
                    && record["forwarding"] == mode
                    && record["vip"]["port"] == vip.port()
            };
            records(&file).into_iter().find(is_it)
        });
        // The end is reported seconds after the last packet, so tcpdump has shown it.
        captured.push((mode, vip, capture.counts(vip), end));
    }
    let stopped = records(&file);
    for (mode, vip, [requests, replies], end) in &captured {
        let client = &end["client"];
        let begin = stopped.iter().find(|one| one["event"] == "begin" && one["client"] == *client);
        let begin = begin.unwrap_or_else(|| panic!("{mode}: the flow began"));
        assert_eq!((&begin["vip"], &begin["start"]), (&end["vip"], &end["start"]), "{mode}");
        assert_eq!(end["vip"]["address"], vip.ip().to_string());
        assert_eq!((&end["gateway"], &end["reason"]), (&"lab".into(), &"closed".into()), "{mode}");
        assert_eq!(count(end, "request"), *requests, "{mode}: what the client sent");
        if *mode == "fullnat" {
            assert_eq!(count(end, "reply"), *replies, "{mode}: what the client received");
            assert!(replies.1 > 65_536);
        } else {
            assert!(end.get("reply").is_none(), "{mode}: replies don't pass the gateway");
        }
    }
    let gateway = world.gateway();
    assert_eq!(
        gateway.metric("tidegate_flow_log_lost_total", &["reason=\"collector\""]).expect("it exists"),
        0.0
    );
    assert!(gateway.query(&["status"]).expect("it answers").contains("IPFIX collector 127.0.0.1:4739"));

    let (flows, log) = collector.stop();
    assert!(log.contains("Sequence Errors: 0, Bad Packets: 0"), "{log}");
    for (mode, vip, [requests, replies], end) in &captured {
        let client_port = end["client"]["port"].to_string();
        let is_its = |flow: &&String| {
            field(flow, "src port") == client_port && field(flow, "dst addr") == vip.ip().to_string()
        };
        let of_connection: Vec<_> = flows.iter().filter(is_its).collect();
        let [begin, ended] = of_connection[..] else { panic!("{mode}: begin and end in {flows:?}") };
        assert_eq!(field(begin, "in packets"), "0", "{mode}");
        let number = |name| field(ended, name).parse::<u64>().expect("a number");
        assert_eq!((number("in packets"), number("in bytes")), *requests, "{mode}");
        let backend = end["backend"]["address"].as_str().expect("an address");
        if *mode == "fullnat" {
            assert_eq!((number("out packets"), number("out bytes")), *replies, "{mode}");
            assert_eq!(field(ended, "dst xlt ip"), backend);
            assert_eq!(field(ended, "src xlt ip"), end["source"]["address"].as_str().expect("an address"));
            assert!(field(begin, "nat event").starts_with('4') && field(ended, "nat event").starts_with('5'));
            assert!(field(ended, "end reason").starts_with("0x03"), "end of flow detected");
        } else {
            assert_eq!(field(ended, "ip next hop"), backend);
        }
    }
}

#[test]
fn the_connection_with_the_most_bytes_is_listed_first() {
    let _machine = beside_others();
    let directory = tempfile::tempdir().expect("a directory");
    let world = start(&directory.path().join("flows.json"));
    let server = tidegate_netlab::server::name(1);
    let mut connections =
        ["fullnat", "nat", "dsr-l2"].map(|mode| world.wait_until_used(path_of(mode), &server));
    for (n, connection) in connections.iter_mut().enumerate() {
        (0..n * 200).for_each(|_| connection.ping().expect("it is forwarded"));
    }
    let port = |connection: &EchoConnection| u64::from(connection.local().expect("it is connected").port());
    let [few, most, of_dsr] = connections.each_ref().map(port);
    let listed = |args: &[&str]| -> Vec<(u64, Option<u64>, Option<u64>)> {
        let args = [&["flows", "--sort", "bytes", "-o", "json"], args].concat();
        let answer = world.gateway().query(&args).expect("it answers");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let flows = answer["flows"].as_array().expect("a list").iter();
        let row = |flow: &Value| {
            let client: SocketAddr =
                flow["client"].as_str().and_then(|text| text.parse().ok()).expect("a client");
            (u64::from(client.port()), flow["bytes"].as_u64(), flow["packets"].as_u64())
        };
        flows.map(row).collect()
    };
    let rows = listed(&[]);
    assert!(rows.is_sorted_by_key(|(_, bytes, _)| std::cmp::Reverse(*bytes)), "{rows:?}");
    let position = |port: u64| rows.iter().position(|row| row.0 == port).expect("it is listed");
    // Both directions of `nat` pass through the gateway, and only the client's of `dsr-l2`, which has twice the pings.
    assert!(position(few) > position(most) && position(few) > position(of_dsr), "{rows:?}");
    assert!(rows[0].1 > Some(200 * 2 * 40) && rows[0].2 > Some(2 * 200), "{rows:?}");
    assert_eq!(listed(&["--limit", "1"]), rows[..1], "the limit is reached by the largest");
    let table = world.gateway().query(&["flows", "--sort", "bytes", "--limit", "1"]).expect("it answers");
    assert!(table.lines().next().is_some_and(|headers| headers.ends_with(" BYTES")), "{table}");
    assert!(table.ends_with(&format!("   {}\n", rows[0].1.expect("it is logged"))), "{table}");
}

#[test]
fn records_without_a_collector_are_lost_and_a_stop_ends_open_flows() {
    let _machine = beside_others();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("flows.json");
    let mut world = start(&file);
    let path = path_of("nat");
    let mut open = world.wait_until_used(path, &tidegate_netlab::server::name(1));
    // Each refusal shows at the next message.
    world.wait_until("refused messages to be counted", || {
        let _ = world.connect(path, 0);
        let lost = world.gateway().metric("tidegate_flow_log_lost_total", &["reason=\"collector\""]).ok()?;
        (lost > 0.0).then_some(())
    });
    assert!(world.gateway().log().contains("flowLog.ipfix: cannot send to 127.0.0.1:4739"));
    open.ping().expect("forwarding doesn't depend on the log");
    let port = open.local().expect("it is connected").port();
    world.take_gateway().stop().expect("it stops");
    let is_its_end = |record: &&Value| record["event"] == "end" && record["client"]["port"] == port;
    let records = records(&file);
    let end = records.iter().find(is_its_end).expect("the end of the open connection");
    assert_eq!((&end["reason"], &end["beginSeen"]), (&"stopped".into(), &true.into()));
    assert!(Duration::from_millis(end["durationMs"].as_u64().expect("a number")) > Duration::ZERO);
}
