//! A lab with two or three gateways behind a router.
//!
//! ```text
//!   client ── router ──┐            ┌── s1    client: 198.51.100.0/24
//!                      ├── switch ──┼── s2    gateways and servers: 192.0.2.0/24
//!   gateway-1 ─────────┤  (bridge)  └── ...
//!   gateway-2, -3 ─────┘                      VIPs: 203.0.113.0/24, routed by the router over all gateways
//! ```
//! The router is the kernel of a namespace; [`router`] sets its routes. Servers answer for DSR modes through the router,
//! in mode `nat` through a gateway, which is their default route. IPv4 only: the families differ in no rule that
//! matters here.
//!
//! [`connections`] holds live connections and says which broke, [`holders`] does so in processes of their own. All gateways
//! read one directory of manifests.

pub mod addresses;
pub mod connections;
pub mod holders;
pub mod router;

use super::addresses::{self as plan, Family, TELL_PORT};
use super::cleanup;
use super::gateway::{Gateway, MEMORY_MIB};
use super::lab::{DIRECT_TABLE, build_host, build_switch, quiet_gateway};
use super::manifests::{EndpointSpec, EndpointState, Manifest, PortSpec};
use super::namespace::{Namespace, lab_directory};
use super::poll::wait_for;
use super::process::LabProcess;
use super::router::Frr;
use super::server;
use addresses::{FleetService, HEALTHZ_PORT, ROUTER_FOR_CLIENTS, ROUTER_FOR_GATEWAYS, SERVICES};
use anyhow::{Context, Result, ensure};
use router::Router;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The maximum time until a program answers after its start, on a busy machine.
const START_BOUND: Duration = Duration::from_secs(60);
/// The maximum time until a change of manifests is in the workers, on a busy machine.
const APPLIED_BOUND: Duration = Duration::from_secs(60);

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetPlan {
    /// Gateways, numbered from 1: two or three.
    pub gateways: usize,
    /// Servers, numbered from 1.
    pub servers: u8,
    /// The `tidegate` binary.
    pub tidegate: PathBuf,
    /// Entries of each flow table.
    pub flow_entries: u32,
    /// Flow tables outlive the processes of the gateways.
    pub flow_files: bool,
    /// The hexadecimal digit that fills `flowSharing.key` of the first gateway, and of the others; `None` shares no flows.
    pub sharing: Option<[char; 2]>,
    /// The gateways announce their VIPs by BGP to FRR. Otherwise the lab sets the routes.
    pub bgp: bool,
}

/// A fleet. Dropping it removes all of it.
#[derive(Debug)]
pub struct Fleet {
    // Declared first, so that threads and processes end before their namespaces are removed.
    router: Router,
    frr: Option<Frr>,
    gateways: Vec<Option<Gateway>>,
    servers: Vec<Option<LabProcess>>,
    endpoints: Vec<(u8, EndpointState)>,
    plan: FleetPlan,
    client: Namespace,
    gateway_hosts: Vec<Namespace>,
    server_hosts: Vec<Namespace>,
    switch: Namespace,
    /// The gateway whose process is paused.
    paused: Option<usize>,
    standing: Standing,
}

/// Removes the lab `id` when it is dropped.
#[derive(Debug)]
struct Standing {
    id: String,
    directory: PathBuf,
}

impl Drop for Standing {
    fn drop(&mut self) {
        cleanup::tear_down(&self.id);
        // There is none if flow tables end with their processes.
        let _ = fs::remove_dir_all(flow_files(&self.id));
    }
}

