//! `dataplane`: cores, memory, interfaces, routes and the addresses the gateway itself uses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use tidegate_core::limits::{INTERFACES_MAX, WORKERS_MAX};
use tidegate_core::snapshot::TunnelPrefix;
use tidegate_core::wire::MacAddr;

use super::section::section;
use crate::yaml::{Field, Fields, Unknown, Value, text};

/// The validated `dataplane` section.
#[derive(Debug, Clone, PartialEq)]
pub struct DataplaneConfig {
    /// `cores`: dedicated CPU cores, one worker each; distinct. Default `[1]`.
    pub cores: Vec<u16>,
    /// `idle`: what a worker without packets does. Default `poll`, and `adaptive` on a host of fewer than 4
    /// cores.
    pub idle: Idle,
    /// `memory`.
    pub memory: Memory,
    /// `flowTable.entriesPerCore`: flows that each worker can remember, 1,024 to 2^28. Default 1048576.
    pub flow_entries_per_core: u32,
    /// `flowTable.servicePercent`: what one service port may have of a flow table, in percent of `entriesPerCore`, once
    /// the table holds that many flows; 1 to 100. Default 50; with 100 there is no limit. The table has room for half
    /// as many flows more, which are then for other service ports.
    pub flow_service_percent: u8,
    /// `interfaces`, names unique. Default none: then nothing can be forwarded.
    pub interfaces: Vec<Interface>,
    /// `routes`: next hops for what is not on-link; each `to` once. Default none.
    pub routes: Vec<Route>,
    /// `neighbors`: link addresses that are given; all others are resolved. Default none.
    pub neighbors: Vec<Neighbor>,
    /// `snatAddresses`: source addresses towards backends in mode fullnat. Default none.
    pub snat_addresses: Vec<IpAddr>,
    /// `tunnelSource`: outer source addresses, at most one entry of each family: an address, or a prefix (IPv4 /24 to
    /// /32, IPv6 /48 to /128) from which the flow's hash chooses one. Default: of each family the first address of the
    /// first interface that has one.
    pub tunnel_source: TunnelSource,
    /// `routersAsClients`: serve next hops of default routes as clients too, for routers that masquerade the hosts
    /// behind them. Default `false`: a new flow from a router's own address is forged, and dropped as `bad_source`.
    pub routers_as_clients: bool,
    /// `unknownFlows`: what TCP of a connection gets that the gateway does not know, in modes `nat` and `fullnat`:
    /// `reset`, so that its ends need not wait for a time-out after a restart, or `drop`. Several gateways behind
    /// ECMP that keep `nat` or `fullnat` connections: a segment that goes to another gateway is of a lost connection
    /// until its route comes back; `drop` leaves it the chance. Default `reset`.
    pub unknown_flows: UnknownFlows,
}

/// What a worker does while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// Asks again at once: lowest latency, the core is always busy.
    Poll,
    /// Waits longer step by step, and is back at once under load.
    Adaptive,
}

/// What TCP of an unknown connection gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownFlows {
    /// A reset, within the limits of answers.
    Reset,
    /// Nothing.
    Drop,
}

/// Memory of DPDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `hugepages`: take memory from hugepages. Default true.
    pub hugepages: bool,
    /// `sizeMiB`: how much, in MiB, 64 to 1,048,576. Default 1024.
    pub size_mib: u32,
}

/// One of `interfaces`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `name`: unique; what metrics call it.
    pub name: String,
    /// `device`: a DPDK virtual device with its arguments, or a PCI address.
    pub device: String,
    /// `addresses`: own addresses with their on-link prefix. Default none.
    pub addresses: Vec<IpNet>,
    /// `mac`: take over this link address. Default: the device's own.
    pub mac: Option<MacAddr>,
    /// `mtu`: largest IP packet in bytes, 576 to 9,216, and at least 1,280 with an IPv6 address. Default 1500.
    pub mtu: u16,
    /// `vlan`: 802.1Q tag of every frame, 1 to 4,094. Default none.
    pub vlan: Option<u16>,
}

/// One of `routes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `to`: destination network.
    pub to: IpNet,
    /// `via`: next hop, on-link on one of the interfaces.
    pub via: IpAddr,
}

