//! Compares a snapshot with one that is compiled from scratch. Both must forward packets alike.
//!
//! The daemon runs this periodically in the background, because most snapshots are revised from the previous one. Ids
//! and the generation of [`Snapshot::admission`] depend on earlier snapshots, so the objects that ids stand for are
//! compared instead. Link addresses are not part of snapshots. The snapshot from scratch has its own neighbour table,
//! so a comparison changes nothing that workers read and takes no lock that another thread waits for.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use tidegate_select::selector::Selector;
use tidegate_spec::ids::{BackendId, EndpointId, InterfaceIndex, ServiceId};
use tidegate_spec::{Problem, SnapshotSpec};
use tidegate_structures::difference::{self, Difference};
use tidegate_structures::hash::mix;
use tidegate_wire::{Addr, Family};

use super::compile::from_scratch;
use super::state::Snapshot;
use crate::backend::Backend;
use crate::neighbors::{NeighborId, NeighborTable};
use crate::routes::NextHop;
use crate::service::{BackendInfo, Service, ServiceInfo};

/// The number of flows per service port whose backends are compared.
const FLOWS: u64 = 64;

impl Snapshot {
    /// Compares with a snapshot that is compiled from scratch from this spec. `neighbors` is the table that this
    /// snapshot was compiled with. Takes several times as long as compiling from scratch, and the memory of a second
    /// snapshot. Call it on a thread of low priority.
    ///
    /// `None` if a neighbour table was full: then the parts left out depend on earlier snapshots.
    #[must_use]
    pub fn compare(&self, spec: &SnapshotSpec, neighbors: &NeighborTable) -> Option<Vec<Difference>> {
        let own = NeighborTable::new();
        let (scratch, problems) = match from_scratch(spec, None, &own) {
            Ok(compiled) => compiled,
            Err(error) => {
                let (incremental, from_scratch) = ("a snapshot".to_owned(), format!("an error: {error}"));
                return Some(vec![Difference { part: "compile".to_owned(), incremental, from_scratch }]);
            }
        };
        let known = self.reusable.lineage.problems();
        if known.iter().chain(&problems).any(Problem::is_neighbor_table_full) {
            return None;
        }
        let [one, other] = [Seen { snapshot: self, neighbors }, Seen { snapshot: &scratch, neighbors: &own }];
        let found = [
            difference::of_lists("ports", one.ports(), other.ports()),
            difference::of_lists("endpoints", one.endpoints(), other.endpoints()),
            difference::of_lists("addresses", self.addresses(), scratch.addresses()),
            difference::of_lists("routes", one.routes(spec), other.routes(spec)),
            difference::of_lists("next hops", one.next_hops(), other.next_hops()),
            difference::of_lists("left over", one.left_over(), other.left_over()),
            difference::of(
                "lineage",
                &self.reusable.lineage.basis(spec),
                &scratch.reusable.lineage.basis(spec),
            ),
            difference::of("surroundings", &one.surroundings(), &other.surroundings()),
            difference::of_lists("problems", &known, &problems),
        ];
        Some(found.into_iter().flatten().collect())
    }
}

/// A snapshot with its neighbour table.
#[derive(Clone, Copy)]
struct Seen<'a> {
    snapshot: &'a Snapshot,
    neighbors: &'a NeighborTable,
}

impl<'a> Seen<'a> {
    fn ports(self) -> impl Iterator<Item = impl Debug> {
        self.snapshot.services().map(move |(service, info)| self.port(service, info))
    }

    /// A service port as packets use it, and as it is displayed. Ids and positions are replaced by what they stand for.
    fn port(self, service: &'a Service, info: &'a ServiceInfo) -> impl Debug {
        let snapshot = self.snapshot;
        let (id, vip, protocol, port) = (service.id, service.vip, service.protocol.number(), service.port);
        let found = snapshot.service(Snapshot::hash_service(&vip, protocol, port), &vip, protocol, port);
        let is_found = (found.is_some_and(|found| found.id == id), info.id == id);
        let is_compared = snapshot.compared.contains(&id);
        let requested_ranges = info.source_ranges.as_ref().map(|ranges| ranges.nets());
        let admits = service.source_ranges.checked_sub(1);
        let admits = admits.map(|at| snapshot.source_ranges.get(at).nets());
        let limits = snapshot.limited_service(service).map(|of| {
            let ports: Vec<_> =
                of.ports().iter().map(|id| snapshot.service_info(*id).map(|info| info.key)).collect();
            (of.namespace(), of.name(), of.limits(), ports)
        });
        let backends = info.backends.iter();
        let list: Vec<_> = backends.map(|info| (self.shown(info), self.backend(id, info.id))).collect();
        let selector = &service.selector;
        let choice: Vec<_> = (0..FLOWS).map(|flow| selector.owner(mix(flow)).map(|at| self.at(at))).collect();
        let choices = (self.all_choices(selector), choice);
        let id = ServiceId::new(0, 0);
        let record = Service { id, source_ranges: 0, selector: Selector::default(), ..service.clone() };
        let info = ServiceInfo { id, source_ranges: None, backends: Box::default(), ..info.clone() };
        let more = (snapshot.further_vips(service.id).to_vec(), requested_ranges, admits, limits);
        (info, record, (is_found, is_compared), more, list, choices)
    }

