//! Addresses and routes of a tap, set through rtnetlink.
//!
//! Called at the start and with a new forwarding state, never per packet. They go when the tap goes.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::rtnetlink::Connection;

/// Metric of routes through a tap: above what distributions give theirs, so that none of the host's own routes is
/// taken away (its management network may have the default route).
pub const ROUTE_METRIC: u32 = 4096;

/// A connection to the kernel.
#[derive(Debug)]
pub struct Netlink(Connection);

impl Netlink {
    /// Opens one, in the network namespace of this thread.
    ///
    /// # Errors
    /// When the kernel has none.
    pub fn open() -> io::Result<Self> {
        Connection::open().map(Self)
    }

    /// Adds an address with its prefix, usable at once: duplicate address detection (which would hold an IPv6 address
    /// back for a second or two) is left out, the operator gave us the address.
    ///
    /// # Errors
    /// What the kernel says, but for "exists".
    pub fn add_address(&mut self, if_index: u32, net: IpNet) -> io::Result<()> {
        self.request(address(if_index, net), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds an address, if it is not there; whether it was not. One that is there stays without a word to those who
    /// listen for changes.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_missing_address(&mut self, if_index: u32, net: IpNet) -> io::Result<bool> {
        was_missing(self.request(address(if_index, net), NLM_F_CREATE | NLM_F_EXCL))
    }

    /// Adds a route as [`Self::add_route`] does, if there is none to this prefix with [`ROUTE_METRIC`]; whether there
    /// was none.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_missing_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<bool> {
        let message = RouteNetlinkMessage::NewRoute(route(if_index, to, via));
        was_missing(self.request(message, NLM_F_CREATE | NLM_F_EXCL))
    }

    /// Adds a route by a next hop on this interface, of either family, with [`ROUTE_METRIC`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn add_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<()> {
        let message = RouteNetlinkMessage::NewRoute(route(if_index, to, via));
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Takes away a route that [`Self::add_route`] added.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn remove_route(&mut self, if_index: u32, to: IpNet, via: IpAddr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRoute(route(if_index, to, via)), 0)
    }

    /// A request that is answered by an acknowledgement.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        match self.0.request(message, NLM_F_ACK | flags)? {
            None => Ok(()),
            Some(other) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("not an acknowledgement: {other:?}")))
            }
        }
    }
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
    ];
    RouteNetlinkMessage::NewAddress(message)
}

/// Whether something was added: not if it exists.
fn was_missing(added: io::Result<()>) -> io::Result<bool> {
    match added {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A route by a next hop on an interface, of either family, with [`ROUTE_METRIC`].
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
