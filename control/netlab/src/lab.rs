//! The network itself: hosts around one bridge.
//!
//! ```text
//!   client ──┐            ┌── s1   every link a veth pair, every host a namespace with one `eth0`
//!            ├── switch ──┼── s2   client: 198.51.100.0/24, 2001:db8:c::/64
//!   gateway ─┘  (bridge)  └── s3   servers: 192.0.2.0/24, 2001:db8::/64; gateway: in both, one-armed
//! ```
//! The kernel of the gateway's namespace does not take part: its `eth0` has no address and does not answer ARP, and
//! strict reverse-path filtering drops the frames that it receives there, so every frame is handled by DPDK or not at
//! all. Servers have the VIPs on their loopback, hidden from ARP, for the modes that keep the VIP as the destination.

use super::addresses::{self as plan, Family};
use super::cleanup;
use super::exclusive::changing;
use super::lab_plan::LabPlan;
use super::marks;
use super::namespace::{Namespace, lab_directory};
use super::server::Server;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A complete lab. Dropping it removes all of it.
#[derive(Debug)]
pub struct Lab {
    // Declared first, so that processes end before their namespaces are removed.
    servers: Vec<Server>,
    plan: LabPlan,
    id: String,
    directory: PathBuf,
    switch: Namespace,
    client: Namespace,
    gateway: Namespace,
}

impl Lab {
    /// Builds the network. The server programs do not run yet (see [`Lab::start_servers`]).
    ///
    /// # Errors
    /// Without root, without iproute2 or ethtool, and when the kernel lacks veth, bridges or policy routing.
    pub fn build(lab: &LabPlan) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "the namespaces lab needs root");
        cleanup::sweep();
        allow_neighbors(lab.servers)?;

        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let id = format!("tg{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        cleanup::register(&id);
        // From here on, dropping this value undoes everything after a failure.
        let mut unfinished = UnfinishedLab { id: Some(id.clone()) };

        let directory = lab_directory(&id);
        fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        let switch = build_switch(&id)?;
        let client = build_client(&id, &switch)?;
        let gateway = build_gateway(&id, &switch)?;
        let servers = (1..=lab.servers)
            .map(|n| {
                let namespace = build_server(&id, &switch, n, &lab.vips)?;
                Server::new(n, namespace, &directory, lab)
            })
            .collect::<Result<_>>()?;
        unfinished.id = None;
        Ok(Self { servers, plan: lab.clone(), id, directory, switch, client, gateway })
    }

    /// Starts the programs of every server and waits until they answer.
    ///
    /// # Errors
    /// When one does not start.
    pub fn start_servers(&mut self) -> Result<()> {
        for server in &mut self.servers {
            server.start()?;
        }
        for server in &mut self.servers {
            server.wait_until_up()?;
        }
        Ok(())
    }

    /// The plan of the lab.
    #[must_use]
    pub fn plan(&self) -> &LabPlan {
        &self.plan
    }

    /// `tg<pid>-<n>`, the prefix of its namespaces.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory of configuration, manifests and logs. It is removed with the lab.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The switch's namespace: its bridge is `br0`.
    #[must_use]
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// The client's namespace.
    #[must_use]
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The gateway's namespace.
    #[must_use]
    pub fn gateway(&self) -> &Namespace {
        &self.gateway
    }

    /// Adds a host with `eth0` on the switch, up, without addresses. It is removed with the lab.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn add_host(&self, name: &str, mac: &str) -> Result<Namespace> {
        build_host(&self.id, &self.switch, name, mac)
    }

    /// Ends the processes of a host of [`Lab::add_host`] and removes it.
    pub fn remove_host(&self, host: &Namespace) {
        changing(|| cleanup::remove_host(host.name()));
    }

    /// Adds a host for another gateway. Its kernel takes no part in forwarding, like that of the first one.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn add_gateway(&self, name: &str, mac: &str) -> Result<Namespace> {
        let gateway = self.add_host(name, mac)?;
        quiet_gateway(&gateway)?;
        Ok(gateway)
    }

    /// Server `n`, from 1.
    ///
    /// # Panics
    /// When there is no server with that number.
    #[must_use]
    pub fn server(&self, n: u8) -> &Server {
        &self.servers[usize::from(n) - 1]
    }

    /// Server `n`, from 1, to be started or killed.
    ///
    /// # Panics
    /// When there is no server with that number.
    pub fn server_mut(&mut self, n: u8) -> &mut Server {
        &mut self.servers[usize::from(n) - 1]
    }
}

/// Raises the kernel's limits of neighbors for a lab of many servers, and leaves them raised. The kernel counts the
/// neighbors of all namespaces together, and every server may have every address of the client as one.
fn allow_neighbors(servers: u8) -> Result<()> {
    let wanted = 2 * u32::from(servers) * u32::from(plan::CLIENT_ADDRESSES);
    for family in ["ipv4", "ipv6"] {
        for limit in ["gc_thresh3", "gc_thresh2"] {
            let path = format!("/proc/sys/net/{family}/neigh/default/{limit}");
            let present = fs::read_to_string(&path).with_context(|| path.clone())?;
            if present.trim().parse().is_ok_and(|present: u32| present < wanted) {
                fs::write(&path, wanted.to_string()).with_context(|| path.clone())?;
            }
        }
    }
    Ok(())
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.servers.clear();
        cleanup::tear_down(&self.id);
    }
}

