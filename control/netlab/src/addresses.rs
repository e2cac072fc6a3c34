//! The addresses of the lab, from documentation prefixes only (RFC 5737, RFC 3849).
//!
//! Two prefixes share one link: clients are in [`CLIENT_PREFIX`], servers in [`SERVER_PREFIX`], and the gateway in
//! both. A server's reply therefore reaches the client only on the path of its mode: directly over the link if the
//! server answers with the VIP, through the gateway if it answers with its own address. VIPs are either routed to the
//! gateway ([`ROUTED_VIPS`]) or on the clients' own link ([`ON_LINK_VIPS`]), where the gateway answers ARP and ND.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address family of a client's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// The clients' prefixes, by family.
pub const CLIENT_PREFIX: [&str; 2] = ["198.51.100.0/24", "2001:db8:c::/64"];
/// The servers' prefixes, by family.
pub const SERVER_PREFIX: [&str; 2] = ["192.0.2.0/24", "2001:db8::/64"];
/// VIPs that the client reaches by a route to the gateway's address.
pub const ROUTED_VIPS: [&str; 2] = ["203.0.113.0/24", "2001:db8:1::/112"];
/// VIPs inside the clients' own prefix. Only the gateway answers ARP and neighbor solicitations for them.
pub const ON_LINK_VIPS: [&str; 2] = ["198.51.100.208/28", "2001:db8:c::d0/124"];

/// The gateway's Ethernet address.
pub const GATEWAY_MAC: &str = "02:00:00:00:00:02";
/// The client's Ethernet address.
pub const CLIENT_MAC: &str = "02:00:00:00:00:0a";

/// The Ethernet address of server `n`.
#[must_use]
pub fn server_mac(n: u8) -> String {
    format!("02:00:00:00:01:{n:02x}")
}

/// The gateway's addresses on the clients' side, by family.
pub const GATEWAY_FOR_CLIENTS: [&str; 2] = ["198.51.100.2", "2001:db8:c::2"];
/// The gateway's addresses on the servers' side, by family: the servers' default route, and the source of tunnels.
pub const GATEWAY_FOR_SERVERS: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The client address that a server sees in `fullnat`, by family.
pub const SNAT: [&str; 2] = ["192.0.2.3", "2001:db8::3"];

/// The client's address number `n` (0..16) of `family`.
#[must_use]
pub fn client(family: Family, n: u8) -> IpAddr {
    assert!(n < CLIENT_ADDRESSES, "the client has {CLIENT_ADDRESSES} addresses");
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, 10 + n).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 0x10 + u16::from(n)).into(),
    }
}

/// The number of the client's addresses of each family.
pub const CLIENT_ADDRESSES: u8 = 16;

/// The number of servers that have addresses.
pub const SERVERS_MAX: u8 = 250;

/// The address of server `n` (1..=250) of `family`.
#[must_use]
pub fn server(family: Family, n: u8) -> IpAddr {
    assert!((1..=SERVERS_MAX).contains(&n), "servers are numbered from 1 to {SERVERS_MAX}");
    match family {
        // The numbers after the last address of the prefix use the addresses behind those of the gateway.
        Family::V4 => Ipv4Addr::new(192, 0, 2, if n < 155 { 100 + n } else { n - 151 }).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x100 + u16::from(n)).into(),
    }
}

/// The routed VIP number `n` (1..=99) of `family`.
#[must_use]
pub fn routed_vip(family: Family, n: u8) -> IpAddr {
    assert!((1..100).contains(&n), "routed VIPs are numbered from 1 to 99");
    match family {
        Family::V4 => Ipv4Addr::new(203, 0, 113, n).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(n)).into(),
    }
}

/// The VIP number `n` (1..=14) of `family` on the clients' own link.
#[must_use]
pub fn on_link_vip(family: Family, n: u8) -> IpAddr {
    assert!((1..15).contains(&n), "on-link VIPs are numbered from 1 to 14");
    match family {
        Family::V4 => Ipv4Addr::new(198, 51, 100, 208 + n).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, 0xd0 + u16::from(n)).into(),
    }
}

/// HTTP on the servers, at the service's own port.
pub const HTTP_PORT: u16 = 80;
/// HTTP on the servers' second port, for services whose targetPort differs from their port.
pub const HTTP_TARGET_PORT: u16 = 8080;
/// `tcp-echo` on the servers.
pub const TCP_ECHO_PORT: u16 = 7000;
/// `udp-echo` on the servers.
pub const UDP_ECHO_PORT: u16 = 7001;
/// nginx on the servers, with the PROXY protocol.
pub const PROXY_PORT: u16 = 8090;
/// The upstream server of nginx's path `/echo`, on the servers' loopback. Tests start it.
pub const UPSTREAM_PORT: u16 = 7003;
/// The counts of decapsulation, on the servers' loopback.
pub const DECAP_PORT: u16 = 7002;
/// The SCTP port of Services, and of the servers at the VIPs.
pub const SCTP_PORT: u16 = 7005;
/// The port of the endpoints in NAT modes. It differs, so that they change the port and with it the CRC32c.
pub const SCTP_TARGET_PORT: u16 = 7006;
/// iperf3 on the servers.
pub const IPERF_PORT: u16 = 5201;
