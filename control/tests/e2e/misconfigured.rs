//! Mistakes in the setup of hosts and networks around a correctly configured gateway, and where the gateway names each
//! of them.
//!
//! Each test makes one or more mistakes on purpose, lets real clients try, and expects the gateway to name the mistake
//! within a minute where operators look first: in `tidegate status`, in the error of a failed start, or in `backends`
//! or `drops` of failing traffic. On the scale of `cli_mistakes` that scores 2 points; a missing default route scores
//! 1, because its drops could be intended. The 17 mistakes of these tests reach 33 of 34 points if all tests pass.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_netlab::addresses::{self as plan, Family, HTTP_PORT, HTTP_TARGET_PORT};
use tidegate_netlab::gateway::{config_of, manifests_of};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::{Gateway, GatewayOptions, Lab, wait_for};

use crate::world::{beside_others, lab};

/// The maximum time until a mistake is named.
const NAMED: Duration = Duration::from_secs(60);
/// A neighbor that doesn't exist, on the servers' link.
const NOBODY: &str = "192.0.2.250";

/// A gateway in a lab with one server, and one Service.
struct Setup {
    // Declared first, so that the daemon ends before its namespace is removed.
    gateway: Gateway,
    lab: Lab,
    vip: IpAddr,
}

impl Setup {
    /// Starts a gateway whose `gateway.yaml` was changed by `edit`.
    fn start(forwarding: &'static str, edit: impl FnOnce(String) -> String) -> Self {
        Self::with(forwarding, &GatewayOptions::default(), edit)
    }

    fn with(forwarding: &'static str, options: &GatewayOptions, edit: impl FnOnce(String) -> String) -> Self {
        let lab = lab(1);
        let is_dsr = forwarding.starts_with("dsr");
        let vip = if is_dsr { plan::on_link_vip(Family::V4, 1) } else { plan::routed_vip(Family::V4, 3) };
        let target = if is_dsr { HTTP_PORT } else { HTTP_TARGET_PORT };
        let port = PortSpec::tcp("http", HTTP_PORT).to(target);
        let service = Manifest::new("web", forwarding, &[vip], vec![port]);
        let service = service.with_endpoints([EndpointSpec::ready(plan::server(Family::V4, 1))]);
        Gateway::configure(&lab, options).expect("the configuration is written");
        let text = fs::read_to_string(config_of(&lab)).expect("the configuration");
        fs::write(config_of(&lab), edit(text)).expect("the configuration is written");
        service.write(&manifests_of(&lab)).expect("the manifest is written");
        let gateway = Gateway::start(&lab).expect("the gateway is ready (needs DPDK)");
        Self { gateway, lab, vip }
    }

    /// A client that connects repeatedly.
    fn client(&self) -> Client {
        let (stop, namespace) = (Arc::<AtomicBool>::default(), self.lab.client().clone());
        let (flag, to) = (Arc::clone(&stop), SocketAddr::new(self.vip, HTTP_PORT));
        let thread = thread::spawn(move || {
            namespace.enter(|| {
                while !flag.load(Ordering::Relaxed) {
                    // The outcome doesn't matter; the test checks what the gateway reports.
                    let _ = TcpStream::connect_timeout(&to, Duration::from_millis(1_500));
                    // A client that succeeds can wait.
                    thread::sleep(Duration::from_millis(50));
                }
            });
        });
        Client { stop, thread: Some(thread) }
    }

    /// Waits until `tidegate status -o wide` contains all of these words.
    fn status_names(&self, words: &[&str]) -> String {
        let mut last = String::new();
        let named = wait_for(&format!("{words:?} in the status"), NAMED, || {
            last = self.gateway.query(&["status", "-o", "wide"]).ok()?;
            words.iter().all(|word| last.contains(word)).then_some(())
        });
        named.unwrap_or_else(|error| {
            panic!("{error:#}\n{last}\n{}", self.gateway.log_tail(30));
        });
        last
    }

