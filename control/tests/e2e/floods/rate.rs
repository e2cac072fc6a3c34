//! New connections through `fullnat` at a steady rate, for much longer than the ports would last if each were used only
//! once.
//!
//! The client closes half of the connections, and the server the other half. The first half leave the client in
//! TIME-WAIT, the second half the server, which sees the gateway's ports. There are two backends, so each port is
//! reused after at most 52 seconds. The client has 16 addresses, so its own ports are sufficient: 2,500 connections a
//! second for the 60 seconds of TIME-WAIT are 9,400 for each address.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::{CLIENT_ADDRESSES, Family, client};
use tidegate_netlab::client::{TIMEOUT, connect_here};
use tidegate_netlab::modes::{ModePath, all_paths, manifests};

use super::setup::{long, seconds};
use crate::world::{World, alone};

/// The requested rate of new connections per second.
const RATE: u64 = 2_500;

#[test]
fn fullnat_refuses_no_new_connection() {
    let _machine = alone();
    let options = GatewayOptions {
        health_interval: Duration::from_secs(4),
        flow_entries: 1_048_576,
        ..GatewayOptions::default()
    };
    let world = World::start(2, options, &manifests(&[1, 2]));
    let time = seconds(15, 180);
    let paths: Vec<ModePath> = all_paths().into_iter().filter(|path| path.forwarding == "fullnat").collect();
    for path in &paths {
        world.wait_until_served(*path);
    }
    let v4 = paths.into_iter().find(|path| path.family == Family::V4).expect("both families");
    let (done, failed) = (AtomicU64::new(0), Mutex::new(BTreeMap::<String, u64>::new()));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..CLIENT_ADDRESSES {
            let (world, done, failed) = (&world, &done, &failed);
            scope.spawn(move || {
                world.lab.client().move_this_thread().expect("the client's namespace");
                let mut begun = 0_u64;
                while begin.elapsed() < time {
                    let due = begin.elapsed().as_secs_f64() * (RATE / u64::from(CLIENT_ADDRESSES)) as f64;
                    if begun as f64 > due {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    begun += 1;
                    let source = SocketAddr::new(client(v4.family, n), 0);
                    match request(source, v4, begun.is_multiple_of(2)) {
                        Ok(()) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let what = format!("{:#}", error).replace(&source.to_string(), "client");
                            *failed.lock().expect("no panics").entry(what).or_default() += 1;
                        }
                    }
                }
            });
        }
    });
    let (done, failed) = (done.into_inner(), failed.into_inner().expect("no panics"));
    println!(
        "fullnat: {done} connections in {:.0} s, {:.0} a second of {RATE} requested; failed: {failed:?}",
        begin.elapsed().as_secs_f64(),
        done as f64 / begin.elapsed().as_secs_f64(),
    );
    assert!(done > 0 && failed.is_empty(), "of {done} new connections failed: {failed:#?}");
    if long() {
        println!("{}", world.gateway().query(&["drops"]).expect("the daemon answers"));
    }
}

/// Sends one request to nginx on a new connection, which the server or the client closes.
fn request(source: SocketAddr, path: ModePath, server_closes: bool) -> anyhow::Result<()> {
    let stream = connect_here(TIMEOUT, source, path.http())?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let connection = if server_closes { "close" } else { "keep-alive" };
    (&stream)
        .write_all(format!("GET / HTTP/1.1\r\nHost: lab\r\nConnection: {connection}\r\n\r\n").as_bytes())?;
    let mut lines = BufReader::new(&stream).lines();
    let status = lines.next().context("closed without an answer")??;
    anyhow::ensure!(status.starts_with("HTTP/1.1 200"), "nginx answered `{status}`");
    // The body is one line, the last one. Then nginx closes the connection, or it waits for the next request and the
    // client closes it.
    while !lines.next().context("closed within the answer")??.starts_with("backend-") {}
    anyhow::ensure!(!server_closes || lines.next().is_none(), "more than the answer");
    Ok(())
}
