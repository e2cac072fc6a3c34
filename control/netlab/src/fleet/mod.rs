//! A lab with two or three gateways behind a router.
//!
//! ```text
//!   client ── router ──┐            ┌── s1    client: 198.51.100.0/24
//!                      ├── switch ──┼── s2    gateways and servers: 192.0.2.0/24
//!   gateway-1 ─────────┤  (bridge)  └── ...
//!   gateway-2, -3 ─────┘                      VIPs: 203.0.113.0/24, routed by the router over all gateways
//! ```
//! The router is the kernel of a namespace; [`router`] sets its routes, or a routing daemon does. Servers answer for
//! DSR modes through the router, in mode `nat` through a gateway, which is their default route. With a routing daemon,
//! both directions of `nat` follow an address that keepalived moves between the gateways, as docs/fleet.md advises. The
//! lab is IPv4 only, because no rule that matters here depends on the family.
//!
//! [`connections`] keeps connections open and reports which broke; [`client_processes`] does so in separate processes.
//! All gateways read one directory of manifests.

pub mod addresses;
pub mod client_processes;
mod configuration;
pub mod connections;
mod fleet_plan;
mod hosts;
pub mod router;

pub use fleet_plan::{FleetPlan, RouterKind};

use super::addresses::{self as plan, Family, TCP_ECHO_PORT};
use super::cleanup;
use super::gateway::Gateway;
use super::keepalived::{GROUP, Keepalived};
use super::lab::build_switch;
use super::manifests::{EndpointSpec, EndpointState, Manifest, PortSpec};
use super::namespace::{Namespace, lab_directory};
use super::poll::wait_for;
use super::process::{self, LabProcess};
use super::router::{Frr, GoBgp};
use addresses::{SERVICES, VIRTUAL_ROUTER};
use anyhow::{Context, Result, ensure};
use configuration::{bgpd, gateway_yaml, gobgpd, keepalived};
use hosts::{build_edge, build_gateway, build_server, start_server, wait_for_server};
use router::Router;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The maximum time until the workers apply a change of manifests, on a busy machine.
const APPLIED_BOUND: Duration = Duration::from_secs(60);
/// The maximum time until keepalived has moved the virtual router address, on a busy machine.
const MASTER_BOUND: Duration = Duration::from_secs(60);

/// A fleet. Dropping it removes all of it.
#[derive(Debug)]
pub struct Fleet {
    // Declared first, so that threads and processes end before their namespaces are removed.
    router: Router,
    daemon: Option<Daemon>,
    keepalived: Vec<Keepalived>,
    gateways: Vec<Option<Gateway>>,
    servers: Vec<Vec<LabProcess>>,
    endpoints: Vec<(u8, EndpointState)>,
    plan: FleetPlan,
    client: Namespace,
    gateway_hosts: Vec<Namespace>,
    server_hosts: Vec<Namespace>,
    switch: Namespace,
    /// The gateway whose process is paused.
    paused: Option<usize>,
    files: LabFiles,
}

/// The routing daemon of the router.
#[derive(Debug)]
enum Daemon {
    Frr(Frr),
    GoBgp(Arc<GoBgp>),
}

/// Removes the lab `id` when it is dropped.
#[derive(Debug)]
struct LabFiles {
    id: String,
    directory: PathBuf,
}

impl Drop for LabFiles {
    fn drop(&mut self) {
        cleanup::tear_down(&self.id);
        // There is no directory if flow tables are not kept.
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
        let files = LabFiles { directory: lab_directory(&id), id };
        let (id, directory) = (files.id.as_str(), files.directory.as_path());
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
            servers.push(start_server(host, directory, n, &plan.tidegate)?);
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
        let (router, daemon) = match plan.router {
            RouterKind::Lab => (Router::start(&router, gateway_hosts.clone(), server_hosts.clone()), None),
            RouterKind::Frr => {
                let frr = Frr::start(directory, &router, "router", "", &bgpd(plan.gateways))?;
                (Router::of_frr(&router, plan.gateways), Some(Daemon::Frr(frr)))
            }
            RouterKind::GoBgp => {
                let gobgp = Arc::new(GoBgp::start(directory, &router, &gobgpd(plan.gateways))?);
                let routes = Router::of_gobgp(&router, Arc::clone(&gobgp), plan.gateways);
                (routes, Some(Daemon::GoBgp(gobgp)))
            }
        };
        let endpoints = (1..=serving).map(|n| (n, EndpointState::Ready)).collect();
        let mut fleet = Self {
            router,
            daemon,
            keepalived: Vec::new(),
            gateways: (0..plan.gateways).map(|_| None).collect(),
            servers,
            endpoints,
            plan,
            client,
            gateway_hosts,
            server_hosts,
            switch,
            paused: None,
            files,
        };
        fleet.write_manifests()?;
        let all: Vec<usize> = (1..=fleet.plan.gateways).collect();
        for n in &all {
            fleet.launch(*n)?;
        }
        for n in &all {
            fleet.gateway_mut(*n).wait_until_ready()?;
        }
        if fleet.plan.router != RouterKind::Lab {
            fleet.keepalived = all.iter().map(|n| fleet.start_keepalived(*n)).collect::<Result<_>>()?;
        }
        fleet.wait_until_used(&all).with_context(|| fleet.log_tails(15))?;
        Ok(fleet)
    }