    /// Waits until the finding with this reason and these words is in the status, the log, the Service and a metric.
    fn finds(&self, reason: &str, words: &[&str]) {
        let words: Vec<&str> = words.iter().copied().chain([reason, "lab/web"]).collect();
        let _ = self.status_names(&words);
        let warned = wait_for("the log line", NAMED, || self.gateway.log().contains(words[0]).then_some(()));
        warned.expect("it is logged");
        let label = format!("reason=\"{reason}\"");
        assert!(self.gateway.metric("tidegate_findings", &[&label]).expect("metrics") >= 1.0);
        let services = self.gateway.query(&["services", "-A", "-o", "json"]).expect("services");
        assert!(services.contains(words[0]), "{services}");
    }
}

/// A client in the background.
struct Client {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was already printed.
            let _ = thread.join();
        }
    }
}

fn unchanged(text: String) -> String {
    text
}

/// Replaces a part of the configuration. Panics if the part is missing.
fn replace(from: &str, to: &str) -> impl FnOnce(String) -> String {
    let (from, to) = (from.to_owned(), to.to_owned());
    move |text| {
        assert!(text.contains(&from), "{from} is in {text}");
        text.replace(&from, &to)
    }
}

/// Starts a gateway that must fail, and expects these words in its error.
fn start_names(edit: impl FnOnce(String) -> String, words: &[&str]) {
    let lab = lab(0);
    Gateway::configure(&lab, &GatewayOptions::default()).expect("the configuration is written");
    let text = fs::read_to_string(config_of(&lab)).expect("the configuration");
    fs::write(config_of(&lab), edit(text)).expect("the configuration is written");
    let error = Gateway::start(&lab).map(|_| ()).expect_err("it cannot start");
    let message = format!("{error:#}");
    assert!(words.iter().all(|word| message.contains(word)), "{words:?} in: {message}");
}

#[test]
fn a_start_that_fails_names_the_device_and_what_is_wrong_with_it() {
    let _machine = beside_others();
    start_names(replace("cores: [1]", "cores: [97]"), &["97"]);
    start_names(replace("iface=eth0", "iface=eth9"), &["eth9", "uplink", "interface eth9 does not exist"]);
    start_names(replace("\"net_af_packet0,iface=eth0,qpairs=1\"", "\"0000:99:00.0\""), &["0000:99:00.0"]);
    start_names(replace("mtu: 1500", "mtu: 9000"), &["9000"]);
}

#[test]
fn a_limit_of_locked_memory_that_is_too_small_is_named() {
    let _machine = beside_others();
    let lab = lab(0);
    Gateway::configure(&lab, &GatewayOptions::default()).expect("the configuration is written");
    let mut command = lab.gateway().command("prlimit");
    command.args(["--memlock=65536:65536", "setpriv", "--bounding-set", "-ipc_lock", "--"]);
    let output = command.arg(&lab.plan().tidegate).args(["run", "-c"]).arg(config_of(&lab)).output();
    let output = output.expect("prlimit and setpriv run (util-linux)");
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let printed = printed.concat();
    assert!(
        !output.status.success()
            && printed.contains("memlock limit (RLIMIT_MEMLOCK) is 64 KiB, needs 128 MiB"),
        "{printed}"
    );
}

#[test]
fn nat_backends_whose_default_route_leads_elsewhere_are_named() {
    let _machine = beside_others();
    let setup = Setup::start("nat", unchanged);
    let server = setup.lab.server(1).namespace();
    server.ip_batch_of(Family::V4, &format!("route replace default via {NOBODY}")).unwrap();
    let client = setup.client();
    let cause = "the backends' route to the clients doesn't lead through this gateway";
    setup.finds("NoReplies", &[cause]);
    let metric = |direction| {
        let labels = ["service=\"web\"", direction];
        setup.gateway.metric("tidegate_service_packets_total", &labels).unwrap()
    };
    assert!(metric("direction=\"request\"") >= 3.0);
    assert_eq!(metric("direction=\"reply\""), 0.0);
    // The first reply resolves the finding.
    let back = plan::GATEWAY_FOR_SERVERS[0];
    server.ip_batch_of(Family::V4, &format!("route replace default via {back}")).unwrap();
    let over = wait_for("the end of the finding", NAMED, || {
        let status = setup.gateway.query(&["status"]).ok()?;
        (!status.contains("NoReplies")).then_some(())
    });
    over.unwrap();
    drop(client);
}

