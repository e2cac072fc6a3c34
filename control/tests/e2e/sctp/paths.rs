//! Multihomed associations (RFC 9260 section 6.4): `multihomed.c` on both sides, IPv4. A path is cut while messages are
//! exchanged, and the association survives.
//!
//! The client is bound to two addresses. In `dsr-l2` the server is bound to both VIPs of the Service and lists them; in
//! `nat` and `fullnat` it is bound to its own address, and the gateway lists the second VIP.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tidegate_netlab::addresses::{
    CLIENT_PREFIX, Family, SCTP_PORT, SCTP_TARGET_PORT, TCP_ECHO_PORT, client, routed_vip, server,
};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec, VipRequest};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{GatewayOptions, Lab, Namespace, wait_for};

use super::compile;
use crate::world::{APPLIED, World, beside_others, lab_with};

const MODES: [&str; 3] = ["dsr-l2", "nat", "fullnat"];

/// Messages of one association: with the pause between them, at least 3 s.
const MESSAGES: usize = 150;

/// Messages before the cut, and messages after it that show that the association survived.
const BEFORE: usize = 20;

/// The mark and the routing table of packets from VIPs.
const MARK: u32 = 77;

/// The VIPs of the Service of mode number `n`.
fn vips(n: usize) -> [std::net::IpAddr; 2] {
    let first = 41 + 2 * u8::try_from(n).expect("there are few modes");
    [first, first + 1].map(|vip| routed_vip(Family::V4, vip))
}

fn list<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().map(|one| one.to_string()).collect::<Vec<_>>().join(",")
}

fn nft(host: &Namespace, rules: &str) {
    let mut nft = host.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft runs");
    nft.stdin.take().expect("its input").write_all(rules.as_bytes()).expect("nft reads");
    assert!(nft.wait().expect("nft ends").success(), "nft refuses {rules}");
}

/// A cut that drops packets which match these nftables conditions on a host, until the value is dropped.
struct Cut<'a>(&'a Namespace);

impl<'a> Cut<'a> {
    fn new(host: &'a Namespace, sent: &[String], received: &[String]) -> Self {
        let mut rules = String::from("table ip cut {\n");
        for (hook, conditions) in [("output", sent), ("input", received)] {
            writeln!(rules, "  chain {hook} {{\n    type filter hook {hook} priority 0;")
                .expect("a text takes it");
            for condition in conditions {
                writeln!(rules, "    {condition} counter drop;").expect("a text takes it");
            }
            rules.push_str("  }\n");
        }
        rules.push_str("}\n");
        nft(host, &rules);
        Self(host)
    }
}

impl Cut<'_> {
    /// Ends the cut, which must have dropped packets.
    fn end(self) {
        let table = self.0.command("nft").args(["list", "table", "ip", "cut"]).output().expect("nft runs");
        let table = String::from_utf8_lossy(&table.stdout);
        let counts = table.lines().filter_map(|line| line.split_once("packets ")?.1.split(' ').next());
        assert!(counts.into_iter().any(|count| count != "0"), "nothing was cut: {table}");
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // The namespace may already be removed.
        let _ = self.0.command("nft").args(["delete", "table", "ip", "cut"]).status();
    }
}

/// Lets clients start their associations, once all of them are initialized.
pub(super) fn begin(clients: &mut [LabProcess]) {
    for client in &*clients {
        let is_ready = || client.log().contains("initialised").then_some(());
        let waited = wait_for("an SCTP client", APPLIED, is_ready);
        waited.unwrap_or_else(|error| panic!("{error:#}: {}", client.log()));
    }
    clients.iter_mut().for_each(|client| client.signal(Signal::USR1));
}

/// The answers of an association so far: the name of the server, once for each message.
pub(super) fn answers(client: &LabProcess) -> Vec<String> {
    let lines = client.log();
    let answer = |line: &str| {
        line.split_once(' ').filter(|(_, n)| n.parse::<usize>().is_ok()).map(|(name, _)| name.to_owned())
    };
    lines.lines().filter_map(answer).collect()
}