    /// A backend of the service port `service` as packets use it.
    fn backend(self, service: ServiceId, id: BackendId) -> Option<impl Debug + use<>> {
        let backend = *self.snapshot.backend(id)?;
        let Backend { address, endpoint, neighbor, port, .. } = backend;
        let protocol = backend.protocol.number();
        let hash = Snapshot::hash_endpoint(&address, protocol, port);
        let key = self.snapshot.endpoint_key(endpoint);
        let is_direct = key.map(|key| self.snapshot.is_direct_backend(&key));
        // Replies of a `nat` or `fullnat` backend are found by its address.
        let found = self.snapshot.endpoint(hash, &address, protocol, port);
        let links = (backend.service == service, found.map(|found| found == endpoint), key, is_direct);
        let (id, service, endpoint) = (BackendId::new(0, 0), ServiceId::new(0, 0), EndpointId::new(0, 0));
        let record = Backend { id, service, endpoint, neighbor: NeighborId::default(), ..backend };
        Some((record, self.next_hop(neighbor), links))
    }

    /// A backend as it is displayed.
    fn shown(self, info: &BackendInfo) -> impl Debug + use<> {
        let is_endpoint = self.snapshot.backend(info.id).map(|backend| backend.endpoint == info.endpoint);
        (BackendInfo { id: BackendId::new(0, 0), endpoint: EndpointId::new(0, 0), ..*info }, is_endpoint)
    }

    /// The address and port of a backend.
    fn at(self, id: BackendId) -> Option<(Addr, u16)> {
        self.snapshot.backend(id).map(|backend| (backend.address, backend.port))
    }

    /// A hash of all choices of a selector: the owner of each seat, slot or ring position, or the backends whose loads
    /// are compared.
    fn all_choices(self, selector: &Selector) -> u64 {
        let mut hasher = DefaultHasher::new();
        match selector {
            Selector::InFlux(both) => {
                for seats in [&both.present, &both.former] {
                    seats.seats().for_each(|(seat_map, seat, owner)| {
                        (seat_map, seat, self.at(owner)).hash(&mut hasher);
                    });
                }
            }
            Selector::WarmUp(both) => {
                [both.all(), both.warm()].map(|selector| self.all_choices(selector)).hash(&mut hasher);
                both.steps().iter().for_each(|&(id, step)| (self.at(id), step).hash(&mut hasher));
            }
            Selector::Rendezvous(seats) => {
                seats
                    .seats()
                    .for_each(|(seat_map, seat, owner)| (seat_map, seat, self.at(owner)).hash(&mut hasher));
            }
            Selector::Maglev(slots) => {
                slots.owners().iter().for_each(|owner| self.at(*owner).hash(&mut hasher));
                slots.table().hash(&mut hasher);
            }
            Selector::RoundRobin(round_robin) => {
                round_robin.all().for_each(|owner| self.at(owner).hash(&mut hasher));
            }
            Selector::Loads(loaded) => {
                loaded.rule.hash(&mut hasher);
                let members = loaded.members.iter();
                members.for_each(|member| (self.at(member.owner), member.weight).hash(&mut hasher));
            }
        }
        hasher.finish()
    }

    /// Backends and endpoints that an id still finds although no service port has them: flows to a removed backend
    /// would continue.
    fn left_over(self) -> Vec<(Addr, u16)> {
        let infos = self.snapshot.services().flat_map(|(_, info)| &info.backends);
        let listed: HashSet<BackendId> = infos.map(|info| info.id).collect();
        let of_backends = self.snapshot.backends.iter().filter(|backend| !listed.contains(&backend.id));
        let of_backends = of_backends.map(|backend| (backend.address, backend.port));
        let listed: HashSet<EndpointId> = self.snapshot.endpoints.iter().map(|&(_, id)| id).collect();
        let of_endpoints =
            self.snapshot.reusable.generations.endpoints.all().filter_map(|(index, generation)| {
                let id = EndpointId::new(index, generation);
                let key = self.snapshot.endpoint_key(id).filter(|_| !listed.contains(&id))?;
                Some((key.address, key.port))
            });
        of_backends.chain(of_endpoints).collect()
    }

