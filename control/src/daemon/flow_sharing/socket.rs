//! The UDP socket of the host for the datagrams between gateways.
//!
//! Invariant: nothing blocks on a full socket buffer. A datagram that does not fit is resent later, like a lost one.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidegate_sharing::limits::DATAGRAM_MAX;

/// The size of the socket buffer in each direction, in bytes.
const SOCKET_BUFFER: usize = 4 << 20;

/// The open socket.
pub(super) struct FlowSocket {
    socket: UdpSocket,
    is_v6: bool,
}

impl FlowSocket {
    /// Opens the socket at `listen`.
    pub(super) fn open(listen: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { socket: open(listen)?, is_v6: listen.is_ipv6() })
    }

    /// Waits for a datagram for at most `wait`, which must be less than a second.
    pub(super) fn wait(&self, wait: Duration) {
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        // A signal or an error only makes the iteration shorter.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
    }

    /// Receives waiting datagrams, at most `max`. Returns whether there may be more. An error is written to `trouble`.
    pub(super) fn receive(
        &self,
        max: usize,
        trouble: &mut Option<String>,
        mut receive: impl FnMut(SocketAddr, &mut [u8], &mut Option<String>),
    ) -> bool {
        let mut buffer = [0; DATAGRAM_MAX + 1];
        for _ in 0..max {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    receive(from, &mut buffer[..length], trouble);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // An ICMP error about an earlier datagram: the peer's process is not running.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    *trouble = Some(format!("cannot receive: {error}"));
                    return false;
                }
            }
        }
        true
    }

    /// Sends a datagram. An error is written to `trouble`.
    pub(super) fn send(&self, to: SocketAddr, datagram: &[u8], trouble: &mut Option<String>) {
        let to = match to.ip() {
            IpAddr::V4(ip) if self.is_v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        match self.socket.send_to(datagram, to) {
            // The socket buffer is full: the datagram is resent later, like a lost one.
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
            Err(error) => *trouble = Some(format!("cannot send to {to}: {error}")),
        }
    }
}

/// Whether an address belongs to this host, so that the kernel allows binding it.
pub(super) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn open(listen: SocketAddr) -> std::io::Result<UdpSocket> {
    let domain = socket2::Domain::for_address(listen);
    let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, Some(socket2::Protocol::UDP))?;
    if listen.is_ipv6() {
        socket.set_only_v6(!listen.ip().is_unspecified())?;
    }
    // The kernel may allow less.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&listen.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