/// One of `neighbors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// `ip`: its address.
    pub ip: IpAddr,
    /// `mac`: its link address.
    pub mac: MacAddr,
}

/// Outer source addresses of tunnels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TunnelSource {
    /// Of IPv4 outer headers.
    pub v4: Option<TunnelPrefix>,
    /// Of IPv6 outer headers.
    pub v6: Option<TunnelPrefix>,
}

impl DataplaneConfig {
    /// The interface that has `ip` on-link, by longest prefix.
    pub fn on_link(&self, ip: IpAddr) -> Option<&Interface> {
        let prefixes = self.interfaces.iter().flat_map(|i| i.addresses.iter().map(move |a| (i, a)));
        let on_link = prefixes.filter(|(_, net)| net.contains(&ip));
        on_link.max_by_key(|(_, net)| net.prefix_len()).map(|(interface, _)| interface)
    }

    /// All addresses of the gateway itself: of interfaces, for SNAT, and of tunnels. No Service may have them.
    pub fn own_addresses(&self) -> std::collections::BTreeSet<IpAddr> {
        let interfaces = self.interfaces.iter().flat_map(|i| i.addresses.iter().map(IpNet::addr));
        let tunnels = [&self.tunnel_source.v4, &self.tunnel_source.v6];
        let tunnels = tunnels.into_iter().flatten().flat_map(listed);
        interfaces.chain(self.snat_addresses.iter().copied()).chain(tunnels).collect()
    }
}

/// The addresses of a source of tunnels, where they are few enough to be listed: those of every IPv4 prefix are. What
/// a larger IPv6 prefix overlaps is checked with the configuration.
pub fn listed(prefix: &TunnelPrefix) -> impl Iterator<Item = IpAddr> + '_ {
    let count = prefix.count();
    prefix.addresses().take(if count < 256 { count as usize } else { 0 })
}

pub(super) fn decode(parent: &Fields<'_>, host_cores: usize) -> DataplaneConfig {
    let mut config = DataplaneConfig {
        cores: vec![1],
        idle: if host_cores < 4 { Idle::Adaptive } else { Idle::Poll },
        memory: Memory { hugepages: true, size_mib: 1024 },
        flow_entries_per_core: 1_048_576,
        flow_service_percent: 50,
        interfaces: Vec::new(),
        routes: Vec::new(),
        neighbors: Vec::new(),
        snat_addresses: Vec::new(),
        tunnel_source: TunnelSource::default(),
        routers_as_clients: false,
        unknown_flows: UnknownFlows::Reset,
    };
    section(parent, "dataplane", |fields| {
        if let Some(list) = fields.get("cores") {
            config.cores = cores(&list);
        }
        let idle =
            fields.get("idle").and_then(|f| f.one_of(&[("poll", Idle::Poll), ("adaptive", Idle::Adaptive)]));
        config.idle = idle.unwrap_or(config.idle);
        section(fields, "memory", |memory| {
            let hugepages = memory.get("hugepages").and_then(|f| f.boolean());
            config.memory.hugepages = hugepages.unwrap_or(config.memory.hugepages);
            let size = memory.get("sizeMiB").and_then(|f| f.integer(64..=1_048_576));
            config.memory.size_mib =
                size.and_then(|n| u32::try_from(n).ok()).unwrap_or(config.memory.size_mib);
            Some(())
        });
        section(fields, "flowTable", |table| {
            let entries = table.get("entriesPerCore").and_then(|f| f.integer(1024..=1 << 28));
            let entries = entries.and_then(|n| u32::try_from(n).ok());
            config.flow_entries_per_core = entries.unwrap_or(config.flow_entries_per_core);
            let percent = table.get("servicePercent").and_then(|f| f.integer(1..=100));
            let percent = percent.and_then(|n| u8::try_from(n).ok());
            config.flow_service_percent = percent.unwrap_or(config.flow_service_percent);
            Some(())
        });
        config.interfaces = interfaces(fields);
        config.routes = routes(fields);
        config.neighbors = neighbors(fields);
        config.snat_addresses = unique(&fields.items("snatAddresses"), host_address);
        config.tunnel_source = tunnel_source(fields);
        let routers_as_clients = fields.get("routersAsClients").and_then(|f| f.boolean());
        config.routers_as_clients = routers_as_clients.unwrap_or(config.routers_as_clients);
        let choices = [("reset", UnknownFlows::Reset), ("drop", UnknownFlows::Drop)];
        let unknown = fields.get("unknownFlows").and_then(|f| f.one_of(&choices));
        config.unknown_flows = unknown.unwrap_or(config.unknown_flows);
        Some(())
    });
    let first = |v4: bool| {
        let mut own = config.interfaces.iter().flat_map(|i| i.addresses.iter().map(IpNet::addr));
        own.find(|ip| ip.is_ipv4() == v4)
    };
    config.tunnel_source.v4 = config.tunnel_source.v4.or_else(|| first(true).map(Into::into));
    config.tunnel_source.v6 = config.tunnel_source.v6.or_else(|| first(false).map(Into::into));
    config
}