struct Hosts {
    world: World,
    servers: Vec<LabProcess>,
    program: PathBuf,
}

impl Hosts {
    fn start() -> Self {
        let lab = lab_with(2, Vec::new());
        let program = compile(lab.directory(), "multihomed");
        let servers = [1, 2].map(|n| Self::serve(&lab, n, &program)).into();
        let manifests: Vec<Manifest> = (0..).zip(MODES).map(|(n, mode)| service(n, mode)).collect();
        let world = World::over(lab, GatewayOptions::default(), &manifests, "");
        for mode in MODES {
            let active = || {
                let text = world.gateway().query(&["backends"]).ok()?;
                let is_active =
                    |line: &&str| line.contains(&format!(" {mode} ")) && line.contains(" Active ");
                (text.lines().filter(is_active).count() >= 4).then_some(())
            };
            let waited = wait_for(&format!("the backends of {mode}"), APPLIED, active);
            waited.unwrap_or_else(|error| {
                panic!("{error:#}\n{}", world.gateway().query(&["backends"]).unwrap_or_default())
            });
        }
        Self { world, servers, program }
    }

    /// Starts the program on a server. It accepts no VIP on the loopback interface, so the VIPs are on a separate link.
    /// It has one raw socket for all addresses, so a mark replaces the rule for packets from VIPs.
    fn serve(lab: &Lab, n: u8, program: &Path) -> LabProcess {
        let host = lab.server(n);
        let mut batch = format!(
            "link add vips type veth peer name vips-peer\nlink set vips up\nlink set vips-peer up\n\
             route add {} dev eth0 table {MARK}\nrule add fwmark {MARK} lookup {MARK}\n",
            CLIENT_PREFIX[0]
        );
        let mut rules = String::from(
            "table ip direct {\n  chain output {\n    type route hook output priority mangle;\n",
        );
        for vip in vips(0) {
            writeln!(batch, "addr add {vip}/32 dev vips").expect("a text takes it");
            writeln!(rules, "    ip saddr {vip} meta mark set {MARK};").expect("a text takes it");
        }
        host.namespace().ip_batch(&batch).expect("the VIPs are on the server");
        rules.push_str("  }\n}\n");
        nft(host.namespace(), &rules);
        let (name, own) = (host.name(), server(Family::V4, n).to_string());
        let ports = list([SCTP_PORT, SCTP_TARGET_PORT]);
        let args = ["serve", &name, &ports, &list(vips(0)), &own];
        let process = host.run("sctp-multihomed", program, &args).expect("the server starts");
        let ready = || process.log().contains("ready").then_some(());
        let waited = wait_for("the SCTP server", Duration::from_secs(20), ready);
        waited.unwrap_or_else(|error| panic!("{error:#}: {}", process.log()));
        process
    }

    /// Begins associations in the modes with the first numbers, one for each name, and waits for their first messages.
    fn associate_all(&self, names: &[String]) -> Vec<LabProcess> {
        let mut all: Vec<_> = names.iter().enumerate().map(|(n, name)| self.client(n, name)).collect();
        begin(&mut all);
        for (process, name) in all.iter().zip(names) {
            let begun = wait_for(name, APPLIED, || (answers(process).len() >= BEFORE).then_some(()));
            begun.unwrap_or_else(|error| panic!("{error:#}: {}", process.log()));
        }
        all
    }

    /// Starts a client of mode number `n`.
    fn client(&self, n: usize, name: &str) -> LabProcess {
        let lab = &self.world.lab;
        let first = 2 * u8::try_from(n).expect("there are few modes");
        let own = list([first, first + 1].map(|n| client(Family::V4, n)));
        let args =
            ["client".to_owned(), own, vips(n)[0].to_string(), SCTP_PORT.to_string(), MESSAGES.to_string()];
        LabProcess::start(lab.client(), lab.directory(), name, &self.program, &args)
            .expect("the client starts")
    }

