//! The fixtures of the end-to-end tests: a lab with running servers, and a gateway with its log.
//!
//! Invariant: a test that cannot run here (no root, no DPDK) fails.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use tidegate_netlab::addresses::{self as plan, Family, client, on_link_vip, routed_vip};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::gateway::manifests_of;
use tidegate_netlab::manifests::{Manifest, put};
use tidegate_netlab::modes::ModePath;
use tidegate_netlab::{Gateway, GatewayOptions, Lab, LabPlan, cleanup, wait_for};

/// The number of VIPs of each kind on the servers: enough for every test.
const ROUTED: u8 = 12;
const ON_LINK: u8 = 4;

/// The maximum time until a change of manifests affects traffic on a busy machine. These tests check correctness; speed
/// is measured elsewhere.
pub(crate) const APPLIED: Duration = Duration::from_secs(60);

/// Lets either one test use the machine alone, or several others share it.
static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until no other test runs. Tests that load the processors, count losses or use short timers need this.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    clean_up_on_signals();
    // A failed test has dropped its lab, so the next test starts without it.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test needs the machine alone. Other tests may run at the same time: most wait more than they compute.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    clean_up_on_signals();
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn clean_up_on_signals() {
    static SIGNALS: std::sync::Once = std::sync::Once::new();
    SIGNALS.call_once(|| cleanup::on_signals().expect("signal handlers"));
}

/// The binary under test, the one that users run.
pub(crate) fn tidegate() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tidegate"))
}

/// A lab with `servers` running servers that have all VIPs on their loopbacks.
pub(crate) fn lab(servers: u8) -> Lab {
    let vips = Family::BOTH
        .into_iter()
        .flat_map(|family| {
            let routed = (1..=ROUTED).map(move |n| routed_vip(family, n));
            routed.chain((1..=ON_LINK).map(move |n| on_link_vip(family, n)))
        })
        .collect();
    lab_with(servers, vips)
}

/// A lab with `servers` running servers that have these addresses on their loopbacks.
pub(crate) fn lab_with(servers: u8, vips: Vec<IpAddr>) -> Lab {
    let mut lab =
        Lab::build(&LabPlan { servers, vips, tidegate: tidegate() }).expect("the lab is built (needs root)");
    lab.start_servers().expect("the servers answer");
    lab
}

/// A lab with a running gateway. Prints the end of the gateway's log if its test fails.
pub(crate) struct World {
    // Declared first, so that the daemon ends before its namespace is removed.
    gateway: Option<Gateway>,
    pub(crate) lab: Lab,
    pub(crate) options: GatewayOptions,
    /// Whether the gateway that was launched last is of the previous version.
    is_previous: bool,
}

impl World {
    /// Starts a gateway for `servers` servers with `manifests` in its directory, and waits until it is ready.
    pub(crate) fn start(servers: u8, options: GatewayOptions, manifests: &[Manifest]) -> Self {
        Self::over(lab(servers), options, manifests, "")
    }

    /// Starts a gateway in an existing lab, with `objects` (YAML) in its directory besides the manifests.
    pub(crate) fn over(lab: Lab, options: GatewayOptions, manifests: &[Manifest], objects: &str) -> Self {
        Gateway::configure(&lab, &options).expect("configuration written");
        let mut world = Self { gateway: None, lab, options, is_previous: false };
        world.write(manifests);
        if !objects.is_empty() {
            put(&manifests_of(&world.lab), "objects.yaml", objects).expect("objects written");
        }
        world.gateway = Some(Gateway::start(&world.lab).expect("the gateway is ready (needs DPDK)"));
        world
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("the gateway runs")
    }

    pub(crate) fn gateway_mut(&mut self) -> &mut Gateway {
        self.gateway.as_mut().expect("the gateway runs")
    }

    /// Takes the gateway out of the world, to stop or kill it.
    pub(crate) fn take_gateway(&mut self) -> Gateway {
        self.gateway.take().expect("the gateway runs")
    }

