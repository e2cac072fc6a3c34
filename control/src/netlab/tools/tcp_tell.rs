//! A TCP line server that reports its own name and the client's address, and then keeps the connection.
//!
//! On accept it writes `NAME client=ADDRESS:PORT`. It returns each line that follows as `NAME LINE`. So a client can
//! check at any moment that its connection still ends at the same backend.

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Serves `port` on every address of both families until accepting fails.
///
/// # Errors
/// When the port is taken, or accepting fails.
pub fn serve(name: &str, port: u16) -> Result<()> {
    let v4 = listen((Ipv4Addr::UNSPECIFIED, port).into())?;
    let v6 = listen((Ipv6Addr::UNSPECIFIED, port).into())?;
    thread::scope(|scope| {
        let other = scope.spawn(|| accept(name, &v4));
        accept(name, &v6)?;
        other.join().expect("accept does not panic")
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Only its own family, so that IPv4 clients appear with their IPv4 addresses.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address)).with_context(|| format!("tcp-tell: {address}"))?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn accept(name: &str, listener: &TcpListener) -> Result<()> {
    loop {
        let (stream, client) = listener.accept().context("tcp-tell: accepting")?;
        let name = name.to_owned();
        // If a connection breaks, the client notices it.
        let spawned = thread::Builder::new().stack_size(64 << 10).spawn(move || {
            let _ = tell(&name, &stream, client);
        });
        spawned.context("tcp-tell: a thread for the connection")?;
    }
}

fn tell(name: &str, stream: &TcpStream, client: SocketAddr) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream;
    writer.write_all(format!("{name} client={client}\n").as_bytes())?;
    for line in BufReader::new(stream).lines() {
        writer.write_all(format!("{name} {}\n", line?).as_bytes())?;
    }
    Ok(())
}