    /// Waits for the end of an association. One server must have answered all of it.
    fn expect_whole(&self, name: &str, mut process: LabProcess) {
        let status = process
            .wait(APPLIED)
            .unwrap_or_else(|error| panic!("{name}: {error:#}: {}", process.log_tail(3)));
        let flows = self.world.gateway().query(&["flows"]).unwrap_or_default();
        assert!(status.success(), "{name}: {}\n{flows}", process.log_tail(3));
        let mut names = answers(&process);
        assert_eq!(names.len(), MESSAGES, "{name}");
        names.dedup();
        assert_eq!(names.len(), 1, "{name}: {names:?}");
        assert!(process.log().contains("shut down"), "{name}");
    }

    /// Associations that ended at the servers, and those of them that were lost.
    fn ended(&self) -> (usize, Vec<String>) {
        let text: String = self.servers.iter().map(LabProcess::log).collect();
        let ended: Vec<&str> = text.lines().filter(|line| line.contains("messages=")).collect();
        // Associations without a message are health checks.
        let lost = ended.iter().filter(|line| !line.ends_with("shut down") && !line.contains("messages=0 "));
        (
            ended.iter().filter(|line| line.contains(&format!("messages={MESSAGES} "))).count(),
            lost.map(ToString::to_string).collect(),
        )
    }
}

fn service(n: usize, mode: &'static str) -> Manifest {
    let port = PortSpec::sctp("sctp", SCTP_PORT);
    let port = if mode.contains("nat") { port.to(SCTP_TARGET_PORT) } else { port };
    let mut manifest = Manifest::new(mode, mode, &vips(n), vec![port]);
    manifest.vip_request = VipRequest::ExternalIps;
    // An SCTP server answers the check of one VIP from the other one.
    manifest.annotations.push(("tidegate.dev/health-check-protocol", "tcp".to_owned()));
    manifest.annotations.push(("tidegate.dev/health-check-port", TCP_ECHO_PORT.to_string()));
    manifest.with_endpoints([1, 2].map(|n| EndpointSpec::ready(server(Family::V4, n))))
}

#[test]
fn a_multihomed_association_lives_on_when_a_path_is_cut() {
    let _machine = beside_others();
    let hosts = Hosts::start();
    let host = hosts.world.lab.client();
    // Cuts the path to the first VIP.
    let begun = hosts.associate_all(&MODES.map(|mode| format!("{mode} without its first VIP")));
    let first: Vec<_> = (0..MODES.len()).map(|n| vips(n)[0]).collect();
    let [sent, received] =
        ["daddr", "saddr"].map(|side| first.iter().map(|vip| format!("ip {side} {vip}")).collect::<Vec<_>>());
    let cut = Cut::new(host, &sent, &received);
    for (process, mode) in begun.into_iter().zip(MODES) {
        hosts.expect_whole(&format!("{mode} without its first VIP"), process);
    }
    cut.end();
    // Cuts packets to one address of the client. usrsctp uses one address: in `fullnat` the server knows only one path.
    for address in [0, 1] {
        let names = MODES[..2].iter().map(|mode| format!("{mode} without address {address} of the client"));
        let names: Vec<String> = names.collect();
        let begun: Vec<_> = hosts.associate_all(&names).into_iter().zip(names).collect();
        let received: Vec<_> =
            [address, 2 + address].map(|n| format!("ip daddr {}", client(Family::V4, n))).into();
        let cut = Cut::new(host, &[], &received);
        for (process, name) in begun {
            hosts.expect_whole(&name, process);
        }
        cut.end();
    }
    let expected = MODES.len() + 2 * 2;
    let waited = wait_for("the end of the associations at the servers", APPLIED, || {
        (hosts.ended().0 >= expected).then_some(())
    });
    waited.unwrap_or_else(|error| panic!("{error:#}: {:?}", hosts.ended()));
    assert_eq!(hosts.ended(), (expected, Vec::new()));
}