fn cores(list: &Field<'_>) -> Vec<u16> {
    let core = |f: &Field<'_>| f.integer(0..=1023).and_then(|n| u16::try_from(n).ok());
    let items = list.list();
    let cores = unique(&items, core);
    let is_list = matches!(list.node.value, Value::Sequence(_));
    if is_list && !(1..=WORKERS_MAX).contains(&items.len()) {
        list.error(format_args!("{} cores", items.len()), format!("1 to {WORKERS_MAX} core numbers"));
    }
    cores
}

fn interfaces(parent: &Fields<'_>) -> Vec<Interface> {
    let Some(list) = parent.get("interfaces") else { return Vec::new() };
    let items = list.list();
    if items.len() > INTERFACES_MAX {
        list.error(format_args!("{} interfaces", items.len()), format!("at most {INTERFACES_MAX}"));
    }
    let mut names = BTreeMap::new();
    let mut devices = BTreeMap::new();
    let mut decoded = Vec::new();
    for item in &items {
        let Some(fields) = item.fields() else { continue };
        let name = fields.required("name", "a name such as uplink");
        let name = name.and_then(|f| {
            let name = f.string_where(is_interface_name, "a name of 1 to 32 letters, digits, -, _ and .")?;
            once(&mut names, name, &f).then(|| name.to_owned())
        });
        let device = fields.required("device", DEVICE).and_then(|f| {
            let device = f.string_where(|d| !d.trim().is_empty() && d.is_ascii(), DEVICE)?;
            let exclusive = !device.starts_with("net_") || device.contains("iface=");
            (!exclusive || once(&mut devices, device, &f)).then(|| device.trim().to_owned())
        });
        let addresses = unique(&fields.items("addresses"), own_address);
        let mac = fields.get("mac").and_then(|f| f.parsed(text::mac, text::MAC)).map(MacAddr);
        let mtu_field = fields.get("mtu");
        let mtu = mtu_field.as_ref().and_then(|f| f.integer(576..=9216)).and_then(|n| u16::try_from(n).ok());
        if let (Some(field), Some(mtu)) = (&mtu_field, mtu)
            && mtu < 1280
            && addresses.iter().any(|a| a.addr().is_ipv6())
        {
            field.error(
                format_args!("{mtu} is too small for IPv6 (RFC 8200)"),
                "1280 to 9216 with IPv6 addresses",
            );
        }
        let vlan = fields.get("vlan").and_then(|f| f.integer(1..=4094)).and_then(|n| u16::try_from(n).ok());
        fields.finish(Unknown::Refused);
        if let (Some(name), Some(device)) = (name, device) {
            decoded.push(Interface { name, device, addresses, mac, mtu: mtu.unwrap_or(1500), vlan });
        }
    }
    decoded
}

const DEVICE: &str =
    "a DPDK virtual device such as net_af_packet,iface=eth1, or a PCI address such as 0000:3b:00.0";

fn is_interface_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=32).contains(&name.len()) && name.chars().all(legal)
}

fn routes(parent: &Fields<'_>) -> Vec<Route> {
    let mut seen = BTreeMap::new();
    let mut decoded = Vec::new();
    for item in parent.items("routes") {
        let Some(fields) = item.fields() else { continue };
        let to = fields.required("to", text::CIDR).and_then(|f| {
            let to = f.network()?;
            once(&mut seen, to, &f).then_some(to)
        });
        let via = fields.required("via", "the address of a router on-link").and_then(|f| host_address(&f));
        fields.finish(Unknown::Refused);
        if let (Some(to), Some(via)) = (to, via) {
            decoded.push(Route { to, via });
        }
    }
    decoded
}

