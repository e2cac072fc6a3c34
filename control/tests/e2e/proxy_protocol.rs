//! The PROXY protocol with nginx and HAProxy, over a wire that loses and reorders frames. Both log the client and the
//! VIP of each connection, and every byte arrives in both directions. Version 2 has its TLVs: HAProxy verifies the
//! checksum of each header, and logs an identifier for each connection.
//!
//! `make test` opens some hundred connections. `TIDEGATE_PROXY_CONNECTIONS` sets another number.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidegate_netlab::addresses::{self as plan, Family, PROXY_PORT, UPSTREAM_PORT, client};
use tidegate_netlab::client::connect_here;
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::wire::{Faults, Wire};
use tidegate_netlab::{GatewayOptions, Lab};

use crate::world::{World, beside_others, lab_with};

const SERVERS: [u8; 2] = [1, 2];
/// The ports of the Services for nginx and for HAProxy.
const NGINX: u16 = 80;
const HAPROXY: u16 = 81;
/// HAProxy's port on the servers.
const HAPROXY_PORT: u16 = 8091;
/// The number of connections in `make test`.
const CONNECTIONS: usize = 640;
/// The number of connections at a time.
const AT_ONCE: usize = 48;
/// The maximum duration of a connection, with lost frames.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A client's address and port, and the VIP and its port.
pub(crate) type Ends = (SocketAddr, SocketAddr);

#[test]
fn nginx_and_haproxy_log_every_client_and_no_byte_is_lost_on_a_bad_wire() {
    let _machine = beside_others();
    let wanted = std::env::var("TIDEGATE_PROXY_CONNECTIONS").ok();
    let count = wanted.map_or(CONNECTIONS, |text| text.parse().expect("a number of connections"));
    let options = GatewayOptions {
        // A check survives a lost SYN, which is retransmitted after a second.
        health_interval: Duration::from_secs(4),
        unhealthy_threshold: 5,
        ..GatewayOptions::default()
    };
    let lab = lab_with(2, Vec::new());
    let proxies = start_proxies(&lab);
    let world = World::over(lab, options, &services(), "");
    let targets = targets();
    wait_until_served(&world, &targets);
    let before = logged(&world.lab, &proxies);

    let faults = Faults { lost_permille: 10, delayed_permille: 20, delay: Duration::from_millis(2), seed: 1 };
    let wire = Wire::install(&world.lab, faults).expect("the wire is there");
    let expected = open_many(&world.lab, &targets, count);
    let (lost, delayed) = wire.lost_and_delayed();
    println!("{count} connections, {} frames, {lost} lost, {delayed} delayed", wire.frames());
    assert!(lost > 0 && delayed > 0, "the wire was bad: {lost} lost, {delayed} delayed");

    let mut found = BTreeMap::new();
    world.wait_until("a line in a log for each connection", || {
        found = logged(&world.lab, &proxies);
        before.iter().for_each(|(ends, times)| *found.entry(*ends).or_default() -= times);
        found.retain(|_, times| *times != 0);
        (found.values().sum::<i64>() >= i64::try_from(count).expect("a small number")).then_some(())
    });
    drop(wire);
    check_identifiers(&proxies);
    let wrong: Vec<_> = found.iter().filter(|(ends, times)| expected.get(*ends) != Some(*times)).collect();
    let missing: Vec<_> = expected.keys().filter(|ends| !found.contains_key(*ends)).collect();
    assert!(wrong.is_empty() && missing.is_empty(), "logged in error: {wrong:?}; missing: {missing:?}");
}

/// Starts HAProxy and the upstream server on each server. nginx is already running.
fn start_proxies(lab: &Lab) -> Vec<(LabProcess, LabProcess)> {
    let start = |n: &u8| {
        let server = lab.server(*n);
        let configuration = server.directory().join("haproxy.cfg");
        fs::write(&configuration, haproxy_configuration()).expect("haproxy.cfg is written");
        let configuration = configuration.display().to_string();
        let haproxy = server.run("haproxy", Path::new("haproxy"), &["-db", "-f", &configuration]);
        (start_upstream(lab, *n), haproxy.expect("HAProxy starts (is it installed? make setup)"))
    };
    SERVERS.iter().map(start).collect()
}