    /// Starts the gateway again with the same configuration. Returns before it is ready. If `TIDEGATE_PREVIOUS` names the
    /// program of the previous version, each start changes to the other version.
    pub(crate) fn launch_gateway(&mut self) {
        let previous = std::env::var_os("TIDEGATE_PREVIOUS").map(PathBuf::from);
        self.is_previous = previous.is_some() && !self.is_previous;
        let program = previous.filter(|_| self.is_previous).unwrap_or_else(tidegate);
        let gateway = Gateway::launch_in(self.lab.gateway(), self.lab.directory(), &program);
        self.gateway = Some(gateway.expect("the gateway starts"));
    }

    /// Puts manifests into the watched directory.
    pub(crate) fn write(&self, manifests: &[Manifest]) {
        for manifest in manifests {
            manifest.write(&manifests_of(&self.lab)).expect("manifest written");
        }
    }

    /// Opens a connection over `path` from the client's address number `n`.
    pub(crate) fn connect(&self, path: ModePath, n: u8) -> anyhow::Result<EchoConnection> {
        EchoConnection::connect(
            self.lab.client(),
            SocketAddr::new(client(path.family, n), 0),
            path.tcp_echo(),
        )
    }

    /// Waits until a connection over `path` ends at `backend`.
    pub(crate) fn wait_until_used(&self, path: ModePath, backend: &str) -> EchoConnection {
        let what = format!("a connection of {} {} to {backend}", path.label(), path.family);
        let connected = wait_for(&what, APPLIED, || {
            self.connect(path, 0).ok().filter(|connection| connection.answer.backend == backend)
        });
        connected.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Waits until the probe returns a value, and returns it.
    pub(crate) fn wait_until<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> T {
        wait_for(what, APPLIED, probe).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Waits until the gateway reports that exactly these servers take new flows on every port of `path`.
    pub(crate) fn wait_until_active(&self, path: ModePath, servers: &[u8]) {
        let expected: BTreeSet<String> =
            servers.iter().map(|n| plan::server(path.backends, *n).to_string()).collect();
        let what = format!("{expected:?} to be active for {} {}", path.label(), path.family);
        self.wait_until(&what, || {
            let ports = self.ports_at(path.vip).ok()?;
            let active = |port: &serde_json::Value| -> BTreeSet<String> {
                let backends = port["backends"].as_array().into_iter().flatten();
                let active = backends.filter(|backend| backend["state"] == "active");
                active.filter_map(|backend| backend["address"].as_str().map(str::to_owned)).collect()
            };
            (!ports.is_empty() && ports.iter().all(|port| active(port) == expected)).then_some(())
        });
    }

    /// The ports that the gateway serves on `vip`, as `services -o json` shows them.
    pub(crate) fn ports_at(&self, vip: IpAddr) -> anyhow::Result<Vec<serde_json::Value>> {
        let answer: serde_json::Value =
            serde_json::from_str(&self.gateway().query(&["services", "-A", "-o", "json"])?)?;
        let services = answer["items"].as_array().into_iter().flatten();
        let ports = services.flat_map(|service| service["ports"].as_array().into_iter().flatten());
        Ok(ports.filter(|port| port["vip"] == vip.to_string()).cloned().collect())
    }

    /// Waits until connections over `path` succeed.
    pub(crate) fn wait_until_served(&self, path: ModePath) -> EchoConnection {
        let what = format!("a connection over {} {}", path.label(), path.family);
        wait_for(&what, APPLIED, || self.connect(path, 0).ok()).unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(gateway) = &self.gateway
        {
            eprintln!("end of the gateway's log:\n{}", gateway.log_tail(60));
        }
    }
}

/// Pings every connection. Returns the broken ones, each with the reason.
pub(crate) fn broken<'a>(
    connections: impl IntoIterator<Item = &'a mut (ModePath, EchoConnection)>,
) -> Vec<String> {
    connections
        .into_iter()
        .filter_map(|(path, connection)| {
            let error = connection.ping().err()?;
            Some(format!("{} {} to {}: {error:#}", path.label(), path.family, connection.answer.backend))
        })
        .collect()
}

/// Pings every connection. The error lists all broken ones.
pub(crate) fn assert_alive<'a>(
    when: &str,
    connections: impl IntoIterator<Item = &'a mut (ModePath, EchoConnection)>,
) {
    let broken = broken(connections);
    assert!(broken.is_empty(), "{when}, broken connections: {broken:#?}");
}
