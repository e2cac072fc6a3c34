//! A UDP server that reports its own name and the client's address: `NAME client=ADDRESS:PORT TEXT` for each datagram
//! `TEXT`.
//!
//! It has one socket for each address, a VIP on the loopback as well as the server's own, so that the answer leaves
//! from the address that received the datagram.

use anyhow::{Context, Result, ensure};
use std::net::{SocketAddr, UdpSocket};
use std::thread;

/// Serves `addresses` until a socket fails.
///
/// # Errors
/// When an address cannot be bound, or a socket fails.
pub fn serve(name: &str, addresses: &[SocketAddr]) -> Result<()> {
    ensure!(!addresses.is_empty(), "udp-echo: no address to bind");
    let sockets = addresses
        .iter()
        .map(|address| UdpSocket::bind(address).with_context(|| format!("udp-echo: cannot bind {address}")))
        .collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            sockets.iter().map(|socket| scope.spawn(move || answer(name, socket))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("answer does not panic"))
    })
}

fn answer(name: &str, socket: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 65_536];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // An ICMP error about an earlier answer concerns only that client.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error).context("udp-echo: cannot receive"),
        };
        let mut reply = format!("{name} client={from} ").into_bytes();
        reply.extend_from_slice(&buffer[..length]);
        // A reply that cannot be sent is lost, like any datagram.
        let _ = socket.send_to(&reply, from);
    }
}
