//! `dataplane`: cores, memory, interfaces, routes and the gateway's own addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::IpNet;
use tidegate_spec::limits::{INTERFACES_MAX, TUNNEL_PEERS_MAX, WORKERS_MAX};
use tidegate_spec::{GatewaySpec, NeighborSpec, NetworkSpec, RouteSpec, TunnelPrefix};
use tidegate_wire::MacAddr;

use crate::yaml::{Field, Fields, Value, text};

/// The validated `dataplane` section.
#[derive(Debug, Clone, PartialEq)]
pub struct DataplaneConfig {
    /// `cores`: dedicated CPU cores, one worker each; distinct. Default `[1]`.
    pub cores: Vec<u16>,
    /// `idle`: how a worker waits for packets. Default `poll`, and `adaptive` on a host with fewer than 4 cores.
    pub idle: Idle,
    /// `memory`.
    pub memory: Memory,
    /// `flowTable.entriesPerCore`: the number of flows in each worker's table, 1,024 to 2^28. Default 1048576.
    pub flow_entries_per_core: u32,
    /// `flowTable.servicePercent`: the share of one service port in a full table. The table has space for half as many
    /// flows again, which other service ports can use.
    pub flow_service_percent: u8,
    /// `flowTable.directory`: where flow tables survive a restart of the process; `None` for `""`.
    pub flow_directory: Option<PathBuf>,
    /// The network. Names of interfaces are unique, and next hops are on-link. `tunnelSource` defaults to the first
    /// address of each family, and `services.unservedPorts` and `selectionKey` are in the policy.
    pub network: NetworkSpec<Interface>,
}

tidegate_wire::named! {
    /// How a worker waits while there is nothing to do.
    pub enum Idle {
        /// It polls again at once: the lowest latency, and the core is always busy.
        Poll => "poll",
        /// It sleeps for increasing times, and polls at once again under load.
        Adaptive => "adaptive",
    }
}

/// Memory of DPDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `hugepages`: allocate memory from hugepages. Default true.
    pub hugepages: bool,
    /// `sizeMiB`: the size in MiB, 64 to 1,048,576. Default 1024.
    pub size_mib: u32,
}

/// One of `interfaces`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// `name`: unique; the name in metrics.
    pub name: String,
    /// `device`: a DPDK virtual device with its arguments, or a PCI address.
    pub device: String,
    /// `addresses`: own addresses with their on-link prefix. Default none.
    pub addresses: Vec<IpNet>,
    /// `mac`: the link address to use. Default: the device's own.
    pub mac: Option<MacAddr>,
    /// `mtu`: the largest IP packet in bytes, 576 to 9,216, and at least 1,280 with an IPv6 address. Default 1500.
    pub mtu: u16,
    /// `vlan`: 802.1Q tag of every frame, 1 to 4,094. Default none.
    pub vlan: Option<u16>,
}

impl DataplaneConfig {
    /// The own addresses of all interfaces, each with its on-link network.
    pub(super) fn interface_addresses(&self) -> impl Iterator<Item = &IpNet> {
        self.network.interfaces.iter().flat_map(|interface| &interface.addresses)
    }

    /// Whether `ip` is on the link of an interface.
    pub(super) fn is_on_link(&self, ip: IpAddr) -> bool {
        self.interface_addresses().any(|net| net.contains(&ip))
    }
}