impl Fleet {
    /// Builds the network, starts the servers and all gateways, with the first `serving` servers as endpoints of every
    /// Service, and waits until the router uses all gateways.
    ///
    /// # Errors
    /// Without root or DPDK, or when a program does not start.
    pub fn start(plan: FleetPlan, serving: u8) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "the namespaces lab needs root");
        cleanup::sweep();
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("tg{}-{}", std::process::id(), 1000 + number);
        cleanup::register(&id);
        let standing = Standing { directory: lab_directory(&id), id };
        let (id, directory) = (standing.id.as_str(), standing.directory.as_path());
        fs::create_dir(directory).with_context(|| directory.display().to_string())?;
        fs::create_dir(directory.join("manifests"))?;

        let switch = build_switch(id)?;
        let (router, client) = build_edge(id, &switch)?;
        let gateway_hosts: Vec<Namespace> =
            (1..=plan.gateways).map(|n| build_gateway(id, &switch, n)).collect::<Result<_>>()?;
        let server_hosts: Vec<Namespace> =
            (1..=plan.servers).map(|n| build_server(id, &switch, n)).collect::<Result<_>>()?;
        let mut servers = Vec::new();
        for (n, host) in (1..).zip(&server_hosts) {
            servers.push(Some(start_server(host, directory, n, &plan.tidegate)?));
        }
        for (n, host) in (1..).zip(&server_hosts) {
            wait_for_server(host, n)?;
        }
        for n in 1..=plan.gateways {
            fs::create_dir(directory.join(format!("gateway-{n}")))?;
            let flows = if plan.flow_files { flow_files(id) } else { directory.to_owned() };
            fs::create_dir_all(flows.join(format!("gateway-{n}")))?;
            fs::write(
                directory.join(format!("gateway-{n}/gateway.yaml")),
                gateway_yaml(n, directory, &flows, &plan),
            )?;
        }
        let frr = match plan.bgp {
            true => Some(Frr::start(directory, &router, "router", "", &bgpd(plan.gateways))?),
            false => None,
        };
        let router = match plan.bgp {
            true => Router::beside_a_daemon(&router, plan.gateways, server_hosts.clone()),
            false => Router::start(&router, gateway_hosts.clone(), server_hosts.clone()),
        };
        let endpoints = (1..=serving).map(|n| (n, EndpointState::Ready)).collect();
        let mut fleet = Self {
            router,
            frr,
            gateways: (0..plan.gateways).map(|_| None).collect(),
            servers,
            endpoints,
            plan,
            client,
            gateway_hosts,
            server_hosts,
            switch,
            paused: None,
            standing,
        };
        fleet.write_manifests()?;
        let all: Vec<usize> = (1..=fleet.plan.gateways).collect();
        for n in &all {
            fleet.launch(*n)?;
        }
        for n in &all {
            fleet.gateway_mut(*n).wait_until_ready()?;
        }
        fleet.router.wait_until_used(&all).with_context(|| fleet.log_tails(15))?;
        Ok(fleet)
    }

    /// The clients' namespace.
    #[must_use]
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace of server `n`.
    ///
    /// # Panics
    /// When there is none with this number.
    #[must_use]
    pub fn server(&self, n: u8) -> &Namespace {
        &self.server_hosts[usize::from(n) - 1]
    }

    /// The directory of configuration, manifests and logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.standing.directory
    }

    /// The routes of the router.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Gateway `n`, from 1.
    ///
    /// # Panics
    /// When it does not run.
    pub fn gateway_mut(&mut self, n: usize) -> &mut Gateway {
        self.gateways[n - 1].as_mut().expect("the gateway runs")
    }

    /// Takes gateway `n` out, to stop or kill it.
    ///
    /// # Panics
    /// When it does not run.
    pub fn take_gateway(&mut self, n: usize) -> Gateway {
        self.gateways[n - 1].take().expect("the gateway runs")
    }

    /// Starts gateway `n`. Returns before it is ready.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&mut self, n: usize) -> Result<()> {
        let directory = self.directory().join(format!("gateway-{n}"));
        let gateway = Gateway::launch_in(&self.gateway_hosts[n - 1], &directory, &self.plan.tidegate)?;
        self.gateways[n - 1] = Some(gateway);
        Ok(())
    }

    /// Pauses the process of gateway `n` until [`Self::resume`].
    pub fn pause(&mut self, n: usize) {
        self.gateway_mut(n).pause();
        self.paused = Some(n);
    }

    /// Continues the process that is paused.
    pub fn resume(&mut self) {
        if let Some(n) = self.paused.take() {
            self.gateway_mut(n).resume();
        }
    }

    /// Turns the link of gateway `n` off or on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_link(&self, n: usize, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        self.switch.ip_batch(&format!("link set p-gateway-{n} {state}"))
    }

    /// Removes what gateway `n` has saved about flows: its next process is that of a new machine.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget_flows(&self, n: usize) -> Result<()> {
        let path = flow_files(&self.standing.id).join(format!("gateway-{n}/flows"));
        fs::remove_dir_all(&path).with_context(|| path.display().to_string())
    }

    /// Removes an endpoint from every Service, although its server goes on serving. Waits until all gateways have applied it.
    ///
    /// # Errors
    /// When a gateway does not apply it in time.
    pub fn unlist(&mut self, leaves: u8) -> Result<()> {
        self.endpoints.retain(|(n, _)| *n != leaves);
        self.apply()
    }

    /// Replaces a server: the endpoint `leaves` terminates and goes on serving, and `comes` is ready. Waits until all
    /// gateways have applied it.
    ///
    /// # Errors
    /// When a gateway does not apply it in time.
    pub fn replace(&mut self, leaves: u8, comes: u8) -> Result<()> {
        for (n, state) in &mut self.endpoints {
            if *n == leaves {
                *state = EndpointState::Terminating;
            }
        }
        self.endpoints.push((comes, EndpointState::Ready));
        self.apply()
    }

    fn apply(&self) -> Result<()> {
        self.write_manifests()?;
        let mut running = (1..=self.plan.gateways).filter(|n| self.paused != Some(*n));
        running.try_for_each(|n| self.wait_until_active(n))
    }

    /// Kills the program of a server without a shutdown, so that its host resets every connection.
    pub fn kill_server(&mut self, n: u8) {
        self.servers[usize::from(n) - 1] = None;
    }

    /// Whether the gateways share flows.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.plan.sharing.is_some()
    }

    /// What each running gateway says of itself, to find out why connections broke.
    #[must_use]
    pub fn condition(&self) -> String {
        let mut text = String::new();
        for (n, gateway) in (1..).zip(&self.gateways) {
            let Some(gateway) = gateway else { continue };
            for command in ["status", "drops"] {
                let answer = gateway.ask(&[command]).unwrap_or_else(|error| format!("{error:#}"));
                text += &format!("gateway {n}, {command}:\n{answer}\n");
            }
        }
        text + &self.log_tails(15)
    }

    /// The log of each running gateway, the last `lines` lines.
    #[must_use]
    pub fn log_tails(&self, lines: usize) -> String {
        let tails = (1..)
            .zip(&self.gateways)
            .filter_map(|(n, gateway)| Some(format!("gateway {n}:\n{}", gateway.as_ref()?.log_tail(lines))));
        let frr = self.frr.as_ref().map(|frr| format!("FRR:\n{}", frr.log_tail()));
        tails.chain(frr).collect::<Vec<String>>().join("\n")
    }

    /// Waits until gateway `n` sends new flows of every Service to exactly the servers that are ready.
    fn wait_until_active(&self, n: usize) -> Result<()> {
        let Some(gateway) = &self.gateways[n - 1] else { return Ok(()) };
        let ready = self.endpoints.iter().filter(|(_, state)| *state == EndpointState::Ready);
        let mut expected: Vec<String> =
            ready.map(|(n, _)| plan::server(Family::V4, *n).to_string()).collect();
        expected.sort();
        wait_for(&format!("gateway {n} to use the servers {expected:?}"), APPLIED_BOUND, || {
            let answer = gateway.ask(&["backends", "-A", "-o", "json"]).ok()?;
            let answer: serde_json::Value = serde_json::from_str(&answer).ok()?;
            let rows = answer["items"].as_array()?;
            let is_applied = SERVICES.iter().all(|service| {
                let of_service = rows.iter().filter(|row| row["service"] == service.name);
                let active = of_service.filter(|row| row["backend"]["state"] == "active");
                let mut active: Vec<String> =
                    active.filter_map(|row| row["backend"]["address"].as_str().map(str::to_owned)).collect();
                active.sort();
                active == expected
            });
            is_applied.then_some(())
        })
    }

    fn write_manifests(&self) -> Result<()> {
        for service in SERVICES {
            let ports = vec![PortSpec::tcp("tell", TELL_PORT)];
            let endpoints = self.endpoints.iter().map(|(n, state)| EndpointSpec {
                state: *state,
                ..EndpointSpec::ready(plan::server(Family::V4, *n))
            });
            let mut manifest = Manifest::new(service.name, service.forwarding, &[service.vip().ip()], ports)
                .with_endpoints(endpoints);
            manifest.annotations.push(("tidegate.dev/flow-tracking", service.tracking.to_owned()));
            manifest.annotations.push(service.shares_its_vip());
            manifest.write(&self.directory().join("manifests"))?;
        }
        Ok(())
    }
}

