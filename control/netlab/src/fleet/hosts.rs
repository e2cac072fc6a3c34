//! The hosts of the fleet: router and clients, gateways, servers and their programs.
//!
//! Called by [`super::Fleet::start`] alone.

use super::addresses::{ROUTER_FOR_CLIENTS, ROUTER_FOR_GATEWAYS, SERVICES, VIRTUAL_ROUTER};
use crate::addresses::{self as plan, Family, TCP_ECHO_PORT};
use crate::lab::{DIRECT_TABLE, build_host, quiet_gateway};
use crate::namespace::Namespace;
use crate::poll::wait_for;
use crate::process::LabProcess;
use crate::{binary, server};
use anyhow::Result;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// The maximum time until a program answers after its start, on a busy machine.
const START_BOUND: Duration = Duration::from_secs(60);
/// The TUN device of a server's decapsulation.
const TUN: &str = "decap0";

/// The router, on the switch and on a link to the client.
pub(super) fn build_edge(id: &str, switch: &Namespace) -> Result<(Namespace, Namespace)> {
    let router = build_host(id, switch, "router", "02:00:00:00:00:01")?;
    let client = Namespace::create(&format!("{id}-client"))?;
    client.sysctls(&[
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        // The router's kernel uses the hash of the client's socket, because both share one kernel. A socket changes it
        // at a retransmission, and the flow would move to the other gateway, which no real router does.
        ("core/txrehash", "0"),
    ])?;
    router.sysctls(&[
        ("ipv4/ip_forward", "1"),
        // Hash addresses and ports, so that the connections of one client are spread.
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
    for service in SERVICES.iter().filter(|service| service.is_nat()) {
        router.ip_batch(&format!("route add {}/32 via {VIRTUAL_ROUTER}", service.vip().ip()))?;
    }
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

pub(super) fn build_gateway(id: &str, switch: &Namespace, n: usize) -> Result<Namespace> {
    let host = build_host(id, switch, &format!("gateway-{n}"), &format!("02:00:00:00:02:{n:02x}"))?;
    quiet_gateway(&host)?;
    Ok(host)
}

pub(super) fn build_server(id: &str, switch: &Namespace, n: u8) -> Result<Namespace> {
    let host = build_host(id, switch, &format!("s{n}"), &plan::server_mac(n))?;
    host.sysctls(&[("ipv4/conf/all/arp_ignore", "1"), ("ipv4/conf/all/arp_announce", "2")])?;
    let mut lines = format!("addr add {}/24 dev eth0\n", plan::server(Family::V4, n));
    for service in SERVICES.iter().filter(|service| service.forwarding.starts_with("dsr")) {
        let vip = service.vip().ip();
        writeln!(lines, "addr add {vip}/32 dev lo\nrule add from {vip}/32 lookup {DIRECT_TABLE}")?;
    }
    writeln!(lines, "route add default via {ROUTER_FOR_GATEWAYS} table {DIRECT_TABLE}")?;
    // For replies in mode `nat`.
    writeln!(lines, "route add default via {VIRTUAL_ROUTER}")?;
    host.ip_batch(&lines)?;
    Ok(host)
}

/// The programs of server `n`: `tcp-echo`, and the decapsulation of the gateways' tunnels.
pub(super) fn start_server(
    host: &Namespace,
    directory: &Path,
    n: u8,
    tidegate: &Path,
) -> Result<Vec<LabProcess>> {
    let tools = binary::of_tools(tidegate)?;
    let (name, port) = (server::name(n), TCP_ECHO_PORT.to_string());
    let own = plan::server(Family::V4, n).to_string();
    let tcp_echo = ["lab", "tcp-echo", "--name", &name, "--port", &port];
    let decap = ["lab", "decap", "--tun", TUN, "--own", &own];
    Ok(vec![
        LabProcess::start(host, directory, &format!("s{n}"), &tools, &tcp_echo)?,
        LabProcess::start(host, directory, &format!("s{n}-decap"), &tools, &decap)?,
    ])
}

pub(super) fn wait_for_server(host: &Namespace, n: u8) -> Result<()> {
    let to = SocketAddr::new(plan::server(Family::V4, n), TCP_ECHO_PORT);
    host.enter(|| {
        wait_for(&format!("server {n}"), START_BOUND, || {
            let has_tun = Path::new("/proc/sys/net/ipv4/conf").join(TUN).exists();
            let answers = || TcpStream::connect_timeout(&to, Duration::from_millis(500)).is_ok();
            (has_tun && answers()).then_some(())
        })
    })
}
