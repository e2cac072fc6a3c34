//! The network of the BGP tests: a router between the client and up to two gateways, all on the clients' link.
//!
//! The client sends packets for VIPs to the router, and the router to whichever gateway announces them. Answers return
//! from the gateway to the client directly.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tidegate_netlab::addresses::{self as plan, Family, ROUTED_VIPS, TCP_ECHO_PORT};
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::namespace::output_of;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, Namespace, wait_for};

use crate::world::{APPLIED, lab, tidegate};

/// The router's addresses, by family.
pub(super) const ROUTER: [&str; 2] = ["198.51.100.254", "2001:db8:c::fe"];
/// The AS of the gateways.
pub(super) const GATEWAY_AS: u32 = 64_512;
/// The AS of the router.
pub(super) const ROUTER_AS: u32 = 64_513;

/// The lab with its router.
pub(super) struct Edge {
    pub(super) lab: Lab,
    pub(super) router: Namespace,
}

impl Edge {
    /// Builds it with this number of servers.
    pub(super) fn build(servers: u8) -> Self {
        let lab = lab(servers);
        let router = lab.add_host("router", "02:00:00:00:00:fe").expect("a router");
        router
            .sysctls(&[
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/fib_multipath_hash_policy", "1"),
                ("ipv6/fib_multipath_hash_policy", "1"),
            ])
            .expect("it forwards");
        router
            .ip_batch(&format!(
                "addr add {}/24 dev eth0\naddr add {}/64 dev eth0 nodad",
                ROUTER[0], ROUTER[1]
            ))
            .expect("its addresses");
        for family in Family::BOTH {
            let (vips, via) = (ROUTED_VIPS[family as usize], ROUTER[family as usize]);
            lab.client().ip_batch_of(family, &format!("route replace {vips} via {via}")).expect("a route");
        }
        fs::create_dir_all(manifests_of(&lab)).expect("a directory");
        Self { lab, router }
    }

    /// A dual-stack Service `fullnat` with these servers, with the VIPs of this number.
    pub(super) fn service(&self, number: u8, servers: &[u8]) -> Manifest {
        let vips = Family::BOTH.map(|family| plan::routed_vip(family, number));
        let endpoints = servers
            .iter()
            .flat_map(|&n| Family::BOTH.map(|family| EndpointSpec::ready(plan::server(family, n))));
        Manifest::new(
            &format!("web-{number}"),
            "fullnat",
            &vips,
            vec![PortSpec::tcp("tcp-echo", TCP_ECHO_PORT)],
        )
        .with_endpoints(endpoints)
    }

    /// Writes a Service for the gateways.
    pub(super) fn write(&self, service: &Manifest) {
        service.write(&manifests_of(&self.lab)).expect("a manifest");
    }

    /// Starts gateway `number` (1 or 2) with this `announce` section and one worker, and waits until it forwards.
    pub(super) fn gateway(&self, number: u8, announce: &str) -> EdgeGateway {
        self.gateway_with(number, 1, announce)
    }

    /// Starts gateway `number` with up to two workers.
    pub(super) fn gateway_with(&self, number: u8, workers: u8, announce: &str) -> EdgeGateway {
        let namespace = match number {
            1 => self.lab.gateway().clone(),
            _ => self.lab.add_gateway(&format!("gateway{number}"), &mac(number)).expect("a namespace"),
        };
        let directory = self.lab.directory().join(format!("gateway-{number}"));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join("password"), "ebb-and-flow\n").expect("a password");
        let mut gateway = EdgeGateway { process: None, namespace, directory, number, workers };
        gateway.configure(announce, "");
        gateway.launch();
        gateway.wait_until_ready();
        gateway
    }
}

/// The Ethernet address of a gateway. The first one has that of the lab's gateway.
fn mac(number: u8) -> String {
    format!("02:00:00:00:00:{:02x}", 2 + 16 * (number - 1))
}

/// The address of a gateway on the clients' link.
pub(super) fn gateway_address(number: u8, family: Family) -> IpAddr {
    let text = match family {
        Family::V4 => format!("198.51.100.{}", 1 + number),
        Family::V6 => format!("2001:db8:c::{}", 1 + number),
    };
    text.parse().expect("an address")
}

/// `announce.bgp` with the router as the peer, over IPv4, with both families; `more` are additional keys of the peer.
pub(super) fn bgp(more: &str) -> String {
    format!(
        "{{bgp: {{asn: {GATEWAY_AS}, peers: [{{address: {}, asn: {ROUTER_AS}, families: [ipv4, ipv6]{more}}}]}}}}",
        ROUTER[0]
    )
}

/// FRR's configuration of a router with these gateways as peers; `more` are additional lines for each peer.
pub(super) fn frr_bgpd(gateways: &[u8], more: &[&str]) -> String {
    let mut text = format!(
        "router bgp {ROUTER_AS}\n bgp router-id {}\n no bgp ebgp-requires-policy\n timers bgp 3 9\n",
        ROUTER[0]
    );
    let peers: Vec<String> = gateways.iter().map(|&n| gateway_address(n, Family::V4).to_string()).collect();
    for peer in &peers {
        text += &format!(" neighbor {peer} remote-as {GATEWAY_AS}\n neighbor {peer} timers connect 1\n");
        for line in more {
            text += &format!(" neighbor {peer} {line}\n");
        }
    }
    text += " address-family ipv6 unicast\n";
    for peer in &peers {
        text += &format!("  neighbor {peer} activate\n");
    }
    text + " exit-address-family\n"
}