pub(super) fn decode(parent: &Fields<'_>, host_cores: usize) -> DataplaneConfig {
    let mut config = DataplaneConfig {
        cores: vec![1],
        idle: if host_cores < 4 { Idle::Adaptive } else { Idle::Poll },
        memory: Memory { hugepages: true, size_mib: 1024 },
        flow_entries_per_core: 1_048_576,
        flow_service_percent: 50,
        flow_directory: Some(PathBuf::from("/run/tidegate/flows")),
        network: NetworkSpec::default(),
    };
    parent.section("dataplane", |fields| {
        fields.set("cores", &mut config.cores, |f| Some(cores(f)));
        fields.set("idle", &mut config.idle, Field::named);
        fields.section("memory", |memory| {
            memory.set("hugepages", &mut config.memory.hugepages, Field::boolean);
            memory.set("sizeMiB", &mut config.memory.size_mib, |f| f.integer(64..=1_048_576));
        });
        fields.section("flowTable", |table| {
            table.set("entriesPerCore", &mut config.flow_entries_per_core, |f| f.integer(1024..=1 << 28));
            table.set("servicePercent", &mut config.flow_service_percent, |f| f.integer(1..=100));
            table.set("directory", &mut config.flow_directory, |f| {
                let directory = f.string_where(|d| d.is_empty() || d.starts_with('/'), DIRECTORY)?;
                Some((!directory.is_empty()).then(|| PathBuf::from(directory)))
            });
        });
        config.network = network(fields);
    });
    let first = |v4: bool| {
        let mut own = config.interface_addresses().map(IpNet::addr);
        own.find(|ip| ip.is_ipv4() == v4).map(TunnelPrefix::from)
    };
    let (first_v4, first_v6) = (first(true), first(false));
    config.network.tunnel_source_v4 = config.network.tunnel_source_v4.or(first_v4);
    config.network.tunnel_source_v6 = config.network.tunnel_source_v6.or(first_v6);
    config
}

/// The keys about the network. The section `services` has the rest of its policy.
fn network(fields: &Fields<'_>) -> NetworkSpec<Interface> {
    let mut network = NetworkSpec {
        interfaces: interfaces(fields),
        routes: routes(fields),
        neighbors: neighbors(fields),
        snat_addresses: unique(&fields.items("snatAddresses"), host_address),
        tunnel_peers: tunnel_peers(fields),
        gateway: gateway(fields),
        ..NetworkSpec::default()
    };
    tunnel_sources(fields, &mut network);
    let policy = &mut network.policy;
    fields.set("routersAsClients", &mut policy.serve_routers, Field::boolean);
    let oversized = [("fragment", true), ("answer", false)];
    fields.set("oversized", &mut policy.fragment_ipv4, |f| f.one_of(&oversized));
    let unknown = [("reset", true), ("drop", false)];
    fields.set("unknownFlows", &mut policy.reset_unknown_flows, |f| f.one_of(&unknown));
    network
}

fn tunnel_peers(parent: &Fields<'_>) -> Vec<IpAddr> {
    let Some(list) = parent.get("tunnelPeers") else { return Vec::new() };
    let items = list.list();
    if items.len() > TUNNEL_PEERS_MAX {
        list.error(
            format_args!("the list has {} gateways", items.len()),
            format!("at most {TUNNEL_PEERS_MAX}"),
        );
    }
    unique(&items, host_address)
}

fn cores(list: &Field<'_>) -> Vec<u16> {
    let items = list.list();
    let cores = unique(&items, |f| f.integer(0..=1023));
    let is_list = matches!(list.node.value, Value::Sequence(_));
    if is_list && !(1..=WORKERS_MAX).contains(&items.len()) {
        list.error(
            format_args!("the list has {} cores", items.len()),
            format!("1 to {WORKERS_MAX} core numbers"),
        );
    }
    cores
}

fn interfaces(parent: &Fields<'_>) -> Vec<Interface> {
    let Some(list) = parent.get("interfaces") else { return Vec::new() };
    let items = list.list();
    if items.len() > INTERFACES_MAX {
        list.error(
            format_args!("the list has {} interfaces", items.len()),
            format!("at most {INTERFACES_MAX}"),
        );
    }
    let mut names = BTreeMap::new();
    let mut devices = BTreeMap::new();
    parent.sections("interfaces", |fields| {
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
        let mac = fields.read("mac", |f| f.parsed(text::mac, text::MAC)).map(MacAddr);
        let mtu_field = fields.get("mtu");
        let mtu = mtu_field.as_ref().and_then(|f| f.integer(576..=9216));
        if let (Some(field), Some(mtu)) = (&mtu_field, mtu)
            && mtu < 1280
            && addresses.iter().any(|a| a.addr().is_ipv6())
        {
            field.error(
                format_args!("{mtu} is too small for IPv6 (RFC 8200)"),
                "1280 to 9216 with IPv6 addresses",
            );
        }
        let vlan = fields.read("vlan", |f| f.integer(1..=4094));
        Some(Interface { name: name?, device: device?, addresses, mac, mtu: mtu.unwrap_or(1500), vlan })
    })
}