    fn start_keepalived(&self, n: usize) -> Result<Keepalived> {
        let directory = self.directory().join(format!("gateway-{n}"));
        let address = format!("{VIRTUAL_ROUTER}/24 dev tg-uplink");
        let plan = keepalived(u32::try_from(n)?, &address);
        Keepalived::start(&self.gateway_hosts[n - 1], &directory, &self.plan.tidegate, &plan)
    }

    /// Waits until exactly these gateways are in the routes of the router, and the first of them serves `nat`.
    ///
    /// # Errors
    /// When that does not happen in time.
    pub fn wait_until_used(&self, gateways: &[usize]) -> Result<()> {
        self.router.wait_until_used(gateways)?;
        if self.keepalived.is_empty() {
            return Ok(());
        }
        let first = gateways[0];
        wait_for(&format!("gateway {first} to be the master of VRRP"), MASTER_BOUND, || {
            let status = self.gateways[first - 1].as_ref()?.query(&["status", "-o", "json"]).ok()?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            (status["layer2"][GROUP] == "master").then_some(())
        })
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
        &self.files.directory
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

    /// Sets the link of gateway `n` off or on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_link(&self, n: usize, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        self.switch.ip_batch(&format!("link set p-gateway-{n} {state}"))
    }

    /// Removes the saved flows of gateway `n`, so that its next process starts like on a new machine.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn forget_flows(&self, n: usize) -> Result<()> {
        let path = flow_files(&self.files.id).join(format!("gateway-{n}/flows"));
        fs::remove_dir_all(&path).with_context(|| path.display().to_string())
    }

    /// Removes an endpoint from every Service, although its server keeps serving. Waits until all gateways have applied
    /// it.
    ///
    /// # Errors
    /// When a gateway does not apply it in time.
    pub fn unlist(&mut self, old: u8) -> Result<()> {
        self.endpoints.retain(|(n, _)| *n != old);
        self.apply()
    }

    /// Replaces a server: the endpoint `old` terminates but keeps serving, and `new` is ready. Waits until all
    /// gateways have applied it.
    ///
    /// # Errors
    /// When a gateway does not apply it in time.
    pub fn replace(&mut self, old: u8, new: u8) -> Result<()> {
        for (n, state) in &mut self.endpoints {
            if *n == old {
                *state = EndpointState::Terminating;
            }
        }
        self.endpoints.push((new, EndpointState::Ready));
        self.apply()
    }

    fn apply(&self) -> Result<()> {
        self.write_manifests()?;
        let mut running = (1..=self.plan.gateways).filter(|n| self.paused != Some(*n));
        running.try_for_each(|n| self.wait_until_active(n))
    }

    /// Kills the program of a server without a shutdown, so that its host resets every connection.
    pub fn kill_server(&mut self, n: u8) {
        self.servers[usize::from(n) - 1].clear();
    }

    /// Whether the gateways share flows.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.plan.sharing.is_some()
    }

    /// The status output of each running gateway, for diagnosing broken connections.
    #[must_use]
    pub fn condition(&self) -> String {
        let mut text = String::new();
        for (n, gateway) in (1..).zip(&self.gateways) {
            let Some(gateway) = gateway else { continue };
            for command in ["status", "drops"] {
                let answer = gateway.query(&[command]).unwrap_or_else(|error| format!("{error:#}"));
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
        let keepalived =
            (1..).zip(&self.keepalived).map(|(n, one)| format!("keepalived {n}:\n{}", one.log_tail(lines)));
        let daemon = self.daemon.as_ref().map(|daemon| match daemon {
            Daemon::Frr(frr) => format!("FRR:\n{}", frr.log_tail()),
            Daemon::GoBgp(gobgp) => format!("GoBGP:\n{}", gobgp.log_tail(lines)),
        });
        tails.chain(keepalived).chain(daemon).collect::<Vec<String>>().join("\n")
    }

    /// Waits until gateway `n` sends new flows of every Service to exactly the servers that are ready.
    fn wait_until_active(&self, n: usize) -> Result<()> {
        let Some(gateway) = &self.gateways[n - 1] else { return Ok(()) };
        let ready = self.endpoints.iter().filter(|(_, state)| *state == EndpointState::Ready);
        let mut expected: Vec<String> =
            ready.map(|(n, _)| plan::server(Family::V4, *n).to_string()).collect();
        expected.sort();
        wait_for(&format!("gateway {n} to use the servers {expected:?}"), APPLIED_BOUND, || {
            let answer = gateway.query(&["backends", "-A", "-o", "json"]).ok()?;
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
            let ports = vec![PortSpec::tcp("tcp-echo", TCP_ECHO_PORT)];
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

/// The parent of the flow directories of a lab's gateways, in memory.
fn flow_files(id: &str) -> PathBuf {
    Path::new("/dev/shm").join(format!("tidegate-lab-{id}"))
}

/// What this machine lacks for [`RouterKind::Frr`], with the packages to install.
#[must_use]
pub fn missing_for_bgp() -> Vec<String> {
    let others = [process::missing("bird", "bird2"), Keepalived::missing()];
    Frr::missing().into_iter().chain(others.into_iter().flatten()).collect()
}