/// A gateway of the edge. Dropping it kills it.
pub(super) struct EdgeGateway {
    process: Option<LabProcess>,
    pub(super) namespace: Namespace,
    pub(super) directory: PathBuf,
    number: u8,
    workers: u8,
}

impl EdgeGateway {
    /// Writes its configuration; `pool` are additional keys of the pool.
    pub(super) fn configure(&self, announce: &str, pool: &str) {
        let n = self.number;
        let [v4, v6] = Family::BOTH.map(|family| gateway_address(n, family));
        let (own, snat) = (2 * n, 2 * n + 1);
        let text = format!(
            r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: edge-{n}}}
dataplane:
  cores: {cores}
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: 192}}
  flowTable: {{entriesPerCore: 65536, directory: ""}}
  interfaces:
    - name: uplink
      device: "net_af_packet0,iface=eth0,qpairs={workers}"
      addresses: ["{v4}/24", "{v6}/64", "192.0.2.{own}/24", "2001:db8::{own}/64"]
      mac: "{mac}"
  snatAddresses: ["192.0.2.{snat}", "2001:db8::{snat}"]
source: {{directory: {{path: ../manifests, stateDirectory: state}}}}
pools: [{{name: routed, addresses: ["{}", "{}", "10.128.0.0/14"], externalIPs: true{pool}}}]
health: {{protocol: none}}
admin: {{socket: {}/tidegate.sock, listen: "127.0.0.1:9469", healthz: "127.0.0.1:10356"}}
announce: {announce}
"#,
            ROUTED_VIPS[0],
            ROUTED_VIPS[1],
            self.directory.display(),
            mac = mac(n),
            cores = if self.workers == 1 { "[1]" } else { "[0, 1]" },
            workers = self.workers,
        );
        fs::write(self.directory.join("gateway.yaml"), text).expect("a configuration");
    }

    /// Starts the process.
    pub(super) fn launch(&mut self) {
        let config = self.directory.join("gateway.yaml").display().to_string();
        let process = LabProcess::start(
            &self.namespace,
            &self.directory,
            "gateway",
            tidegate(),
            &["run", "-c", &config],
        );
        self.process = Some(process.expect("the gateway starts"));
    }

    /// Waits until it forwards.
    pub(super) fn wait_until_ready(&mut self) {
        self.wait_until("it to be ready", |gateway| {
            assert!(gateway.process.as_mut().is_some_and(LabProcess::runs), "it ended:\n{}", gateway.log());
            (gateway.status()?["ready"] == true).then_some(())
        });
    }

    /// Reloads its configuration.
    pub(super) fn reload(&mut self) {
        self.process.as_mut().expect("it runs").signal(Signal::HUP);
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&mut self) {
        self.process.as_mut().expect("it runs").signal(Signal::TERM);
    }

    /// Whether the process runs.
    pub(super) fn runs(&mut self) -> bool {
        self.process.as_mut().is_some_and(LabProcess::runs)
    }

    /// Waits for the process to exit.
    pub(super) fn wait(&mut self) -> ExitStatus {
        self.process.as_mut().expect("it runs").wait(Duration::from_secs(30)).expect("it ends")
    }

    /// Kills the process, so that it cannot close its sessions.
    pub(super) fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    /// Its pid.
    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").pid()
    }

    /// The pid of its BIRD.
    pub(super) fn bird_pid(&self) -> Option<u32> {
        fs::read_to_string(self.directory.join("tidegate.sock.bird/pid")).ok()?.trim().parse().ok()
    }

    /// `status -o json`.
    pub(super) fn status(&self) -> Option<Value> {
        serde_json::from_str(&self.query(&["status", "-o", "json"]).ok()?).ok()
    }

    /// The first peer in the status.
    pub(super) fn peer(&self) -> Option<Value> {
        Some(self.status()?["announce"]["bgp"]["peers"][0].clone())
    }

    /// The output of a command that queries the daemon.
    pub(super) fn query(&self, args: &[&str]) -> anyhow::Result<String> {
        let socket = self.directory.join("tidegate.sock");
        output_of(self.namespace.command(tidegate()).args(args).arg("--socket").arg(socket))
    }

    /// The text of `/metrics`.
    pub(super) fn metrics(&self) -> String {
        let url = "http://127.0.0.1:9469/metrics";
        output_of(self.namespace.command("curl").args(["-sS", "--fail", "--max-time", "5", url]))
            .expect("metrics")
    }

    /// Its log.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("gateway.log")).unwrap_or_default()
    }

    /// Waits for a condition; the message of a failure contains the log.
    pub(super) fn wait_until<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Option<T>) -> T {
        let found = wait_for(what, APPLIED, || probe(self));
        found.unwrap_or_else(|error| {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            panic!(
                "gateway {}: {error:#}\n{}",
                self.number,
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            )
        })
    }

    /// Waits until its session with the router is established.
    pub(super) fn wait_until_established(&mut self) {
        self.wait_until("the session to be established", |gateway| {
            (gateway.peer()?["up"] == true).then_some(())
        });
    }
}