const DIRECTORY: &str = "an absolute path of a directory on tmpfs, or \"\"";

const DEVICE: &str =
    "a DPDK virtual device such as net_af_packet,iface=eth1, or a PCI address such as 0000:3b:00.0";

fn is_interface_name(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=32).contains(&name.len()) && name.chars().all(legal)
}

fn routes(parent: &Fields<'_>) -> Vec<RouteSpec> {
    let mut seen = BTreeMap::new();
    parent.sections("routes", |fields| {
        let to = fields.required("to", text::CIDR).and_then(|f| {
            let to = f.network()?;
            once(&mut seen, to, &f).then_some(to)
        });
        let via = fields.required("via", "the address of an on-link router").and_then(|f| host_address(&f));
        Some(RouteSpec { to: to?, via: via? })
    })
}

fn neighbors(parent: &Fields<'_>) -> Vec<NeighborSpec> {
    let mut seen = BTreeMap::new();
    parent.sections("neighbors", |fields| {
        let ip = fields.required("ip", text::IP).and_then(|f| {
            let ip = host_address(&f)?;
            once(&mut seen, ip, &f).then_some(ip)
        });
        let mac = fields.required("mac", text::MAC).and_then(|f| f.parsed(text::mac, text::MAC));
        Some(NeighborSpec { ip: ip?, mac: MacAddr(mac?) })
    })
}

fn gateway(parent: &Fields<'_>) -> GatewaySpec {
    let mut gateway = GatewaySpec::default();
    parent.section("gateway", |fields| {
        gateway.prefixes = unique(&fields.items("prefixes"), backend_network);
        let forward = [("refuse", false), ("routes", true)];
        fields.set("forward", &mut gateway.forward, |f| f.one_of(&forward));
        gateway.masquerade = unique(&fields.items("masquerade"), backend_network);
    });
    gateway
}

/// A network whose hosts are backends.
fn backend_network(field: &Field<'_>) -> Option<IpNet> {
    let net = field.network()?;
    let (first, last) = (net.network(), net.broadcast());
    let unusable = |ip: IpAddr| {
        ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
    };
    if net.prefix_len() == 0 || unusable(first) || unusable(last) {
        field
            .error(format_args!("{net} cannot be the network of backends"), "a network of unicast addresses");
        return None;
    }
    Some(net)
}

fn tunnel_sources(parent: &Fields<'_>, network: &mut NetworkSpec<Interface>) {
    for field in parent.items("tunnelSource") {
        let Some(prefix) = tunnel_prefix(&field) else { continue };
        let is_v4 = prefix.net().addr().is_ipv4();
        let of_family = if is_v4 { &mut network.tunnel_source_v4 } else { &mut network.tunnel_source_v6 };
        if let Some(taken) = of_family.replace(prefix) {
            field.error(
                format_args!("{taken} is already the entry of this address family"),
                "one address or prefix of each family",
            );
        }
    }
}

const TUNNEL_PREFIX: &str = "an IPv4 prefix of /24 to /32, or an IPv6 prefix of /48 to /128";

/// An address, or a prefix from which addresses are chosen.
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
            format_args!("{ip} cannot be the address of a host on the network"),
            "a unicast address, not loopback",
        );
        return None;
    }
    Some(ip)
}

/// An own address with its prefix, such as `192.0.2.2/24`, which must not be the network's own address.
fn own_address(field: &Field<'_>) -> Option<IpNet> {
    let net = field
        .parsed(text::cidr, "an address with its prefix length such as 192.0.2.2/24 or 2001:db8::2/64")?;
    let plain = text::unmapped(net);
    if plain != net {
        field.error(format_args!("{net} is an IPv4-mapped IPv6 address"), plain.to_string());
        return None;
    }
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

/// The items that `read` accepts, each value once. A repetition is an error that names the first item.
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

/// Records the value of `field`. Returns false, and reports an error, if another field has the same value.
pub(super) fn once<T: Ord + std::fmt::Display>(
    seen: &mut BTreeMap<T, String>,
    value: T,
    field: &Field<'_>,
) -> bool {
    if let Some(first) = seen.get(&value) {
        field.error(format_args!("{value} is already the value of {first}"), "each value once");
        return false;
    }
    seen.insert(value, field.path.clone());
    true
}