/// The router, on the switch and on a link to the client.
fn build_edge(id: &str, switch: &Namespace) -> Result<(Namespace, Namespace)> {
    let router = build_host(id, switch, "router", "02:00:00:00:00:01")?;
    let client = Namespace::create(&format!("{id}-client"))?;
    client.sysctls(&[
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // The kernel of the router takes the hash of the client's socket, because both are one kernel. A socket changes it
        // at a retransmission, and the flow would move to the other gateway, as behind no real router.
        ("core/txrehash", "0"),
    ])?;
    router.sysctls(&[
        ("ipv4/ip_forward", "1"),
        // Addresses and ports, so that the connections of one client are spread.
        ("ipv4/fib_multipath_hash_policy", "1"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/eth0/send_redirects", "0"),
    ])?;
    router.ip_batch(&format!(
        "link add clients type veth peer name eth0 netns {}\n\
         addr add {ROUTER_FOR_CLIENTS}/24 dev clients\nlink set clients up\n\
         addr add {ROUTER_FOR_GATEWAYS}/24 dev eth0",
        client.name()
    ))?;
    router.turn_off_offloads("clients")?;
    client.turn_off_offloads("eth0")?;
    let mut lines = "link set eth0 up\n".to_owned();
    for n in 0..plan::CLIENT_ADDRESSES {
        writeln!(lines, "addr add {}/24 dev eth0", plan::client(Family::V4, n))?;
    }
    writeln!(lines, "route add default via {ROUTER_FOR_CLIENTS}")?;
    client.ip_batch(&lines)?;
    Ok((router, client))
}

fn build_gateway(id: &str, switch: &Namespace, n: usize) -> Result<Namespace> {
    let host = build_host(id, switch, &format!("gateway-{n}"), &format!("02:00:00:00:02:{n:02x}"))?;
    quiet_gateway(&host)?;
    Ok(host)
}

fn build_server(id: &str, switch: &Namespace, n: u8) -> Result<Namespace> {
    let host = build_host(id, switch, &format!("s{n}"), &plan::server_mac(n))?;
    host.sysctls(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])?;
    let mut lines = format!("addr add {}/24 dev eth0\n", plan::server(Family::V4, n));
    for service in SERVICES.iter().filter(|service| service.forwarding.starts_with("dsr")) {
        let vip = service.vip().ip();
        writeln!(lines, "addr add {vip}/32 dev lo\nrule add from {vip}/32 lookup {DIRECT_TABLE}")?;
    }
    writeln!(lines, "route add default via {ROUTER_FOR_GATEWAYS} table {DIRECT_TABLE}")?;
    // The router sets the default route of its table `main`, for `nat`.
    host.ip_batch(&lines)?;
    Ok(host)
}

