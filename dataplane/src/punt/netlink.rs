//! The alias, addresses, routes and permanent neighbours of a tap, set through rtnetlink.
//!
//! Called at the start and with a new forwarding state, never per packet. Addresses carry [`PROTOCOL`], by which the
//! next process recognizes addresses that this one left on the tap.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressProtocol, AddressScope,
};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tidegate_host::rtnetlink::Connection;
use tidegate_wire::MacAddr;

/// Metric of routes through a tap. It is higher than the metrics that distributions use, so that the host's own routes
/// take precedence (its management network may have the default route).
pub const ROUTE_METRIC: u32 = 4096;

/// The protocol number of addresses added by a gateway (`IFA_PROTO`, Linux 5.18).
const PROTOCOL: AddressProtocol = AddressProtocol::Other(179);

/// A netlink connection for addresses and routes. Every request may fail with the error of the kernel.
#[derive(Debug)]
pub struct Netlink(Connection);

impl Netlink {
    /// Opens a connection in the network namespace of this thread.
    pub fn open() -> io::Result<Self> {
        Connection::open().map(Self)
    }

    /// Adds an address with its prefix, usable at once. Duplicate address detection would delay an IPv6 address by a
    /// second or two, so it is disabled: the operator has assigned the address to the gateway.
    ///
    /// # Errors
    /// The error of the kernel, except "exists".
    pub fn add_address(&mut self, if_index: u32, net: IpNet) -> io::Result<()> {
        self.request(address(if_index, net), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds an address if it is missing. Returns whether it was missing. If it exists, the kernel sends no
    /// notification.
    pub fn add_missing_address(&mut self, if_index: u32, net: IpNet) -> io::Result<bool> {
        was_missing(self.request(address(if_index, net), NLM_F_CREATE | NLM_F_EXCL))
    }

    /// Removes and returns the addresses of an interface that a gateway added, except these.
    pub fn remove_addresses_except(&mut self, if_index: u32, kept: &[IpNet]) -> io::Result<Vec<IpNet>> {
        let all = self.0.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        let mut removed = Vec::new();
        for message in all {
            let RouteNetlinkMessage::NewAddress(message) = message else { continue };
            let is_ours = message.attributes.contains(&AddressAttribute::Protocol(PROTOCOL));
            let ip = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
            let net = ip.and_then(|ip| IpNet::new(ip, message.header.prefix_len).ok());
            let net = net.filter(|net| is_ours && message.header.index == if_index && !kept.contains(net));
            if let Some(net) = net {
                self.request(RouteNetlinkMessage::DelAddress(message), 0)?;
                removed.push(net);
            }
        }
        Ok(removed)
    }

    /// Sets the alias of an interface: a text that stays with it when it is renamed.
    ///
    /// # Errors
    /// The error of the kernel, for example if the text is longer than 255 bytes.
    pub fn set_alias(&mut self, if_index: u32, alias: &str) -> io::Result<()> {
        let mut message = link(if_index);
        message.attributes.push(LinkAttribute::IfAlias(alias.to_owned()));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// The taps with this alias, by index and name.
    pub fn taps_with_alias(&mut self, alias: &str) -> io::Result<Vec<(u32, String)>> {
        let all = self.0.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        let is_tap = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(info) if info.contains(&LinkInfo::Kind(InfoKind::Tun)));
        let found = all.into_iter().filter_map(|message| {
            let RouteNetlinkMessage::NewLink(message) = message else { return None };
            let attributes = &message.attributes;
            let has_alias = attributes.contains(&LinkAttribute::IfAlias(alias.to_owned()));
            let name = attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            });
            name.filter(|_| has_alias && attributes.iter().any(is_tap))
                .map(|name| (message.header.index, name))
        });
        Ok(found.collect())
    }

    /// Removes an interface.
    pub fn remove_link(&mut self, if_index: u32) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelLink(link(if_index)), 0)
    }

    /// Adds a route like [`Self::add_route`] unless a route to this prefix with [`ROUTE_METRIC`] exists. Returns
    /// whether it was added.
    pub fn add_missing_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<bool> {
        let message = RouteNetlinkMessage::NewRoute(route(if_index, to, via));
        was_missing(self.request(message, NLM_F_CREATE | NLM_F_EXCL))
    }

    /// Adds a route with a next hop of either family on this interface, with [`ROUTE_METRIC`].
    pub fn add_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewRoute(route(if_index, to, via));
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes a route that [`Self::add_route`] added.
    pub fn remove_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRoute(route(if_index, to, via)), 0)
    }

    /// Sets a permanent link address for a neighbour on this interface.
    pub fn put_neighbor(&mut self, if_index: u32, address: IpAddr, mac: MacAddr) -> io::Result<()> {
        let mut message = neighbor(if_index, address);
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.into()));
        self.request(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Removes a neighbour.
    pub fn remove_neighbor(&mut self, if_index: u32, address: IpAddr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelNeighbour(neighbor(if_index, address)), 0)
    }

    /// Sends a request for a change.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.0.request(message, flags).map(drop)
    }
}

/// A message about an interface.
fn link(if_index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = if_index;
    message
}

/// A neighbour on an interface.
fn neighbor(if_index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header =
        NeighbourHeader { family: family(address), ifindex: if_index, ..NeighbourHeader::default() };
    message.attributes = vec![NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    })];
    message
}

/// An address with its prefix, usable at once.
fn address(if_index: u32, net: IpNet) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(net.addr());
    message.header.prefix_len = net.prefix_len();
    message.header.scope = AddressScope::Universe;
    message.header.index = if_index;
    message.attributes = vec![
        AddressAttribute::Local(net.addr()),
        AddressAttribute::Address(net.addr()),
        AddressAttribute::Flags(AddressFlags::Nodad),
        AddressAttribute::Protocol(PROTOCOL),
    ];
    RouteNetlinkMessage::NewAddress(message)
}

/// Whether something was added; false if it existed.
fn was_missing(added: io::Result<()>) -> io::Result<bool> {
    match added {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A route with a next hop of either family on an interface, with [`ROUTE_METRIC`].
fn route(if_index: u32, to: IpNet, via: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family(to.addr()),
        destination_prefix_length: to.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Universe,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    if to.prefix_len() > 0 {
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(to.network())));
    }
    let gateway = match (to.addr(), via) {
        (IpAddr::V4(_), IpAddr::V6(via)) => RouteAttribute::Via(RouteVia::Inet6(via)),
        (_, via) => RouteAttribute::Gateway(RouteAddress::from(via)),
    };
    message.attributes.extend([
        gateway,
        RouteAttribute::Oif(if_index),
        RouteAttribute::Priority(ROUTE_METRIC),
    ]);
    message
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