fn neighbors(parent: &Fields<'_>) -> Vec<Neighbor> {
    let mut seen = BTreeMap::new();
    let mut decoded = Vec::new();
    for item in parent.items("neighbors") {
        let Some(fields) = item.fields() else { continue };
        let ip = fields.required("ip", text::IP).and_then(|f| {
            let ip = host_address(&f)?;
            once(&mut seen, ip, &f).then_some(ip)
        });
        let mac = fields.required("mac", text::MAC).and_then(|f| f.parsed(text::mac, text::MAC));
        fields.finish(Unknown::Refused);
        if let (Some(ip), Some(mac)) = (ip, mac) {
            decoded.push(Neighbor { ip, mac: MacAddr(mac) });
        }
    }
    decoded
}

fn tunnel_source(parent: &Fields<'_>) -> TunnelSource {
    let mut source = TunnelSource::default();
    for field in parent.items("tunnelSource") {
        let Some(prefix) = tunnel_prefix(&field) else { continue };
        let of_family = if prefix.net().addr().is_ipv4() { &mut source.v4 } else { &mut source.v6 };
        if let Some(taken) = of_family.replace(prefix) {
            field.error(
                format_args!("a second entry of the family of {taken}"),
                "one address or prefix of each family",
            );
        }
    }
    source
}

const TUNNEL_PREFIX: &str = "an IPv4 prefix of /24 to /32, or an IPv6 prefix of /48 to /128";

/// An address, or the prefix that addresses are taken from.
fn tunnel_prefix(field: &Field<'_>) -> Option<TunnelPrefix> {
    if !field.string()?.contains('/') {
        return host_address(field).map(Into::into);
    }
    let net = field.network()?;
    let shortest = if net.addr().is_ipv4() { 24 } else { 48 };
    let (first, last) = (net.network(), net.broadcast());
    let unusable = |ip: IpAddr| ip.is_unspecified() || ip.is_multicast() || ip.is_loopback();
    if net.prefix_len() < shortest || unusable(first) || unusable(last) {
        field.error(format_args!("{net} cannot be the source of tunnels"), TUNNEL_PREFIX);
        return None;
    }
    Some(TunnelPrefix::new(net))
}

/// An address that a host can have.
fn host_address(field: &Field<'_>) -> Option<IpAddr> {
    let ip = field.ip()?;
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || broadcast {
        field.error(
            format_args!("{ip} cannot be the address of a host here"),
            "a unicast address, not loopback",
        );
        return None;
    }
    Some(ip)
}

/// An own address with its prefix, such as `192.0.2.2/24`: not the network's own address.
fn own_address(field: &Field<'_>) -> Option<IpNet> {
    let net = field
        .parsed(text::cidr, "an address with its prefix length such as 192.0.2.2/24 or 2001:db8::2/64")?;
    let ip = net.addr();
    let reserved = match net {
        IpNet::V4(v4) => v4.prefix_len() < 31 && (ip == net.network() || ip == net.broadcast()),
        IpNet::V6(v6) => v6.prefix_len() < 127 && ip == net.network(),
    };
    if reserved || ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
        let what = format_args!("{net} is not a host address");
        field.error(what, "a host address with the prefix length of its network");
        return None;
    }
    Some(net)
}

/// What `read` takes of the items, each value once; a repetition is an error that names the first.
fn unique<'a, T: Ord + Clone + std::fmt::Display>(
    items: &[Field<'a>],
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Vec<T> {
    let mut seen = BTreeMap::new();
    let mut values = Vec::new();
    for item in items {
        if let Some(value) = read(item)
            && once(&mut seen, value.clone(), item)
        {
            values.push(value);
        }
    }
    values
}

/// Notes that `field` has `value`; false and an error where another has it already.
pub(super) fn once<T: Ord + std::fmt::Display>(
    seen: &mut BTreeMap<T, String>,
    value: T,
    field: &Field<'_>,
) -> bool {
    if let Some(first) = seen.get(&value) {
        field.error(format_args!("{value} is already at {first}"), "each value once");
        return false;
    }
    seen.insert(value, field.path.clone());
    true
}