/// A lab under construction.
struct UnfinishedLab {
    id: Option<String>,
}

impl Drop for UnfinishedLab {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            cleanup::tear_down(id);
        }
    }
}

/// The routing table for a server's packets from VIPs, which go directly to the clients.
pub(super) const DIRECT_TABLE: &str = "100";

/// The settings of every host: no source filter, no router advertisements or redirects, no duplicate address detection.
const HOST_SYSCTLS: [(&str, &str); 12] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/dad_transmits", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv6/conf/all/accept_redirects", "0"),
    ("ipv6/conf/default/accept_redirects", "0"),
];

pub(super) fn build_switch(id: &str) -> Result<Namespace> {
    let switch = Namespace::create(&format!("{id}-switch"))?;
    switch.sysctls(&[("ipv6/conf/default/disable_ipv6", "1")])?;
    // Snooping is off: neighbor solicitations are multicast, and there is no querier.
    switch.ip_batch("link add br0 type bridge mcast_snooping 0 forward_delay 0\nlink set br0 up")?;
    Ok(switch)
}

/// A host with `eth0` on the switch, up, without addresses.
pub(super) fn build_host(id: &str, switch: &Namespace, host: &str, mac: &str) -> Result<Namespace> {
    let namespace = Namespace::create(&format!("{id}-{host}"))?;
    namespace.sysctls(&HOST_SYSCTLS)?;
    switch.ip_batch(&format!(
        "link add p-{host} type veth peer name eth0 address {mac} netns {}\n\
         link set p-{host} master br0 up",
        namespace.name()
    ))?;
    switch.turn_off_offloads(&format!("p-{host}"))?;
    namespace.turn_off_offloads("eth0")?;
    namespace.ip_batch("link set eth0 up")?;
    Ok(namespace)
}

fn build_client(id: &str, switch: &Namespace) -> Result<Namespace> {
    let client = build_host(id, switch, "client", plan::CLIENT_MAC)?;
    let mut lines = String::new();
    for n in 0..plan::CLIENT_ADDRESSES {
        let (v4, v6) = (plan::client(Family::V4, n), plan::client(Family::V6, n));
        // Only the first IPv6 address may be selected as a source by default. The others are deprecated from the start.
        let lifetime = if n == 0 { "" } else { " preferred_lft 0" };
        writeln!(lines, "addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad{lifetime}")?;
    }
    for (vips, gateway) in plan::ROUTED_VIPS.iter().zip(plan::GATEWAY_FOR_CLIENTS) {
        writeln!(lines, "route add {vips} via {gateway}")?;
    }
    client.ip_batch(&lines)?;
    Ok(client)
}

fn build_gateway(id: &str, switch: &Namespace) -> Result<Namespace> {
    let gateway = build_host(id, switch, "gateway", plan::GATEWAY_MAC)?;
    quiet_gateway(&gateway)?;
    Ok(gateway)
}

/// Keeps the kernel of a gateway's host out of its traffic.
pub(super) fn quiet_gateway(host: &Namespace) -> Result<()> {
    host.sysctls(&[("ipv4/conf/eth0/rp_filter", "1"), ("ipv6/conf/eth0/disable_ipv6", "1")])?;
    host.ip_batch("link set eth0 arp off")
}

fn build_server(id: &str, switch: &Namespace, n: u8, vips: &[IpAddr]) -> Result<Namespace> {
    let server = build_host(id, switch, &format!("s{n}"), &plan::server_mac(n))?;
    server.sysctls(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])?;
    let mut lines = String::new();
    writeln!(lines, "addr add {}/24 dev eth0", plan::server(Family::V4, n))?;
    writeln!(lines, "addr add {}/64 dev eth0 nodad", plan::server(Family::V6, n))?;
    for vip in vips {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        // IPv6 neighbor discovery never answers for an address of another interface, so addresses on lo need no further
        // setting.
        let nodad = if vip.is_ipv4() { "" } else { " nodad" };
        writeln!(lines, "addr add {vip}/{length} dev lo{nodad}")?;
    }
    server.ip_batch(&lines)?;
    marks::set_vip_by_mark(&server, n, vips)?;
    // With its own address a server answers through the gateway (`nat`), with a VIP directly to the client (`dsr-*`).
    for family in Family::BOTH {
        let n = family as usize;
        let mut lines = String::new();
        writeln!(lines, "route add default via {}", plan::GATEWAY_FOR_SERVERS[n])?;
        writeln!(lines, "route add {} dev eth0 table {DIRECT_TABLE}", plan::CLIENT_PREFIX[n])?;
        for from in [plan::ROUTED_VIPS[n], plan::ON_LINK_VIPS[n]] {
            writeln!(lines, "rule add from {from} lookup {DIRECT_TABLE}")?;
        }
        server.ip_batch_of(family, &lines)?;
    }
    Ok(server)
}
