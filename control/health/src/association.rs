//! Checks by SCTP: an INIT must be answered by an INIT ACK. An ABORT then ends the exchange.
//!
//! It uses a raw socket, so the host's kernel needs no SCTP. A server keeps no state for an INIT until the COOKIE ECHO
//! (RFC 9260 section 5.1.3), so a check creates no association there, and the application does not see the check.
//!
//! A kernel with SCTP may send its own ABORT to the INIT ACK. That has no effect on the result.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU16, Ordering};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tidegate_wire::proto;
use tidegate_wire::sctp::{self, Kind, chunk};
use tokio::net::UdpSocket;

/// The first local port. The kernel assigns none for raw sockets, so checks use consecutive ports from here on, and two
/// checks that run at the same time have different ports.
const PORT_MIN: u16 = 1 << 15;
/// Packets of a check are shorter, and the tags are at the beginning of the answer.
const ANSWER_MAX: usize = 2048;

/// The answer of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// INIT ACK.
    Accepted,
    /// ABORT.
    Refused,
}

/// A socket with the ports and the tag of one check.
#[derive(Debug)]
pub(crate) struct Init {
    /// A raw socket. It is used like a UDP socket: connect, send and receive are the same system calls.
    socket: UdpSocket,
    local: IpAddr,
    local_port: u16,
    port: u16,
    /// The tag that received packets must carry.
    tag: u32,
}

impl AsFd for Init {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Init {
    /// A check of this port from this address; from any address of the host if it is unspecified.
    ///
    /// # Errors
    /// If there is no socket: without the capability `NET_RAW`, or without a free descriptor.
    pub(crate) fn new(local: IpAddr, port: u16) -> io::Result<Self> {
        let domain = if local.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let kind = Type::RAW.nonblocking().cloexec();
        let socket = Socket::new(domain, kind, Some(Protocol::from(i32::from(proto::SCTP))))?;
        if !local.is_unspecified() {
            socket.bind(&SocketAddr::new(local, 0).into())?;
        }
        // The keys of a `RandomState` come from the system. 0 is no tag (RFC 9260 section 3.3.2).
        let tag = (RandomState::new().build_hasher().finish() as u32).max(1);
        static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
        let local_port = NEXT_PORT.fetch_add(1, Ordering::Relaxed) | PORT_MIN;
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(OwnedFd::from(socket)))?;
        Ok(Self { socket, local, local_port, port, tag })
    }

    /// An unspecified address of the family of `of`.
    pub(crate) fn any(of: IpAddr) -> IpAddr {
        if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
    }

    /// The local port.
    pub(crate) fn local_port(&self) -> u16 {
        self.local_port
    }

    /// Sends the INIT to this address and waits for the answer, without a time limit.
    ///
    /// # Errors
    /// An error of the socket, such as an ICMP error about the INIT.
    pub(crate) async fn send_init(&self, remote: IpAddr) -> io::Result<Reply> {
        // Connected, so that the kernel delivers only packets of this peer, and its ICMP errors.
        SockRef::from(&self.socket).connect(&SocketAddr::new(remote, 0).into())?;
        // A receive window, one stream in each direction, and a first sequence number (RFC 9260 section 3.3.2).
        let fields =
            [&self.tag.to_be_bytes()[..], &[0, 1, 0, 0, 0, 1, 0, 1], &self.tag.to_be_bytes()].concat();
        let init = self.packet(0, chunk::INIT, &fields);
        self.socket.send(&init).await?;
        loop {
            let mut bytes = [0; ANSWER_MAX];
            let len = self.socket.recv(&mut bytes).await?;
            let Some((kind, initiate)) = self.parse(&bytes[..len]) else { continue };
            match kind {
                Kind::InitAck => {
                    // If the ABORT is lost, nothing happens: the server keeps no association for the INIT.
                    let _ = self.socket.try_send(&self.packet(initiate, chunk::ABORT, &[]));
                    return Ok(Reply::Accepted);
                }
                Kind::End => return Ok(Reply::Refused),
                _ => {}
            }
        }
    }

    fn packet(&self, tag: u32, kind: u8, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut packet =
            [&self.local_port.to_be_bytes()[..], &self.port.to_be_bytes(), &tag.to_be_bytes()].concat();
        packet.extend([0; 4]);
        packet.extend([kind, 0]);
        packet.extend(len.to_be_bytes());
        packet.extend(value);
        let crc = sctp::crc32c(&packet);
        packet[8..12].copy_from_slice(&crc);
        packet
    }

    /// The chunk type and initiate tag of a received packet, if it is an intact answer to this check.
    fn parse(&self, received: &[u8]) -> Option<(Kind, u32)> {
        // IPv4 raw sockets also deliver the IP header (raw(7)); IPv6 raw sockets don't.
        let ip = if self.local.is_ipv4() { usize::from(received.first()? & 0xf) * 4 } else { 0 };
        let packet = received.get(ip..)?;
        let head: &[u8; sctp::HEADER_LEN] = packet.first_chunk()?;
        let word = |at: usize| Some(u32::from_be_bytes(*packet.get(at..)?.first_chunk()?));
        let ports = word(0)? == u32::from(self.port) << 16 | u32::from(self.local_port);
        if !ports || word(4)? != self.tag || head[8..12] != sctp::crc32c(packet) {
            return None;
        }
        let (kind, reflected) = sctp::kind(packet);
        (!reflected).then(|| (kind, word(sctp::HEADER_LEN + 4).unwrap_or(0)))
    }
}
