//! State that is kept from one snapshot to the next: ids, Maglev tables, entries of neighbours.

use super::*;

#[test]
fn objects_keep_their_ids_and_stale_ids_find_nothing() {
    let one = network(vec![
        service(
            "203.0.113.1",
            80,
            Nat,
            vec![backend("10.0.1.1", 80), backend("10.0.1.2", 80), backend("10.0.1.3", 80)],
        ),
        service("203.0.113.2", 80, Nat, vec![backend("10.0.1.1", 80)]),
    ]);
    let first = clean(&one, None);
    let before = backend_ids(&first);

    let mut two = one.clone();
    two.services[0].backends.remove(1);
    two.services[0].backends.push(backend("10.0.1.9", 80));
    two.services.remove(1);
    two.services.push(service("203.0.113.0", 80, Nat, vec![backend("10.0.1.1", 80)]).into());
    let second = clean(&two, Some(&first));
    let after = backend_ids(&second);

    for (what, id) in &after {
        match before.get(what) {
            Some(old) => assert_eq!(id, old, "{what:?}"),
            None => assert!(!before.values().any(|old| old == id), "{what:?}"),
        }
    }
    let gone: Vec<_> = before.iter().filter(|(what, _)| !after.contains_key(what)).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|(_, id)| second.backend(**id).is_none()));
    assert_eq!(second.backend_indices(), 4, "free indices are used again");
    let old = find(&first, &one.services[1].key).unwrap().id;
    assert!(second.service_by_id(old).is_none() && second.service_info(old).is_none());
    assert_eq!(second.service_indices(), 2);

    // All objects are removed and added again: the indices are reused, the ids are not.
    let empty = clean(&network(vec![]), Some(&second));
    assert!(after.values().all(|id| empty.backend(*id).is_none()));
    let again = clean(&one, Some(&empty));
    assert!(
        backend_ids(&again).values().all(|id| first.backend(*id).is_none() && second.backend(*id).is_none())
    );
    assert_eq!(again.backend_indices(), 4);
}

#[test]
fn a_change_from_or_to_nat_changes_backend_ids_but_dsr_modes_keep_them() {
    let spec = |mode| network(vec![service("203.0.113.1", 80, mode, vec![backend("10.0.1.1", 80)])]);
    let id = |snapshot: &Snapshot| *backend_ids(snapshot).values().next().unwrap();
    let l2 = clean(&spec(DsrL2), None);
    let ipip = clean(&spec(DsrIpip), Some(&l2));
    assert_eq!(id(&ipip), id(&l2));
    let nat = clean(&spec(Nat), Some(&ipip));
    let fullnat = clean(&spec(FullNat), Some(&nat));
    assert!(id(&nat) != id(&ipip) && id(&fullnat) != id(&nat));
    assert_eq!(fullnat.services().next().unwrap().0.id, l2.services().next().unwrap().0.id);
}

/// The Maglev table of a service that has one.
fn table_of(service: &Service) -> &Arc<[u16]> {
    match service.selector() {
        Selector::Maglev(slots) => slots.table(),
        _ => panic!("a service with scheduler maglev"),
    }
}

#[test]
fn services_ports_and_snapshots_share_equal_tables() {
    let backends = |port| vec![backend("10.0.1.1", port), backend("10.0.1.2", port)];
    let mut spec = network(vec![
        service("203.0.113.1", 80, Nat, backends(8080)),
        service("203.0.113.1", 443, Nat, backends(8443)),
        service("203.0.113.2", 80, Nat, vec![backend("10.0.1.1", 80)]),
    ]);
    spec.services.iter_mut().for_each(|service| service.scheduler = MAGLEV);
    let first = clean(&spec, None);
    let tables = |snapshot: &Snapshot| {
        snapshot.services().map(|(service, _)| Arc::clone(table_of(service))).collect::<Vec<_>>()
    };
    let before = tables(&first);
    assert!(Arc::ptr_eq(&before[0], &before[1]) && !Arc::ptr_eq(&before[0], &before[2]));
    assert_eq!(first.tables(), 2);

    spec.services[2].backends.push(backend("10.0.1.3", 80));
    let second = clean(&spec, Some(&first));
    let after = tables(&second);
    assert!(Arc::ptr_eq(&before[0], &after[0]) && !Arc::ptr_eq(&before[2], &after[2]));
    assert_eq!(second.tables(), 2, "unused tables are dropped");
}

#[test]
fn fixed_neighbours_are_set_and_cleared() {
    let neighbors = NeighborTable::with_capacity(16);
    let mut spec = network(vec![]);
    spec.network.neighbors = vec![
        NeighborSpec { ip: ip("10.0.255.254"), mac: MAC },
        NeighborSpec { ip: ip("192.0.2.1"), mac: MAC },
    ];
    let (first, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    assert_eq!(problems, [Problem::NeighborOffLink { ip: ip("192.0.2.1") }]);
    let id = first.route(&addr("198.51.100.1")).unwrap().neighbor.unwrap();
    assert_eq!(neighbors.state(id), NeighborState::Static(MAC));
    spec.network.neighbors.clear();
    Snapshot::compile(&spec, Some(&first), &neighbors).unwrap();
    assert_eq!(neighbors.state(id), NeighborState::Unresolved);
}

#[test]
fn next_hops_that_no_snapshot_names_release_their_entries() {
    let neighbors = NeighborTable::with_capacity(64);
    let mut spec = network(vec![service("203.0.113.1", 80, Nat, vec![backend("10.0.1.1", 80)])]);
    let (mut snapshot, _) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    for n in 0..1_000_u32 {
        spec.generation += 1;
        let [.., c, d] = n.to_be_bytes();
        let mut changed = ServiceSpec::clone(&spec.services[0]);
        changed.backends = vec![backend(&format!("10.0.{}.{d}", 100 + c), 80)];
        spec.services = vec![changed.into()];
        // Occasionally from scratch, mostly revised.
        if n % 100 == 99 {
            spec.network.routes.reverse();
        }
        let (next, problems) = Snapshot::compile(&spec, Some(&snapshot), &neighbors).unwrap();
        assert_eq!(problems, [], "after {n} changes");
        for id in next.next_hops() {
            let (interface, addr) = neighbors.key(id).expect("the snapshot refers to it");
            assert_eq!(neighbors.lookup(interface, &addr), Some(id));
        }
        snapshot = next;
    }
    drop(snapshot);
    assert!(neighbors.is_empty(), "{:?}", neighbors.usage());
}