fn start_server(host: &Namespace, directory: &Path, n: u8, tidegate: &Path) -> Result<LabProcess> {
    let (name, port) = (server::name(n), TELL_PORT.to_string());
    let args = ["lab", "tcp-tell", "--name", &name, "--port", &port];
    LabProcess::start(host, directory, &format!("s{n}"), tidegate, &args)
}

fn wait_for_server(host: &Namespace, n: u8) -> Result<()> {
    let to = SocketAddr::new(plan::server(Family::V4, n), TELL_PORT);
    host.enter(|| {
        wait_for(&format!("server {n}"), START_BOUND, || {
            TcpStream::connect_timeout(&to, Duration::from_millis(500)).ok().map(drop)
        })
    })
}

/// The parent of the flow directories of a lab's gateways, in memory.
fn flow_files(id: &str) -> PathBuf {
    Path::new("/dev/shm").join(format!("tidegate-lab-{id}"))
}

fn gateway_yaml(n: usize, directory: &Path, flows: &Path, plan: &FleetPlan) -> String {
    format!(
        r#"apiVersion: tidegate.dev/v1alpha1
kind: GatewayConfig
metadata: {{name: gateway-{n}}}
dataplane:
  cores: [{core}]
  idle: adaptive
  memory: {{hugepages: false, sizeMiB: {MEMORY_MIB}}}
  flowTable: {{entriesPerCore: {entries}, directory: "{flows}/gateway-{n}/flows"}}
  interfaces:
    - {{name: uplink, device: "net_af_packet0,iface=eth0", addresses: ["{address}/24"], mac: "02:00:00:00:02:{n:02x}"}}
  routes: [{{to: "0.0.0.0/0", via: "{ROUTER_FOR_GATEWAYS}"}}]
  snatAddresses: ["{snat}"]
source: {{directory: {{path: "{directory}/manifests", stateDirectory: "{directory}/gateway-{n}"}}}}
services: {{defaults: {{drainTimeout: 1h}}}}
pools:
  - {{name: everywhere, addresses: [{everywhere}]}}
  - {{name: one-gateway, addresses: [{one_gateway}]{prepends}}}
health: {{protocol: tcp, interval: 2s, timeout: 1s, healthyThreshold: 1, unhealthyThreshold: 3}}
drain: {{quiet: 1s, stopTimeout: 15s}}
admin: {{socket: "{directory}/gateway-{n}/tidegate.sock", listen: "", healthz: "127.0.0.1:{HEALTHZ_PORT}"}}
{announce}{sharing}"#,
        sharing = plan.sharing.map_or_else(String::new, |keys| sharing_yaml(
            plan.gateways,
            &keys[usize::from(n > 1)].to_string()
        )),
        everywhere = vips_of(|service| !service.is_nat()),
        one_gateway = vips_of(FleetService::is_nat),
        prepends = if plan.bgp { format!(", bgp: {{prepends: {}}}", 2 * (n - 1)) } else { String::new() },
        announce = if plan.bgp { announce() } else { String::new() },
        // Two cores are enough for the lab: they share them.
        core = (n - 1) % 2,
        entries = plan.flow_entries,
        address = addresses::gateway(n),
        snat = addresses::snat(n),
        directory = directory.display(),
        flows = flows.display(),
    )
}