    fn endpoints(self) -> impl Iterator<Item = impl Debug> {
        let endpoints = &self.snapshot.endpoints;
        endpoints.iter().map(|(key, _)| (key, endpoints.known(key).map(|(_, uses)| uses)))
    }

    /// The routes to everything that the spec names.
    fn routes(self, spec: &SnapshotSpec) -> impl Iterator<Item = impl Debug> {
        let networks = spec.network.routes.iter().flat_map(|route| [route.to.network(), route.via]);
        let links = spec.network.interfaces.iter().flat_map(|interface| &interface.addresses);
        let links = links.flat_map(|net| [net.network(), net.broadcast()]);
        let backends = spec.services.iter().flat_map(|service| &service.backends).map(|b| b.address);
        networks.chain(links).chain(backends).map(move |address: IpAddr| {
            let address = Addr::from(address);
            let hop = self.snapshot.route(&address);
            let hop = hop.map(|NextHop { interface, via, neighbor }| {
                (interface, via, neighbor.map(|id| self.next_hop(id)))
            });
            (address, hop, self.snapshot.source_fault(&address))
        })
    }

    fn next_hops(self) -> Vec<impl Debug> {
        let mut hops: Vec<_> = self.snapshot.next_hops().into_iter().map(|id| self.next_hop(id)).collect();
        hops.sort_unstable();
        hops
    }

    fn next_hop(self, id: NeighborId) -> Option<(InterfaceIndex, Addr)> {
        self.neighbors.key(id)
    }

