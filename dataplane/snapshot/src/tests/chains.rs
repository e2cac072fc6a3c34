//! Compares random chains of specs with maps of them.

use proptest::prelude::*;

use super::*;

/// There are few distinct keys, so that chains of specs contain the same objects again.
fn any_services() -> impl Strategy<Value = Vec<ServiceSpec>> {
    let state = prop_oneof![
        3 => Just(BackendState::Active), 1 => Just(BackendState::Draining), 1 => Just(BackendState::Down)
    ];
    let backends = proptest::collection::hash_map((1_u8..8, 80_u16..83), (0_u16..4, state), 0..8);
    let key = (0_u8..4, 80_u16..82, any::<bool>(), any::<bool>());
    let services = proptest::collection::hash_map(key, (backends, 0_usize..4), 0..8);
    services.prop_map(|services| {
        type Listed = HashMap<(u8, u16), (u16, BackendState)>;
        let one = |((vip, port, udp, v6), (backends, mode)): ((u8, u16, bool, bool), (Listed, usize))| {
            let (vip, base) = if v6 {
                (format!("2001:db8:1::{vip}"), "2001:db8::10")
            } else {
                (format!("203.0.113.{vip}"), "10.0.1.")
            };
            let backends = backends.into_iter().map(|((host, port), (weight, state))| BackendSpec {
                weight,
                state,
                ..backend(&format!("{base}{host}"), port)
            });
            let mut service = service(&vip, port, ForwardingMode::ALL[mode], backends.collect());
            service.scheduler =
                [Scheduler::Rendezvous, Scheduler::Maglev { slots: 251 }][usize::from(port % 2)];
            service.key.protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
            service
        };
        services.into_iter().map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn look_ups_agree_with_maps_of_the_spec_over_chains_of_compiles(chain in proptest::collection::vec(any_services(), 1..4)) {
        let neighbors = NeighborTable::with_capacity(256);
        let mut previous: Option<Snapshot> = None;
        let mut all_ids: HashMap<BackendId, (ServiceKey, Addr, u16)> = HashMap::new();
        for services in chain {
            let spec = network(services);
            let (snapshot, problems) = Snapshot::compile(&spec, previous.as_ref(), &neighbors).unwrap();

            let oracle: HashMap<ServiceKey, &ServiceSpec> = spec.services.iter().map(|s| (s.key, &**s)).collect();
            for vip in 0..4 {
                for vip in [ip(&format!("203.0.113.{vip}")), ip(&format!("2001:db8:1::{vip}"))] {
                    for port in 79..83 {
                        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                            let key = ServiceKey { vip, protocol, port };
                            let found = find(&snapshot, &key);
                            prop_assert_eq!(found.is_some(), oracle.contains_key(&key));
                            if let Some(service) = found {
                                prop_assert_eq!(snapshot.service_info(service.id).unwrap().key, key);
                                prop_assert_eq!(snapshot.service_by_id(service.id).unwrap().id, service.id);
                            }
                        }
                    }
                }
            }

            let mut replies = HashMap::new();
            let programmed: usize = snapshot.services().map(|(_, info)| info.backends.len()).sum();
            let listed: usize = spec.services.iter().map(|s| s.backends.len()).sum();
            prop_assert_eq!(programmed + problems.len(), listed);
            let mut ids = HashSet::new();
            for (service, info) in snapshot.services() {
                for (position, b) in info.backends.iter().enumerate() {
                    prop_assert!(ids.insert(b.id));
                    let hot = snapshot.backend(b.id).unwrap();
                    prop_assert_eq!((hot.address, hot.port, hot.service, hot.endpoint), (b.address, b.port, service.id, b.endpoint));
                    let wanted = oracle[&info.key].backends.iter().find(|w| Addr::from(w.address) == b.address && w.port == b.port).unwrap();
                    prop_assert_eq!((b.weight, b.state), (wanted.weight, wanted.state));
                    if b.weight == 0 || b.state != BackendState::Active {
                        prop_assert_eq!(snapshot.shares(service)[position], 0);
                    }
                    if !info.mode.is_dsr() {
                        replies.insert((b.address, info.key.protocol.number(), b.port), b.endpoint);
                    }
                    // An id has one meaning over the whole chain.
                    let what = (info.key, b.address, b.port);
                    prop_assert_eq!(*all_ids.entry(b.id).or_insert(what), what);
                }
                for hash in (0..50).map(tidegate_structures::hash::mix) {
                    let takes = |b: &&crate::service::BackendInfo| b.state == BackendState::Active && b.weight > 0;
                    let chosen = service.select(hash);
                    prop_assert_eq!(chosen.is_some(), info.backends.iter().any(|b| takes(&b)));
                    prop_assert!(chosen.is_none_or(|id| info.backends.iter().filter(takes).any(|b| b.id == id)));
                }
            }
            for id in all_ids.keys() {
                prop_assert_eq!(snapshot.backend(*id).is_some(), ids.contains(id));
            }
            for host in 1..8 {
                for address in [addr(&format!("10.0.1.{host}")), addr(&format!("2001:db8::10{host}"))] {
                    for (port, proto) in (79..84).flat_map(|port| [6, 17, 132].map(|proto| (port, proto))) {
                        let found = snapshot.endpoint(Snapshot::hash_endpoint(&address, proto, port), &address, proto, port);
                        prop_assert_eq!(found, replies.get(&(address, proto, port)).copied());
                    }
                }
            }
            previous = Some(snapshot);
        }
    }

    #[test]
    fn the_order_of_the_spec_does_not_matter(services in any_services(), seed in any::<u64>()) {
        let spec = network(services);
        let mut shuffled = spec.clone();
        shuffle(&mut shuffled.services, seed);
        shuffled.services.iter_mut().for_each(|service| shuffle(&mut service.backends, seed));
        shuffled.network.routes.reverse();
        shuffled.network.snat_addresses.reverse();
        let (one, problems) = compile(&spec, None);
        let (other, other_problems) = compile(&shuffled, None);
        prop_assert_eq!(problems, other_problems);
        for ((a, a_info), (b, b_info)) in one.services().zip(other.services()) {
            prop_assert_eq!(a_info, b_info);
            for hash in (0..50).map(tidegate_structures::hash::mix) {
                prop_assert_eq!(a.select(hash), b.select(hash));
            }
        }
        prop_assert_eq!(one.services().len(), other.services().len());
        prop_assert_eq!(one.addresses().collect::<Vec<_>>(), other.addresses().collect::<Vec<_>>());
        prop_assert_eq!(one.snat_addresses(Family::V4), other.snat_addresses(Family::V4));
    }
}

fn shuffle<T>(list: &mut [T], seed: u64) {
    for at in (1..list.len()).rev() {
        let hash = client_hash(&Addr::v6((u128::from(seed) << 64 | at as u128).to_be_bytes()));
        list.swap(at, (hash % (at as u64 + 1)) as usize);
    }
}