/// A server on the port [`UPSTREAM_PORT`] of a server, which returns what it receives.
pub(crate) fn start_upstream(lab: &Lab, n: u8) -> LabProcess {
    let port = UPSTREAM_PORT.to_string();
    lab.server(n).run_tool("http-echo", &["--port", &port]).expect("http-echo starts")
}

/// Waits until every target answers.
pub(crate) fn wait_until_served(world: &World, targets: &[SocketAddr]) {
    for target in targets {
        world.wait_until(&format!("an answer of {target}"), || {
            world.lab.client().enter(|| exchange(*target, 0)).ok()
        });
    }
}

/// `dontlognull` suppresses the log lines of most health checks, which end without data.
fn haproxy_configuration() -> String {
    format!(
        "global\n    maxconn 4000\n    log stdout format raw local0 info\n\
         defaults\n    mode tcp\n    log global\n    option dontlognull\n    log-format \"%ci %cp %fi %fp %[fc_pp_unique_id,hex]\"\n    \
         timeout connect 30s\n    timeout client 90s\n    timeout server 90s\n\
         frontend proxied\n    bind 0.0.0.0:{HAPROXY_PORT} accept-proxy\n    \
         bind [::]:{HAPROXY_PORT} v6only accept-proxy\n    default_backend upstream\n\
         backend upstream\n    server echo 127.0.0.1:{UPSTREAM_PORT}\n"
    )
}

/// The Services: mode, version, and the number of their VIPs.
const SERVICES: [(&str, &str, u8); 4] =
    [("nat", "v1", 41), ("nat", "v2", 42), ("fullnat", "v1", 43), ("fullnat", "v2", 44)];

fn services() -> Vec<Manifest> {
    let service = |(mode, version, vip): (&'static str, &str, u8)| {
        let ports = vec![
            PortSpec::tcp("nginx", NGINX).to(PROXY_PORT),
            PortSpec::tcp("haproxy", HAPROXY).to(HAPROXY_PORT),
        ];
        let vips = Family::BOTH.map(|family| plan::routed_vip(family, vip));
        let mut manifest = Manifest::new(&format!("proxy-{mode}-{version}"), mode, &vips, ports);
        manifest.annotations.push(("tidegate.dev/proxy-protocol", version.to_owned()));
        if version == "v2" {
            manifest.annotations.push((
                "tidegate.dev/proxy-protocol-tlvs",
                "unique-id,crc32c,vpce-id=vpce-08d2bf15fac5001c9".to_owned(),
            ));
        }
        let endpoints = Family::BOTH.into_iter().flat_map(|family| SERVERS.map(|n| plan::server(family, n)));
        manifest.with_endpoints(endpoints.map(EndpointSpec::ready))
    };
    SERVICES.into_iter().map(service).collect()
}

/// Every VIP with the port of either proxy.
fn targets() -> Vec<SocketAddr> {
    let vips = SERVICES.into_iter().flat_map(|(_, _, vip)| Family::BOTH.map(|f| plan::routed_vip(f, vip)));
    vips.flat_map(|vip| [NGINX, HAPROXY].map(|port| SocketAddr::new(vip, port))).collect()
}