    fn surroundings(self) -> impl Debug {
        let snapshot = self.snapshot;
        let routers: Vec<_> = snapshot.default_routers().iter().map(|id| self.next_hop(*id)).collect();
        let mut fixed: Vec<_> =
            snapshot.reusable.static_neighbors.iter().map(|id| self.next_hop(*id)).collect();
        fixed.sort_unstable();
        let sources = [Family::V4, Family::V6]
            .map(|family| (snapshot.snat_addresses(family), snapshot.tunnel_source(family)));
        let sources = (sources, snapshot.tunnel_peers());
        let protection = (snapshot.source_lists(), snapshot.source_rate());
        let network = (&snapshot.network.interfaces, sources, routers, fixed);
        (snapshot.generation, network, &snapshot.policy, protection)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::service::Services;
    use tidegate_spec::testing as lab;
    use tidegate_spec::{
        BackendSpec, BackendState, ForwardingMode, Protocol, Scheduler, ServiceSpec, SharedService,
    };

    fn backend(host: u8) -> BackendSpec {
        let address = format!("10.0.0.{host}").parse().expect("an address");
        BackendSpec { address, port: 80, weight: 1, state: BackendState::Active }
    }

    fn service(vip: &str, hosts: &[u8]) -> SharedService {
        let service = lab::service(ForwardingMode::FullNat, Protocol::Tcp, vip, &[]);
        ServiceSpec { backends: hosts.iter().map(|host| backend(*host)).collect(), ..service }.into()
    }

    /// A copy with another record and info of a service.
    fn again(services: &Services, one: (Service, ServiceInfo)) -> Services {
        services.revised(services.by_key().len(), &[], vec![one], Arc::clone(services.by_key()))
    }

    fn spec(generation: u64, hosts: &[u8]) -> SnapshotSpec {
        let services = vec![service("203.0.113.1:80", hosts), service("203.0.113.2:80", &[11, 12])];
        SnapshotSpec { generation, services, ..lab::spec() }
    }

    #[test]
    fn a_snapshot_that_lags_behind_its_spec_differs_by_the_port_that_does() {
        let neighbors = NeighborTable::with_capacity(64);
        let (first, _) = Snapshot::compile(&spec(1, &[11]), None, &neighbors).expect("it compiles");
        let (revised, _) =
            Snapshot::compile(&spec(2, &[13, 12]), Some(&first), &neighbors).expect("it compiles");
        assert_eq!(revised.compare(&spec(2, &[13, 12]), &neighbors), Some(Vec::new()));
        // The order doesn't affect packets, but the next revision would treat it as a change.
        let found = revised.compare(&spec(2, &[12, 13]), &neighbors).expect("the table is not full");
        assert_eq!(found.iter().map(|one| &*one.part).collect::<Vec<_>>(), ["lineage"]);
        let found = revised.compare(&spec(2, &[12, 14]), &neighbors).expect("the table is not full");
        let port = found.iter().find(|one| one.part == "ports[0]").expect("the first port differs");
        assert!(
            port.incremental.contains("10.0.0.13") && !port.from_scratch.contains("10.0.0.13"),
            "{port:?}"
        );
        assert!(found.iter().all(|one| one.part != "ports[1]"), "{found:?}");
    }

    #[test]
    fn a_stale_part_of_a_revision_is_found() {
        let neighbors = NeighborTable::with_capacity(64);
        let (first, _) = Snapshot::compile(&spec(1, &[11]), None, &neighbors).expect("it compiles");
        let next = spec(2, &[11, 12]);
        let revise = || Snapshot::compile(&next, Some(&first), &neighbors).expect("it compiles").0;
        let stale = |spoil: &dyn Fn(&mut Snapshot)| {
            let mut snapshot = revise();
            spoil(&mut snapshot);
            let found = snapshot.compare(&next, &neighbors).expect("the table is not full");
            found.into_iter().map(|one| one.part).collect::<Vec<_>>()
        };
        assert_eq!(stale(&|_| ()), Vec::<String>::new());
        let list = stale(&|snapshot| {
            let (record, before) = first.services().next().expect("the first service port");
            snapshot.services = again(&snapshot.services, (record.clone(), before.clone()));
        });
        assert!(list.contains(&"ports[0]".to_owned()), "{list:?}");
        let endpoints = stale(&|snapshot| {
            let old = Snapshot::compile(&spec(1, &[11]), None, &neighbors).expect("it compiles").0;
            snapshot.endpoints = old.endpoints;
        });
        // The second spec has one backend more.
        assert!(endpoints.contains(&"endpoints[1]".to_owned()), "{endpoints:?}");
        assert_eq!(stale(&|snapshot| snapshot.network.snat_v4 = Arc::default()), ["surroundings"]);
        let before = stale(&|snapshot| {
            let old = Snapshot::compile(&spec(1, &[11]), None, &neighbors).expect("it compiles").0;
            snapshot.reusable.lineage = old.reusable.lineage;
        });
        assert_eq!(before, ["lineage"], "the next revision would start from the previous spec");
    }

    #[test]
    fn a_stale_selector_of_a_revision_is_found() {
        for scheduler in [Scheduler::Rendezvous, Scheduler::Maglev { slots: 1_009 }] {
            let of = |generation, hosts: &[u8]| {
                let mut spec = spec(generation, hosts);
                spec.services.iter_mut().for_each(|service| service.scheduler = scheduler);
                spec
            };
            let neighbors = NeighborTable::with_capacity(64);
            // With one backend more, and with a different one at the same position.
            for (before, after) in [(&[11][..], &[11, 12][..]), (&[11, 12], &[11, 13])] {
                let (first, _) = Snapshot::compile(&of(1, before), None, &neighbors).expect("it compiles");
                let next = of(2, after);
                let (mut revised, _) =
                    Snapshot::compile(&next, Some(&first), &neighbors).expect("it compiles");
                assert_eq!(revised.compare(&next, &neighbors), Some(Vec::new()), "{scheduler:?}");
                let (record, info) = revised.services().next().expect("the first service port");
                let selector = first.services().next().expect("the first service port").0.selector.clone();
                let stale = (Service { selector, ..record.clone() }, info.clone());
                revised.services = again(&revised.services, stale);
                let found = revised.compare(&next, &neighbors).expect("the table is not full");
                let parts: Vec<_> = found.iter().map(|one| one.part.as_str()).collect();
                assert_eq!(parts, ["ports[0]"], "{scheduler:?}");
            }
        }
    }

    #[test]
    fn a_removed_backend_that_its_id_still_finds_is_left_over() {
        let neighbors = NeighborTable::with_capacity(64);
        let compile = || Snapshot::compile(&spec(1, &[11, 13]), None, &neighbors).expect("it compiles").0;
        let next = spec(2, &[11]);
        let (mut revised, _) = Snapshot::compile(&next, Some(&compile()), &neighbors).expect("it compiles");
        assert_eq!(revised.compare(&next, &neighbors), Some(Vec::new()));
        // Flows to the removed backend would continue.
        revised.backends = compile().backends;
        let found = revised.compare(&next, &neighbors).expect("the table is not full");
        let left = found.iter().find(|one| one.part == "left over[0]").expect("it is left over");
        assert!(left.incremental.contains("10.0.0.13") && left.from_scratch == "None", "{left:?}");
    }

    #[test]
    fn a_comparison_does_not_change_the_neighbour_table() {
        let neighbors = NeighborTable::with_capacity(64);
        let (snapshot, _) = Snapshot::compile(&spec(1, &[11, 12]), None, &neighbors).expect("it compiles");
        let before = neighbors.len();
        let mut other = spec(1, &[11, 12, 13, 14]);
        other.network.neighbors.clear();
        assert!(snapshot.compare(&other, &neighbors).is_some_and(|found| !found.is_empty()));
        assert_eq!(neighbors.len(), before);
    }
}