fn sharing_yaml(gateways: usize, digit: &str) -> String {
    let peers: Vec<String> = (1..=gateways).map(|n| format!("\"{}:10358\"", addresses::gateway(n))).collect();
    let peers = peers.join(", ");
    format!("flowSharing: {{mode: nat, peers: [{peers}], key: {{value: \"{}\"}}}}\n", digit.repeat(64))
}

/// The VIPs of some of the Services, as items of a list.
fn vips_of(chosen: impl Fn(&FleetService) -> bool) -> String {
    let vips = SERVICES.iter().filter(|service| chosen(service));
    vips.map(|service| service.vip().ip().to_string()).collect::<Vec<_>>().join(", ")
}

/// The AS number of the gateways.
const GATEWAY_AS: u32 = 64_512;
/// The AS number of the router.
const ROUTER_AS: u32 = 64_513;

/// The gateways' BGP. The times are long enough for a busy machine.
fn announce() -> String {
    format!(
        "announce: {{bgp: {{asn: {GATEWAY_AS}, bfdInterval: 500ms, bfdMultiplier: 10, peers: [{{address: \"{ROUTER_FOR_GATEWAYS}\", \
         asn: {ROUTER_AS}, bfd: true, holdTime: 30s}}]}}}}\n"
    )
}

/// FRR's configuration of BGP.
fn bgpd(gateways: usize) -> String {
    let mut text = format!(
        "router bgp {ROUTER_AS}\n bgp router-id {ROUTER_FOR_GATEWAYS}\n no bgp ebgp-requires-policy\n timers bgp 10 30\n"
    );
    for n in 1..=gateways {
        let peer = addresses::gateway(n);
        text += &format!(
            " neighbor {peer} remote-as {GATEWAY_AS}\n neighbor {peer} timers connect 1\n neighbor {peer} bfd 10 500 500\n"
        );
    }
    text + &format!(" address-family ipv4 unicast\n  maximum-paths {gateways}\n exit-address-family\n")
}

/// What is missing on this machine for [`FleetPlan::bgp`], with what to install.
#[must_use]
pub fn missing_for_bgp() -> Vec<String> {
    let has_bird = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join("bird").is_file()));
    let bird =
        (!has_bird).then(|| "there is no `bird` in the PATH: install the Debian package bird2".to_owned());
    Frr::missing().into_iter().chain(bird).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_all_gateways_is_accepted_without_a_word() {
        let sharing = Some(['a', 'a']);
        let (tidegate, flow_entries) = (PathBuf::new(), 65_536);
        let plan = FleetPlan {
            gateways: addresses::GATEWAYS_MAX,
            servers: 4,
            tidegate,
            flow_entries,
            flow_files: false,
            bgp: true,
            sharing,
        };
        for n in 1..=addresses::GATEWAYS_MAX {
            let text = gateway_yaml(n, Path::new("/run/lab"), Path::new("/run/lab"), &plan);
            let loaded = tidegate_model::config::parse(&text, "gateway.yaml", Path::new("/run/lab"), 2);
            assert!(loaded.config.is_some() && loaded.report.is_empty(), "{}\n{text}", loaded.report);
        }
    }
}
