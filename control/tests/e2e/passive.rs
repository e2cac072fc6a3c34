//! A backend that dies costs almost no new connection in `nat` and `fullnat`, long before the health checks detect it:
//! they are 20 s apart here, and need two failures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_netlab::addresses::client;
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::modes::{ModePath, all_paths, manifests};
use tidegate_netlab::{GatewayOptions, server};

use crate::world::{World, alone};

const SERVERS: u8 = 10;
const DEAD: u8 = 3;
/// A connection that takes longer counts as failed.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Connections that start within this time after the death are counted.
const COUNTED: Duration = Duration::from_secs(4);
/// Concurrent clients of each path: one that waits for a silent backend must not delay the others.
const CLIENTS: u8 = 4;
const PACE: Duration = Duration::from_millis(20);

/// One attempt: its start, and the backend that answered in time, or the error.
struct Attempt {
    path: ModePath,
    at: Instant,
    outcome: Result<String, String>,
}

fn paths() -> Vec<ModePath> {
    all_paths().into_iter().filter(|path| ["nat", "fullnat"].contains(&path.forwarding)).collect()
}

fn world() -> World {
    let options = GatewayOptions { health_interval: Duration::from_secs(20), ..GatewayOptions::default() };
    let servers: Vec<u8> = (1..=SERVERS).collect();
    let world = World::start(SERVERS, options, &manifests(&servers));
    for path in paths() {
        world.wait_until_used(path, &server::name(DEAD));
    }
    world
}

/// Opens connections over all paths for a while. `event` happens meanwhile. Returns the attempts that start after it.
fn attempts_after(world: &mut World, event: impl FnOnce(&mut World)) -> Vec<Attempt> {
    let from = world.lab.client().clone();
    let end = Instant::now() + Duration::from_secs(1) + COUNTED;
    let begun = Arc::new(AtomicUsize::new(0));
    let attempted = Arc::clone(&begun);
    let load = move |path: ModePath, n: u8| {
        from.move_this_thread().expect("the namespace lives as long as its lab");
        let mut attempts = Vec::new();
        while Instant::now() < end {
            let at = Instant::now();
            let source = SocketAddr::new(client(path.family, n), 0);
            let connection = EchoConnection::connect_within(TIMEOUT, source, path.tcp_echo());
            let outcome = match connection {
                Ok(_) if at.elapsed() > TIMEOUT => Err(format!("{:?}", at.elapsed())),
                result => {
                    result.map(|connection| connection.answer.backend).map_err(|error| format!("{error:#}"))
                }
            };
            attempts.push(Attempt { path, at, outcome });
            attempted.fetch_add(usize::from(attempts.len() == 1), Ordering::Relaxed);
            thread::sleep(PACE.saturating_sub(at.elapsed()));
        }
        attempts
    };
    let threads: Vec<_> = paths()
        .into_iter()
        .flat_map(|path| (0..CLIENTS).map(move |n| (path, n)))
        .map(|(path, n)| {
            let load = load.clone();
            thread::spawn(move || load(path, n))
        })
        .collect();
    let all = threads.len();
    world.wait_until("a connection of each client", || (begun.load(Ordering::Relaxed) == all).then_some(()));
    event(world);
    let since = Instant::now();
    let all = threads.into_iter().flat_map(|thread| thread.join().expect("the load does not panic"));
    all.filter(|attempt| attempt.at >= since).collect()
}

fn assert_fewer_than_one_percent_failed(what: &str, attempts: &[Attempt]) {
    for path in paths() {
        let of_path: Vec<_> = attempts.iter().filter(|one| one.path == path).collect();
        let failed: Vec<_> = of_path.iter().filter_map(|one| one.outcome.as_ref().err()).collect();
        let (count, label) = (of_path.len(), format!("{} {}", path.label(), path.family));
        println!("{what}, {label}: {} of {count} new connections failed", failed.len());
        assert!(count >= 100, "{what}, {label}: {count} attempts");
        assert!(failed.len() * 100 < count, "{what}, {label}: {} of {count}: {failed:?}", failed.len());
    }
}

/// Waits until new connections go to the server again over every path.
fn assert_used_again(world: &World) {
    for path in paths() {
        world.wait_until_used(path, &server::name(DEAD));
    }
}

#[test]
fn a_killed_backend_costs_fewer_than_one_percent_of_new_connections() {
    let _machine = alone();
    let mut world = world();
    let attempts = attempts_after(&mut world, |world| world.lab.server_mut(DEAD).kill());
    assert_fewer_than_one_percent_failed("killed", &attempts);
    let retried = world.gateway().metric("tidegate_transmits_total", &["reason=\"retried\""]).unwrap();
    assert!(retried > 0.0, "connections were offered to another backend");
    // The health checks have not detected it yet.
    world.wait_until("a worker to set the backend aside", || {
        let backends = world.gateway().query(&["backends", "-A", "-o", "json"]).ok()?;
        backends.contains("setAsideWorkers").then_some(())
    });
    world.lab.server_mut(DEAD).start().unwrap();
    world.lab.server_mut(DEAD).wait_until_up().unwrap();
    assert_used_again(&world);
}

#[test]
fn a_silent_backend_costs_fewer_than_one_percent_of_new_connections() {
    let _machine = alone();
    let mut world = world();
    let attempts = attempts_after(&mut world, |world| {
        world.lab.switch().ip_batch(&format!("link set p-s{DEAD} down")).unwrap();
    });
    assert_fewer_than_one_percent_failed("silent", &attempts);
    world.wait_until("a worker to set the backend aside", || {
        let count = world.gateway().metric("tidegate_backends_set_aside_total", &[]).ok()?;
        (count > 0.0).then_some(())
    });
    world.lab.switch().ip_batch(&format!("link set p-s{DEAD} up")).unwrap();
    assert_used_again(&world);
}
