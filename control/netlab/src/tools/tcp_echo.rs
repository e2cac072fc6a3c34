//! A TCP line server that reports its own name and the client's address, and then keeps the connection open.
//!
//! On accept it writes `NAME client=ADDRESS:PORT`. It returns each line that follows as `NAME LINE`, so a client can
//! check at any time that its connection still ends at the same backend. One thread serves all connections, so that
//! there can be tens of thousands.

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The buffer of a connection. Lines may be longer.
const LINE: usize = 128;

/// Serves `port` on every address of both families until accepting fails.
///
/// # Errors
/// When the port is taken, or accepting fails.
pub fn serve(name: &str, port: u16) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let v4 = listen((Ipv4Addr::UNSPECIFIED, port).into())?;
        let v6 = listen((Ipv6Addr::UNSPECIFIED, port).into())?;
        tokio::try_join!(accept(name, &v4), accept(name, &v6))?;
        Ok(())
    })
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // IPv6 only, so that IPv4 clients appear with their IPv4 addresses.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address)).with_context(|| format!("tcp-echo: cannot bind {address}"))?;
    socket.listen(4096)?;
    Ok(TcpListener::from_std(socket.into())?)
}

async fn accept(name: &str, listener: &TcpListener) -> Result<()> {
    loop {
        let (stream, client) = listener.accept().await.context("tcp-echo: cannot accept a connection")?;
        let name = name.to_owned();
        tokio::spawn(async move {
            // If a connection breaks, the client notices it.
            let _ = serve_connection(&name, stream, client).await;
        });
    }
}

async fn serve_connection(name: &str, stream: TcpStream, client: SocketAddr) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (reader, mut writer) = stream.into_split();
    writer.write_all(format!("{name} client={client}\n").as_bytes()).await?;
    let mut lines = BufReader::with_capacity(LINE, reader).lines();
    while let Some(line) = lines.next_line().await? {
        writer.write_all(format!("{name} {line}\n").as_bytes()).await?;
    }
    Ok(())
}