#[test]
fn a_snat_address_that_is_not_routed_back_is_named() {
    let _machine = beside_others();
    let setup = Setup::start("fullnat", unchanged);
    let snat = plan::SNAT[0];
    let route = format!("route add {snat}/32 via {NOBODY}");
    setup.lab.server(1).namespace().ip_batch_of(Family::V4, &route).unwrap();
    let _client = setup.client();
    setup.finds("NoReplies", &[&format!("doesn't route {snat} (dataplane.snatAddresses) to this gateway")]);
}

#[test]
fn a_test_from_the_router_itself_is_named() {
    let _machine = beside_others();
    let router = plan::client(Family::V4, 0);
    let options =
        GatewayOptions { routes: vec![("0.0.0.0/0".to_owned(), router)], ..GatewayOptions::default() };
    let setup = Setup::with("fullnat", &options, unchanged);
    let client = setup.client();
    setup.finds("RouterAsClient", &[&format!("new connections from {router} are dropped (bad_source)")]);
    drop(client);
}

#[test]
fn a_wrong_mac_of_a_static_neighbour_fails_health_checks_and_is_named() {
    let _machine = beside_others();
    let (server, wrong) = (plan::server(Family::V4, 1), "02:00:00:00:99:99");
    let neighbors = format!("neighbors: [{{ip: \"{server}\", mac: \"{wrong}\"}}]");
    let setup = Setup::start("fullnat", replace("neighbors: []", &neighbors));
    let answers = format!("{wrong} in dataplane.neighbors but answers with {}", plan::server_mac(1));
    setup.finds("NeighborMACDiffers", &[&answers]);
    let failed = wait_for("a failed health check", NAMED, || {
        let backends = setup.gateway.query(&["backends", "-A", "-o", "json"]).ok()?;
        backends.contains("no answer in time").then_some(())
    });
    failed.expect("health checks use the configured address, as packets do");
}

#[test]
fn a_sender_that_leaves_checksums_to_its_nic_is_named() {
    let _machine = beside_others();
    for forwarding in ["dsr-l2", "nat"] {
        let setup = Setup::start(forwarding, unchanged);
        // Each port on the path completes a checksum, unless its own offload is enabled too.
        for (host, port) in [(setup.lab.client(), "eth0"), (setup.lab.switch(), "p-gateway")] {
            let on = host.command("ethtool").args(["-K", port, "tx", "on"]).status();
            assert!(on.expect("ethtool runs").success());
        }
        let _client = setup.client();
        setup.finds("PartialChecksums", &["with a partial checksum (the sender left it to its NIC)"]);
        let _ = setup.status_names(&["packets with a partial checksum arrive on interface uplink"]);
        assert!(setup.gateway.metric("tidegate_partial_checksums_total", &[]).unwrap() >= 3.0);
    }
}

#[test]
fn a_dsr_backend_that_answers_arp_for_the_vip_is_named_with_its_mac() {
    let _machine = beside_others();
    let setup = Setup::start("dsr-l2", unchanged);
    let careless = [("ipv4/conf/all/arp_ignore", "0"), ("ipv4/conf/all/arp_announce", "0")];
    setup.lab.server(1).namespace().sysctls(&careless).unwrap();
    let (server, mac) = (plan::server(Family::V4, 1), plan::server_mac(1));
    let who = format!("backend {server} ({mac}) answers ARP or neighbour discovery for VIP {}", setup.vip);
    setup.finds("VIPClaimed", &[&who]);
    assert!(setup.gateway.metric("tidegate_address_conflicts_total", &[]).unwrap() >= 1.0);
}