/// Opens `count` connections, some at a time, and returns how often each pair of ends occurred.
pub(crate) fn open_many(lab: &Lab, targets: &[SocketAddr], count: usize) -> BTreeMap<Ends, i64> {
    let (next, done, errors) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                lab.client().move_this_thread().expect("the namespace lives as long as its lab");
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    let target = targets[n % targets.len()];
                    match exchange(target, n) {
                        Ok(own) => *done.lock().expect("no panic").entry((own, target)).or_default() += 1,
                        Err(error) => errors.lock().expect("no panic").push(format!("{n}: {error:#}")),
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().expect("no panic");
    assert!(errors.is_empty(), "{} of {count} connections failed: {errors:#?}", errors.len());
    done.into_inner().expect("no panic")
}

/// Sends a request and compares the body that comes back. Returns the client's own address and port. `n` selects the
/// client's address, the length of the body and when its parts are sent.
fn exchange(target: SocketAddr, n: usize) -> Result<SocketAddr> {
    let address = u8::try_from(n / 7 % usize::from(plan::CLIENT_ADDRESSES)).expect("a small number");
    let source = SocketAddr::new(client(Family::of(target.ip()), address), 0);
    let body: Vec<u8> = (0..n * 7919 % 40_000).map(|at| (at * 31 + n * 17 + at / 251) as u8).collect();
    let head = format!(
        "POST /echo?n={n} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = connect_here(TIMEOUT, source, target)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    let own = stream.local_addr()?;
    send_request(&mut stream, n, head.as_bytes(), &body)
        .with_context(|| format!("{own} to {target}: sending"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("{own} to {target}: receiving"))?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("an answer without a head")?;
    let (head, received) = answer.split_at(end + 4);
    ensure!(head.starts_with(b"HTTP/1.1 200"), "{own} to {target}: {}", String::from_utf8_lossy(head));
    ensure!(received == body, "{own} to {target}: {} bytes of {} came back", received.len(), body.len());
    Ok(own)
}

/// The header is in the first data of a connection, unless it was in the handshake. Connections therefore differ in
/// their first data.
fn send_request(stream: &mut TcpStream, n: usize, head: &[u8], body: &[u8]) -> Result<()> {
    match n / 3 % 4 {
        0 => stream.write_all(&[head, body].concat())?,
        1 => {
            stream.write_all(head)?;
            stream.write_all(body)?;
        }
        2 => {
            // The acknowledgement of the handshake is a separate segment here, and the first data has one byte.
            thread::sleep(Duration::from_millis(20));
            stream.write_all(&head[..1])?;
            stream.write_all(&[&head[1..], body].concat())?;
        }
        _ => {
            thread::sleep(Duration::from_millis(5));
            for part in [head, body].concat().chunks(1000) {
                stream.write_all(part)?;
            }
        }
    }
    Ok(())
}

/// How often the proxies logged each pair of ends.
fn logged(lab: &Lab, proxies: &[(LabProcess, LabProcess)]) -> BTreeMap<Ends, i64> {
    let mut found = BTreeMap::new();
    for (n, (_, haproxy)) in SERVERS.iter().zip(proxies) {
        let text = lab.server(*n).proxy_log() + &haproxy.log();
        // An incomplete line is read again later.
        for ends in text.lines().filter_map(ends_of).filter(|(client, _)| !is_gateway(client.ip())) {
            *found.entry(ends).or_default() += 1;
        }
    }
    found
}

/// Checks that every connection with version 2 has its own identifier of 16 bytes, and that no other connection has
/// one.
fn check_identifiers(proxies: &[(LabProcess, LabProcess)]) {
    let (with, mut seen): (Vec<u8>, BTreeMap<String, String>) = (
        SERVICES.into_iter().filter(|(_, version, _)| *version == "v2").map(|s| s.2).collect(),
        BTreeMap::new(),
    );
    let vips: Vec<IpAddr> =
        with.into_iter().flat_map(|vip| Family::BOTH.map(|family| plan::routed_vip(family, vip))).collect();
    let text: String = proxies.iter().map(|(_, haproxy)| haproxy.log()).collect();
    for line in text.lines() {
        let Some((client, vip)) = ends_of(line).filter(|(client, _)| !is_gateway(client.ip())) else {
            continue;
        };
        let id = line.rsplit(' ').next().unwrap_or_default();
        if !vips.contains(&vip.ip()) {
            assert_eq!(id, "-", "version 1 has no identifier: {line}");
            continue;
        }
        assert!(id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{client} to {vip}: {line}");
        if let Some(other) = seen.insert(id.to_owned(), line.to_owned()) {
            panic!("two connections have one identifier: {line} and {other}");
        }
    }
    assert!(!seen.is_empty(), "HAProxy logged connections with version 2");
}

/// HAProxy logs some of the health checks, which name no client, with the gateway's own address. A client of `fullnat`
/// without a header would have the SNAT address, which is different.
pub(crate) fn is_gateway(address: IpAddr) -> bool {
    plan::GATEWAY_FOR_SERVERS.iter().any(|own| own.parse() == Ok(address))
}

fn ends_of(line: &str) -> Option<Ends> {
    let words: Vec<&str> = line.split(' ').collect();
    // HAProxy also writes the identifier.
    let ([client, client_port, vip, port] | [client, client_port, vip, port, _]) = words[..] else {
        return None;
    };
    let end = |address: &str, port: &str| {
        Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port.parse().ok()?))
    };
    Some((end(client, client_port)?, end(vip, port)?))
}
