//! Lists, adds and removes routes of one table by rtnetlink.
//!
//! Written by hand because the `rtnetlink` crate needs an async runtime, and the announcer is a plain thread. The
//! message types come from `netlink-packet-route`.

use std::io;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use tidegate_model::config::KernelRoutes;

/// A connection to the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The prefixes of the routes in the table that have our protocol number.
    pub(crate) fn list(&mut self, config: KernelRoutes) -> io::Result<Vec<IpNet>> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            self.send(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)?;
            self.read(|route| {
                if let RouteNetlinkMessage::NewRoute(route) = route {
                    found.extend(prefix(&route).filter(|_| is_ours(&route, config)));
                }
            })?;
        }
        Ok(found)
    }

    /// Adds a blackhole route.
    pub(crate) fn add(&mut self, config: KernelRoutes, net: IpNet) -> io::Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.send(RouteNetlinkMessage::NewRoute(route(config, net)), flags)?;
        self.read(|_| {})
    }

    /// Removes a route that [`Self::add`] added.
    pub(crate) fn remove(&mut self, config: KernelRoutes, net: IpNet) -> io::Result<()> {
        self.send(RouteNetlinkMessage::DelRoute(route(config, net)), NLM_F_ACK)?;
        self.read(|_| {})
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }

    /// Reads all replies to the last request.
    fn read(&mut self, mut each: impl FnMut(RouteNetlinkMessage)) -> io::Result<()> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages are aligned to four bytes.
                let length = usize::try_from(message.header.length).unwrap_or(0).next_multiple_of(4);
                rest = rest.get(length.max(4)..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => each(answer),
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return if error.code.is_none() { Ok(()) } else { Err(error.to_io()) };
                    }
                    _ => {}
                }
            }
        }
    }
}

fn route(config: KernelRoutes, net: IpNet) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: match net {
            IpNet::V4(_) => AddressFamily::Inet,
            IpNet::V6(_) => AddressFamily::Inet6,
        },
        destination_prefix_length: net.prefix_len(),
        // A larger number fits only into the attribute.
        table: u8::try_from(config.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC),
        protocol: RouteProtocol::from(config.protocol),
        scope: RouteScope::Universe,
        kind: RouteType::BlackHole,
        ..RouteHeader::default()
    };
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::from(net.network())),
        RouteAttribute::Table(config.table),
    ];
    message
}

fn is_ours(route: &RouteMessage, config: KernelRoutes) -> bool {
    let table = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(u32::from(route.header.table)) == config.table
        && u8::from(route.header.protocol) == config.protocol
        && route.header.kind == RouteType::BlackHole
}

fn prefix(route: &RouteMessage) -> Option<IpNet> {
    let address = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(ip)) => Some((*ip).into()),
        RouteAttribute::Destination(RouteAddress::Inet6(ip)) => Some((*ip).into()),
        _ => None,
    })?;
    IpNet::new(address, route.header.destination_prefix_length).ok()
}