#[test]
fn a_dsr_backend_without_the_vip_is_named_by_its_health() {
    let _machine = beside_others();
    let setup = Setup::start("dsr-l2", unchanged);
    let vip = setup.vip;
    setup.lab.server(1).namespace().ip_batch(&format!("addr del {vip}/32 dev lo")).unwrap();
    let named = wait_for("the failure of the check", NAMED, || {
        let backends = setup.gateway.query(&["backends", "-A", "-o", "json"]).ok()?;
        backends.contains("answers on its own address, not on the VIP").then_some(())
    });
    named.unwrap();
}

#[test]
fn a_tap_that_is_deleted_and_an_interface_that_is_down_are_named() {
    let _machine = beside_others();
    let setup = Setup::start("nat", unchanged);
    setup.lab.gateway().ip_batch("link del tg-uplink").unwrap();
    let _ = setup.status_names(&["DEGRADED", "tap tg-uplink", "was deleted by another program"]);
    assert!(setup.gateway.metric("tidegate_degraded", &[]).unwrap() >= 1.0);
    setup.lab.gateway().ip_batch("link set eth0 down").unwrap();
    let _ = setup.status_names(&["DEGRADED", "interface \"uplink\""]);
    assert_eq!(setup.gateway.metric("tidegate_ready", &[]).unwrap(), 0.0);
}

#[test]
fn a_flow_directory_on_a_disk_is_degraded() {
    let _machine = beside_others();
    // The build directory must not be a tmpfs, or this test proves nothing.
    let disk = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("flows-{}", std::process::id()));
    let kind = Command::new("stat").args(["-f", "-c", "%T", env!("CARGO_TARGET_TMPDIR")]).output();
    let kind = kind.expect("stat runs").stdout;
    assert_ne!(kind.trim_ascii(), b"tmpfs", "build on a disk to run this test");
    let options = GatewayOptions { flow_directory: Some(disk.clone()), ..GatewayOptions::default() };
    let setup = Setup::with("nat", &options, unchanged);
    let _ = setup.status_names(&["DEGRADED", "accepted: a directory on tmpfs"]);
    assert_eq!(setup.gateway.metric("tidegate_state_unsaved", &["state=\"flows\""]).unwrap(), 1.0);
    drop(setup);
    let _ = fs::remove_dir_all(disk);
}

#[test]
fn a_bird_that_is_not_installed_is_degraded() {
    let _machine = beside_others();
    let bgp = "announce: {bgp: {asn: 64512, program: no-such-bird, peers: [{address: 198.51.100.10, asn: 64513}]}}\nprotection:";
    let setup = Setup::start("nat", replace("protection:", bgp));
    let _ = setup.status_names(&["DEGRADED", "BGP", "no-such-bird"]);
    assert_eq!(setup.gateway.metric("tidegate_bird_up", &[]).unwrap(), 0.0);
}

#[test]
fn a_missing_default_route_is_found_among_the_drops() {
    let _machine = beside_others();
    let setup = Setup::start("nat", unchanged);
    // A client behind a router to which the gateway has no route.
    let far = "203.0.113.250";
    setup.lab.client().ip_batch(&format!("addr add {far}/32 dev lo")).unwrap();
    let to = SocketAddr::new(setup.vip, HTTP_PORT);
    let named = wait_for("drops", NAMED, || {
        let from = SocketAddr::new(far.parse().expect("an address"), 0);
        let _ = setup.lab.client().enter(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&from.into())?;
            socket.connect_timeout(&to.into(), Duration::from_millis(500))
        });
        let drops = setup.gateway.query(&["drops"]).ok()?;
        drops.lines().any(|line| line.contains("no_route")).then_some(())
    });
    named.unwrap();
}

#[test]
fn another_vlan_than_the_switch_has_is_found_among_the_drops() {
    let _machine = beside_others();
    let setup = Setup::start("nat", replace("mtu: 1500", "mtu: 1500\n      vlan: 100"));
    let _client = setup.client();
    let named = wait_for("drops", NAMED, || {
        let drops = setup.gateway.query(&["drops"]).ok()?;
        drops.lines().any(|line| line.contains("vlan_mismatch")).then_some(())
    });
    named.unwrap();
}
