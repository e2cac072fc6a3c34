//! Addresses on which the daemon listens.

use std::net::SocketAddr;

use crate::yaml::Field;

/// An address and port, or nothing for `""`. `None` if the value is neither.
pub(super) fn address(field: &Field<'_>) -> Option<Option<SocketAddr>> {
    let read = |t: &str| {
        if t.is_empty() {
            return Some(None);
        }
        t.parse().ok().filter(|a: &SocketAddr| a.port() != 0).map(Some)
    };
    field.parsed(read, "an address and port such as 127.0.0.1:9469 or [::]:9469, or \"\" for none")
}

/// Whether two listeners cannot both be bound.
pub(super) fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let same_address = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    // A socket at [::] accepts IPv4 connections, too.
    let serves_both = |one: SocketAddr| one.is_ipv6() && one.ip().is_unspecified();
    let same_family = a.is_ipv4() == b.is_ipv4() || serves_both(a) || serves_both(b);
    a.port() == b.port() && same_family && same_address
}
