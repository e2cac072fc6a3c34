//! An HTTP server that returns the body of each request. It is the upstream server of the proxies in tests of the PROXY
//! protocol and of the option TOA.
//!
//! It supports only what that needs: one request for each connection, and its `Content-Length`.

use anyhow::{Context, Result};
use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Write as _};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread;

/// Serves `port` until accepting fails.
///
/// # Errors
/// When the port is taken, or accepting fails.
pub fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .with_context(|| format!("http-echo: cannot bind port {port}"))?;
    loop {
        let (stream, _) = listener.accept().context("http-echo: cannot accept a connection")?;
        // If a connection breaks, the client notices it.
        let spawned = thread::Builder::new().stack_size(64 << 10).spawn(move || {
            let _ = answer(&stream);
        });
        spawned.context("http-echo: cannot start a thread for the connection")?;
    }
}

fn answer(stream: &TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    let mut writer = stream;
    writer.write_all(&[head.as_bytes(), &body].concat())
}
