//! Lists, adds and removes routes of one table by rtnetlink.

use std::io;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tidegate_host::rtnetlink::Connection;
use tidegate_model::config::KernelRoutes;

/// The prefixes of the routes in the table that have our protocol number.
pub(crate) fn list(netlink: &mut Connection, config: KernelRoutes) -> io::Result<Vec<IpNet>> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        for route in netlink.request(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)? {
            if let RouteNetlinkMessage::NewRoute(route) = route {
                found.extend(prefix(&route).filter(|_| is_ours(&route, config)));
            }
        }
    }
    Ok(found)
}

/// Adds a blackhole route.
pub(crate) fn add(netlink: &mut Connection, config: KernelRoutes, net: IpNet) -> io::Result<()> {
    let message = RouteNetlinkMessage::NewRoute(route(config, net));
    netlink.request(message, NLM_F_CREATE | NLM_F_EXCL).map(drop)
}

/// Removes a route that [`add`] added.
pub(crate) fn remove(netlink: &mut Connection, config: KernelRoutes, net: IpNet) -> io::Result<()> {
    netlink.request(RouteNetlinkMessage::DelRoute(route(config, net)), 0).map(drop)
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
