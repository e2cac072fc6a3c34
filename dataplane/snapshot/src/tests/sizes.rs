//! Tests with large specs.

use std::time::Instant;

use super::*;

#[test]
fn ten_thousand_backends_of_one_service_all_take_part() {
    let backends =
        (0..10_000_u16).map(|n| backend(&format!("10.0.{}.{}", 1 + n / 250, n % 250), 80)).collect();
    let mut spec = network(vec![service("203.0.113.1", 80, Nat, backends)]);
    let started = Instant::now();
    let first = clean(&spec, None);
    let built = started.elapsed();
    let (service, _) = first.services().next().unwrap();
    assert!(first.shares(service).iter().all(|&seats| seats == 1));
    spec.generation = 2;
    let started = Instant::now();
    let second = clean(&spec, Some(&first));
    println!("10,000 backends: {built:?}, again {:?}", started.elapsed());
    assert_eq!(backend_ids(&first), backend_ids(&second));
}

#[test]
fn the_bytes_of_tables_are_known_before_there_are_any() {
    for scheduler in [Scheduler::Rendezvous, Scheduler::Maglev { slots: 251 }] {
        let services = (0..300_u16)
            .map(|n| {
                let backends =
                    (0..10).map(|b| backend(&format!("10.0.{}.{}", 1 + n / 25, n % 25 * 10 + b), 8080));
                let service = service(&format!("203.0.{}.{}", n / 250, n % 250), 80, Nat, backends.collect());
                ServiceSpec { scheduler, ..service }
            })
            .collect();
        let real = clean(&network(services), None).table_bytes();
        let slots = if let Scheduler::Maglev { slots } = scheduler { Some(slots) } else { None };
        assert_eq!(TableBytes::of(300, 3_000, slots), real);
    }
}

#[test]
fn prints_how_long_a_thousand_services_of_ten_backends_take() {
    let services = (0..1_000_u16)
        .map(|n| {
            let backends =
                (0..10).map(|b| backend(&format!("10.0.{}.{}", 1 + n / 25, n % 25 * 10 + b), 8080));
            service(&format!("203.0.{}.{}", n / 250, n % 250), 80, Nat, backends.collect())
        })
        .collect();
    let mut spec = network(services);
    let neighbors = NeighborTable::new();
    let started = Instant::now();
    let (first, problems) = Snapshot::compile(&spec, None, &neighbors).unwrap();
    let built = started.elapsed();
    assert_eq!(problems, []);
    let bytes = |service: &Service| match service.selector() {
        Selector::Rendezvous(seats) => seats.bytes(),
        _ => panic!("no other scheduler is configured"),
    };
    let bytes: usize = first.services().map(|(service, _)| bytes(service)).sum();
    assert!(bytes <= 500_000, "{bytes} bytes to choose by: 10,000 services stay below 5 MB");
    spec.services[500].backends.pop();
    let started = Instant::now();
    let (second, _) = Snapshot::compile(&spec, Some(&first), &neighbors).unwrap();
    println!("1,000 services of 10 backends: {built:?}; one changed: {:?}", started.elapsed());
    assert_eq!((first.services().len(), second.backend_indices()), (1_000, 10_000));
}
