//! The PROXY protocol header, which passes the client's address to a backend: version 1 in text, version 2 in binary
//! (haproxy.org, `proxy-protocol.txt`, of 2020/03/05). The TCP option TOA serves the same purpose ("TCP option
//! address", the layout that the kernel modules of LVS FULLNAT and DPVS read) and is written here too.
//!
//! The header of a connection is a pure function of its endpoints, so it can be written again for a retransmission.

use core::fmt::{self, Write};
use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::headers::proto;
use super::rewrite::Endpoint;
use super::tcp_options::kind;

/// Bytes of the longest header: version 2 for IPv6 with all TLVs. The longest header of version 1 has 104.
pub const LEN_MAX: usize = 107;

/// A header as it is sent.
pub type ProxyHeader = ArrayVec<u8, LEN_MAX>;

named! {
    /// The version of the PROXY protocol, or the TCP option instead.
    #[derive(PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum ProxyVersion {
        /// One line of text, for TCP only.
        V1 = 1 => "v1",
        /// Binary, for TCP and UDP.
        V2 = 2 => "v2",
        /// No header: a TCP option in the client's first segments contains the client's address and port.
        Toa = 3 => "toa",
    }
}

impl ProxyVersion {
    /// The version with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::V1, Self::V2, Self::Toa].into_iter().find(|version| *version as u8 == number)
    }
}

/// The first 12 bytes of a header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of the option TOA for IPv4 and IPv6, both multiples of 4.
const TOA_LEN_V4: u8 = 8;
const TOA_LEN_V6: u8 = 20;

/// Version 2, command PROXY: the addresses of the connection follow.
const V2_PROXY: u8 = 0x21;

/// Appends text to a header. The longest text fits.
struct Text<'a>(&'a mut ProxyHeader);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_extend_from_slice(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// The header of a connection from `client` to `vip` by the protocol with this IP number. Both endpoints have the same
/// family. A version 1 header names TCP for any protocol. For TOA, the result is the option.
#[must_use]
pub fn proxy_header(version: ProxyVersion, protocol: u8, client: Endpoint, vip: Endpoint) -> ProxyHeader {
    let mut header = ProxyHeader::new();
    match version {
        ProxyVersion::V1 => {
            let family = if client.addr.is_v4() { "TCP4" } else { "TCP6" };
            let written = write!(
                Text(&mut header),
                "PROXY {family} {} {} {} {}\r\n",
                client.addr,
                vip.addr,
                client.port,
                vip.port
            );
            debug_assert!(written.is_ok(), "the longest line fits");
        }
        ProxyVersion::V2 => write_v2(&mut header, protocol, client, vip),
        ProxyVersion::Toa => write_toa(&mut header, client),
    }
    header
}

/// The option: kind, length, port and address of the client, both in network order.
fn write_toa(header: &mut ProxyHeader, client: Endpoint) {
    let port = client.port.to_be_bytes();
    let len = if client.addr.is_v4() { TOA_LEN_V4 } else { TOA_LEN_V6 };
    let mut put = |bytes: &[u8]| {
        let fits = header.try_extend_from_slice(bytes);
        debug_assert!(fits.is_ok(), "the longest option fits");
    };
    put(&[kind::TOA, len]);
    put(&port);
    match client.addr.ip() {
        IpAddr::V4(addr) => put(&addr.octets()),
        IpAddr::V6(addr) => put(&addr.octets()),
    }
}

fn write_v2(header: &mut ProxyHeader, protocol: u8, client: Endpoint, vip: Endpoint) {
    let mut put = |bytes: &[u8]| {
        let fits = header.try_extend_from_slice(bytes);
        debug_assert!(fits.is_ok(), "the longest header fits");
    };
    let transport = if protocol == proto::UDP { 2 } else { 1 };
    put(&SIGNATURE);
    if client.addr.is_v4() {
        put(&[V2_PROXY, 0x10 | transport, 0, 12]);
        put(&client.addr.v4_bytes());
        put(&vip.addr.v4_bytes());
    } else {
        put(&[V2_PROXY, 0x20 | transport, 0, 36]);
        put(client.addr.bytes());
        put(vip.addr.bytes());
    }
    put(&client.port.to_be_bytes());
    put(&vip.port.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn end(text: &str) -> Endpoint {
        let at: SocketAddr = text.parse().unwrap();
        Endpoint { addr: at.ip().into(), port: at.port() }
    }

    #[test]
    fn version_1_is_the_line_of_the_specification() {
        let header = |client, vip| proxy_header(ProxyVersion::V1, proto::TCP, end(client), end(vip));
        let line = header("192.0.2.202:12345", "10.0.42.7:7");
        assert_eq!(&line[..], b"PROXY TCP4 192.0.2.202 10.0.42.7 12345 7\r\n");
        let line = header("[2001:db8::7]:40000", "[2001:db8:1::5]:80");
        assert_eq!(&line[..], b"PROXY TCP6 2001:db8::7 2001:db8:1::5 40000 80\r\n");
    }

    #[test]
    fn the_longest_headers_fit() {
        let v6 = end("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
        assert_eq!(proxy_header(ProxyVersion::V1, proto::TCP, v6, v6).len(), 104);
        let v4 = end("255.255.255.255:65535");
        assert_eq!(proxy_header(ProxyVersion::V1, proto::TCP, v4, v4).len(), 56);
        assert_eq!(proxy_header(ProxyVersion::V2, proto::UDP, v6, v6).len(), 52);
    }

    #[test]
    fn version_2_has_the_bytes_of_the_specification() {
        let header = proxy_header(ProxyVersion::V2, proto::TCP, end("192.0.2.202:12345"), end("10.0.42.7:7"));
        let expected = [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0, 12, 192,
            0, 2, 202, 10, 0, 42, 7, 0x30, 0x39, 0, 7,
        ];
        assert_eq!(header[..], expected);
        let header =
            proxy_header(ProxyVersion::V2, proto::UDP, end("[2001:db8::7]:40000"), end("[2001:db8:1::5]:53"));
        assert_eq!((header[12..16].to_vec(), header.len()), (vec![0x21, 0x22, 0, 36], 52));
        assert_eq!(header[16..18], [0x20, 0x01]);
        assert_eq!(header[48..], [0x9c, 0x40, 0, 53]);
    }
}
