//! Connections survive restarts of the gateway: `kill -9`, an orderly restart, a reload, and flow tables that the next
//! process must not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use tidegate_netlab::addresses::CLIENT_ADDRESSES;
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::manifests::Manifest;
use tidegate_netlab::modes::{ModePath, all_paths, manifests_of, tunnel_paths};
use tidegate_netlab::{GatewayOptions, server, wait_for};

use crate::world::{APPLIED, World, alone, broken, lab_with};

/// Connections of each path.
const CONNECTIONS: u8 = 12;

/// How the gateway stops or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Reload,
    Kill,
    Restart,
}

#[test]
fn no_connection_breaks_when_the_gateway_is_killed_restarted_or_reloaded() {
    let _machine = alone();
    for cores in [vec![0], vec![0, 1]] {
        let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let workers = cores.len();
        let mut world = start(cores, tables.path());
        let mut open = opened(&world);
        let mut broken: BTreeMap<(&str, String), (usize, usize)> = BTreeMap::new();
        for action in [Action::Reload, Action::Kill, Action::Restart, Action::Kill] {
            let begun = Instant::now();
            change(&mut world, action);
            let took = begun.elapsed();
            let mut why = Vec::new();
            for (path, connection) in &mut open {
                let count = broken.entry((path.forwarding, format!("{action:?}"))).or_default();
                count.0 += 1;
                if let Err(error) = connection.ping() {
                    count.1 += 1;
                    why.push(format!(
                        "{} {} to {}: {error:#}",
                        path.label(),
                        path.family,
                        connection.answer.backend
                    ));
                }
            }
            let log = world.gateway().log_tail(40);
            assert!(why.is_empty(), "{action:?}, {workers} workers: {why:#?}\n{log}");
            if action != Action::Reload {
                let restored =
                    log.lines().rfind(|line| line.contains("restored flows of the earlier process"));
                println!(
                    "{action:?}, {workers} workers: ready again {took:?} after the signal; {restored:?}"
                );
            }
            // Connections of this process must survive as long as those of earlier ones.
            open.extend(opened(&world));
        }
        for ((mode, action), (all, lost)) in &broken {
            println!("{mode}, {action}, {workers} workers: {lost} of {all} connections broke");
        }
        drop(world.take_gateway().stop());
        let left = fs::read_dir(tables.path().join("lab")).expect("the gateway's directory").count();
        assert_eq!(left, 2, "the lock and the tables of the last process");
    }
}

#[test]
fn connections_to_removed_backends_survive_a_killed_gateway() {
    let _machine = alone();
    let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let mut world = start(vec![0], tables.path());
    let mut open = opened(&world);
    world.write(&manifests_of(&paths(), &[3]));
    for path in paths() {
        wait_for("new connections at the only backend that is left", APPLIED, || {
            let fresh = (0..CLIENT_ADDRESSES).map(|n| world.connect(path, n));
            fresh
                .into_iter()
                .all(|connection| {
                    connection.is_ok_and(|connection| connection.answer.backend == server::name(3))
                })
                .then_some(())
        })
        .unwrap();
    }
    for action in [Action::Kill, Action::Restart] {
        change(&mut world, action);
        let broken = broken(&mut open);
        assert!(broken.is_empty(), "{action:?}: {broken:#?}\n{}", world.gateway().log_tail(20));
    }
    let left = open.iter().filter(|(_, connection)| connection.answer.backend != server::name(3)).count();
    assert!(left >= paths().len(), "{left} connections have a backend that left");
    let fresh = paths().into_iter().map(|path| world.connect(path, 1).expect("a connection").answer.backend);
    assert!(fresh.into_iter().all(|backend| backend == server::name(3)), "no new flow goes to one that left");
}

#[test]
fn untracked_connections_survive_backend_changes_without_a_gateway() {
    let _machine = alone();
    let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let on_change = |servers: &[u8]| {
        let mut services = manifests_of(&paths(), servers);
        for service in &mut services {
            service.annotations.push(("tidegate.dev/flow-tracking", "on-change".to_owned()));
        }
        services
    };
    let mut world = start_with(vec![0], tables.path(), &on_change(&[1, 2, 3]));
    let mut open = opened(&world);
    open.retain(|(path, _)| path.forwarding.starts_with("dsr"));
    world.take_gateway().kill();
    world.write(&on_change(&[3]));
    for restarts in 1..=2 {
        world.launch_gateway();
        world.gateway_mut().wait_until_ready().expect("ready");
        let broken = broken(&mut open);
        let log = world.gateway().log_tail(20);
        assert!(broken.is_empty(), "after restart {restarts}: {broken:#?}\n{log}");
        world.take_gateway().kill();
    }
    let left = open.iter().filter(|(_, connection)| connection.answer.backend != server::name(3)).count();
    assert!(left >= 2, "{left} connections have a backend that left");
}

#[test]
fn flow_tables_of_another_version_are_refused_with_a_reason() {
    let _machine = alone();
    let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let mut world = start(vec![1], tables.path());
    let mut open = opened(&world);
    world.take_gateway().kill();
    let runs = fs::read_dir(tables.path().join("lab")).expect("the gateway's directory");
    let run =
        runs.map(|entry| entry.expect("an entry").path()).find(|path| path.is_dir()).expect("its tables");
    fs::write(run.join("about"), "tidegate flow tables 2\n").expect("another version writes something else");
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    let log = world.gateway().log_tail(40);
    assert!(log.contains("this version reads"), "{log}");
    assert!(!run.exists(), "it is removed");
    for (path, connection) in &mut open {
        let answer = connection.ping();
        assert!(answer.is_ok() || !path.forwarding.starts_with("dsr"), "{}: {answer:?}", path.label());
    }
}

fn start(cores: Vec<u32>, tables: &Path) -> World {
    start_with(cores, tables, &manifests_of(&paths(), &[1, 2, 3]))
}

/// The services have the servers 1 to 3.
fn start_with(cores: Vec<u32>, tables: &Path, services: &[Manifest]) -> World {
    let options =
        GatewayOptions { cores, flow_directory: Some(tables.to_owned()), ..GatewayOptions::default() };
    let vips =
        paths().iter().filter(|path| path.forwarding.starts_with("dsr")).map(|path| path.vip).collect();
    let world = World::over(lab_with(3, vips), options, services, "");
    for path in paths() {
        world.wait_until_active(path, &[1, 2, 3]);
    }
    world
}

fn paths() -> Vec<ModePath> {
    let is_tried = |path: &ModePath| ["dsr-l2", "gue-1", "nat", "fullnat"].contains(&path.service);
    [all_paths(), tunnel_paths()].concat().into_iter().filter(is_tried).collect()
}

fn opened(world: &World) -> Vec<(ModePath, EchoConnection)> {
    let mut open = Vec::new();
    for path in paths() {
        for n in 0..CONNECTIONS {
            let connection = world.connect(path, n % CLIENT_ADDRESSES);
            open.push((path, connection.unwrap_or_else(|error| panic!("{}: {error:#}", path.label()))));
        }
    }
    open
}

fn change(world: &mut World, action: Action) {
    if action == Action::Reload {
        world.gateway_mut().reload();
        return;
    }
    let gateway = world.take_gateway();
    match action {
        Action::Kill => gateway.kill(),
        _ => assert!(gateway.stop().expect("the gateway ends").success()),
    }
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
}
