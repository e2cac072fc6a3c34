//! The kernel's view of the network namespace: links, addresses, routes and neighbours, through rtnetlink.
//!
//! Tests of the checks state a [`Network`]; the end-to-end tests read real ones.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Prop};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use tidegate_host::rtnetlink::Connection;
use tidegate_wire::{Addr, MacAddr};

/// The kernel's main routing table.
const MAIN_TABLE: u8 = 254;

/// A network device of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Its other names.
    pub(crate) other_names: Vec<String>,
    pub(crate) mtu: u32,
    /// Whether it is set up, whatever its carrier.
    pub(crate) is_up: bool,
    /// Whether its cable is connected, and the other side is up.
    pub(crate) has_carrier: bool,
    /// The link on the other side or below, if it is in this namespace.
    pub(crate) peer: Option<u32>,
    pub(crate) is_loopback: bool,
}

/// A next hop or neighbour, with its link address if the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbor {
    pub(crate) ip: IpAddr,
    pub(crate) link: u32,
    pub(crate) mac: Option<String>,
    /// The neighbour did not answer.
    pub(crate) has_failed: bool,
}

/// What the kernel knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) links: Vec<Link>,
    /// Addresses with their prefix, and the index of the link.
    pub(crate) addresses: Vec<(u32, IpNet)>,
    /// The routers of the default routes, and the index of the link.
    pub(crate) default_routers: Vec<(u32, IpAddr)>,
    pub(crate) neighbors: Vec<Neighbor>,
}

impl Network {
    /// Reads the network namespace of this thread.
    pub(crate) fn read() -> io::Result<Self> {
        let mut kernel = Connection::open()?;
        let mut dump = |message| kernel.request(message, NLM_F_DUMP);
        let mut network = Self::default();
        for answer in dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                network.links.push(link(&message));
            }
        }
        for answer in dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
            if let RouteNetlinkMessage::NewAddress(message) = answer {
                network.addresses.extend(address(&message));
            }
        }
        for answer in dump(RouteNetlinkMessage::GetRoute(RouteMessage::default()))? {
            if let RouteNetlinkMessage::NewRoute(message) = answer {
                network.default_routers.extend(default_router(&message));
            }
        }
        network.neighbors = neighbors(&mut kernel)?;
        Ok(network)
    }

    /// The link with this name, or with this other name.
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        let is_named = |link: &&Link| link.name == name || link.other_names.iter().any(|other| other == name);
        self.links.iter().find(is_named)
    }

    /// The addresses of a link, except those that the kernel derives from its MAC address.
    pub(crate) fn addresses_of(&self, link: &Link) -> impl Iterator<Item = IpNet> {
        let own = self.addresses.iter().filter(move |(index, _)| *index == link.index);
        own.map(|(_, net)| *net).filter(|net| !Addr::from(net.addr()).is_link_local())
    }
}

/// The neighbours that the kernel knows now.
pub(crate) fn neighbors(kernel: &mut Connection) -> io::Result<Vec<Neighbor>> {
    let answers =
        kernel.request(RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()), NLM_F_DUMP)?;
    let known = answers.into_iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(message) => neighbor(&message),
        _ => None,
    });
    Ok(known.collect())
}

fn link(message: &LinkMessage) -> Link {
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        other_names: Vec::new(),
        mtu: 0,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp),
        peer: None,
        is_loopback: flags.contains(LinkFlags::Loopback),
    };
    let mut is_elsewhere = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(peer) => link.peer = Some(*peer).filter(|peer| *peer != 0),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::PropList(names) => {
                let names = names.iter().filter_map(|prop| match prop {
                    Prop::AltIfName(name) => Some(name.clone()),
                    _ => None,
                });
                link.other_names.extend(names);
            }
            _ => {}
        }
    }
    if is_elsewhere {
        link.peer = None;
    }
    link
}

fn address(message: &AddressMessage) -> Option<(u32, IpNet)> {
    let find = |is: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(is);
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let ip = local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })?;
    Some((message.header.index, IpNet::new(ip, message.header.prefix_len).ok()?))
}

fn default_router(message: &RouteMessage) -> Option<(u32, IpAddr)> {
    let header = &message.header;
    if header.destination_prefix_length != 0
        || header.table != MAIN_TABLE
        || header.kind != RouteType::Unicast
    {
        return None;
    }
    let (mut link, mut router) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => router = Some(IpAddr::V4(*ip)),
            RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => router = Some(IpAddr::V6(*ip)),
            _ => {}
        }
    }
    Some((link?, router?))
}

fn neighbor(message: &NeighbourMessage) -> Option<Neighbor> {
    let ip = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => Some(MacAddr(bytes.as_slice().try_into().ok()?)),
        _ => None,
    });
    let state = message.header.state;
    // A link without ARP gives each neighbour its own link address (NOARP).
    let is_unknown = matches!(
        state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::Noarp | NeighbourState::None
    );
    let has_failed = state == NeighbourState::Failed;
    Some(Neighbor {
        ip,
        link: message.header.ifindex,
        mac: mac.filter(|_| !is_unknown).map(|mac| mac.to_string()),
        has_failed,
    })
}
