//! Connections that outlive the gateway: `kill -9`, an orderly restart, a reload, and tables that the next process must
//! not read.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use tidegate_netlab::addresses::CLIENT_ADDRESSES;
use tidegate_netlab::client::Tell;
use tidegate_netlab::manifests::Manifest;
use tidegate_netlab::modes::{ModePath, all_paths, manifests_of, tunnel_paths};
use tidegate_netlab::{GatewayOptions, server, wait_for};

use crate::world::{APPLIED, World, alone, broken, lab_with};

/// Connections of each path.
const CONNECTIONS: u8 = 12;

/// How the gateway ends or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Reload,
    Kill,
    Restart,
}

#[test]
fn no_connection_breaks_when_the_gateway_is_killed_restarted_or_reloaded() {
    let _turn = alone();
    for cores in [vec![0], vec![0, 1]] {
        let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let workers = cores.len();
        let mut world = start(cores, tables.path());
        let mut open = opened(&world);
        let mut broken: BTreeMap<(&str, String), (usize, usize)> = BTreeMap::new();
        for way in [Way::Reload, Way::Kill, Way::Restart, Way::Kill] {
            let begun = Instant::now();
            change(&mut world, way);
            let took = begun.elapsed();
            let mut why = Vec::new();
            for (path, tell) in &mut open {
                let count = broken.entry((path.forwarding, format!("{way:?}"))).or_default();
                count.0 += 1;
                if let Err(error) = tell.ping() {
                    count.1 += 1;
                    why.push(format!("{} {} to {}: {error:#}", path.label(), path.family, tell.told.backend));
                }
            }
            let log = world.gateway().log_tail(40);
            assert!(why.is_empty(), "{way:?}, {workers} workers: {why:#?}\n{log}");
            if way != Way::Reload {
                let restored =
                    log.lines().rfind(|line| line.contains("flows of the earlier process are restored"));
                println!("{way:?}, {workers} workers: ready again {took:?} after the signal; {restored:?}");
            }
            // Those of this process live as long as those of its predecessors.
            open.extend(opened(&world));
        }
        for ((mode, way), (all, lost)) in &broken {
            println!("{mode}, {way}, {workers} workers: {lost} of {all} connections broke");
        }
        drop(world.take_gateway().stop());
        let left = fs::read_dir(tables.path().join("lab")).expect("the gateway's directory").count();
        assert_eq!(left, 2, "the lock and the tables of the last process");
    }
}

#[test]
fn connections_to_backends_that_left_before_the_gateway_was_killed_do_not_break() {
    let _turn = alone();
    let tables = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let mut world = start(vec![0], tables.path());
    let mut open = opened(&world);
    world.write(&manifests_of(&paths(), &[3]));
    for path in paths() {
        wait_for("new connections at the only backend that is left", APPLIED, || {
            let fresh = (0..CLIENT_ADDRESSES).map(|n| world.connect(path, n));
            fresh
                .into_iter()
                .all(|tell| tell.is_ok_and(|tell| tell.told.backend == server::name(3)))
                .then_some(())
        })
        .unwrap();
    }
    for way in [Way::Kill, Way::Restart] {
        change(&mut world, way);
        let broken = broken(&mut open);
        assert!(broken.is_empty(), "{way:?}: {broken:#?}\n{}", world.gateway().log_tail(20));
    }
    let left = open.iter().filter(|(_, tell)| tell.told.backend != server::name(3)).count();
    assert!(left >= paths().len(), "{left} connections have a backend that left");
    let fresh = paths().into_iter().map(|path| world.connect(path, 1).expect("a connection").told.backend);
    assert!(fresh.into_iter().all(|backend| backend == server::name(3)), "no new flow goes to one that left");
}

#[test]
fn connections_without_entries_do_not_break_when_backends_leave_while_no_gateway_runs() {
    let _turn = alone();
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
    let left = open.iter().filter(|(_, tell)| tell.told.backend != server::name(3)).count();
    assert!(left >= 2, "{left} connections have a backend that left");
}

#[test]
fn tables_of_another_version_are_refused_with_the_reason_and_dsr_connections_live() {
    let _turn = alone();
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
    for (path, tell) in &mut open {
        let answer = tell.ping();
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

fn opened(world: &World) -> Vec<(ModePath, Tell)> {
    let mut open = Vec::new();
    for path in paths() {
        for n in 0..CONNECTIONS {
            let tell = world.connect(path, n % CLIENT_ADDRESSES);
            open.push((path, tell.unwrap_or_else(|error| panic!("{}: {error:#}", path.label()))));
        }
    }
    open
}

fn change(world: &mut World, way: Way) {
    if way == Way::Reload {
        world.gateway_mut().reload();
        return;
    }
    let gateway = world.take_gateway();
    match way {
        Way::Kill => gateway.kill(),
        _ => assert!(gateway.stop().expect("the gateway ends").success()),
    }
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
}
