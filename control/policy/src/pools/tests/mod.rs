//! Tests of the assignment of addresses (`docs/kubernetes.md`, sections 6 and 7).

mod history;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate_model::objects::{
    IpFamilyPolicy, Labels, Metadata, Port, Protocol, Service, ServicePort, ServiceType, TargetPort,
};

use super::*;

fn ip(s: &str) -> IpAddr {
    s.parse().expect("tests use valid addresses")
}

fn pool(name: &str, networks: &[&str]) -> Pool {
    Pool::new(name, networks.iter().map(|n| n.parse::<ipnet::IpNet>().expect("a network").into()).collect())
}

/// A Service of type LoadBalancer with port 80/TCP.
fn service(namespace: &str, name: &str) -> Service {
    let mut service = Service::new(Metadata::new(ObjectKey::new(namespace, name)));
    service.service_type = ServiceType::LoadBalancer;
    service.ports = vec![service_port(80, Protocol::Tcp)];
    service
}

fn service_port(number: u16, protocol: Protocol) -> ServicePort {
    let port = Port::new(number).expect("tests use ports above zero");
    let name = format!("p{number}");
    ServicePort {
        name,
        protocol,
        app_protocol: None,
        port,
        target_port: TargetPort::Number(port),
        node_port: None,
        routed: None,
    }
}

fn created(mut service: Service, second: i64) -> Service {
    service.meta.creation_time = Some(jiff::Timestamp::from_second(second).expect("a time"));
    service
}

fn applicant(service: &Service) -> Applicant<'_> {
    Applicant {
        service,
        namespace_labels: Labels::from([(
            "kubernetes.io/metadata.name".into(),
            service.meta.key.namespace.clone(),
        )]),
        wants_load_balancer: service.service_type == ServiceType::LoadBalancer,
        releasing: false,
        requested: vec![],
        pool: None,
        sharing_key: None,
        previous: PreviousAddresses::default(),
    }
}

fn requesting<'a>(service: &'a Service, address: &str) -> Applicant<'a> {
    Applicant { requested: vec![(ip(address), "spec.loadBalancerIP".into())], ..applicant(service) }
}

/// The result of an allocator.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Allocated {
    granted: BTreeMap<ObjectKey, Granted>,
    allocations: Allocations,
    usage: Vec<PoolUsage>,
}

impl Allocated {
    fn of(allocator: &Allocator) -> Self {
        Self {
            granted: BTreeMap::clone(allocator.granted()),
            allocations: Allocations::clone(allocator.allocations()),
            usage: allocator.usage(),
        }
    }
}

/// Allocates for all Services at once, with only the state in these arguments.
fn allocate(
    pools: &[Pool],
    reserved: &BTreeMap<IpAddr, ReservedBy>,
    applicants: &[Applicant<'_>],
    previous: &Allocations,
    authority: &Authority,
) -> Allocated {
    let allocator = Allocator::new(pools.to_vec(), reserved.clone(), authority.clone());
    let mut allocator = allocator.resuming(&Arc::new(previous.clone()));
    let by_key: BTreeMap<&ObjectKey, &Applicant<'_>> =
        applicants.iter().map(|a| (&a.service.meta.key, a)).collect();
    let keys = applicants.iter().map(|a| a.service.meta.key.clone());
    let all = keys.chain(previous.by_service.keys().cloned());
    allocator.update(all, |key, remembered| {
        let previous = |a: &Applicant<'_>| adopted(a.service, remembered, authority);
        by_key.get(key).map(|a| Applicant { previous: previous(a), ..Applicant::clone(a) })
    });
    Allocated::of(&allocator)
}

fn run(pools: &[Pool], applicants: &[Applicant<'_>]) -> Allocated {
    allocate(pools, &BTreeMap::new(), applicants, &Allocations::default(), &Authority::default())
}

fn addresses(allocated: &Allocated, namespace: &str, name: &str) -> Vec<IpAddr> {
    let granted = &allocated.granted[&ObjectKey::new(namespace, name)];
    granted.load_balancer.iter().map(|a| a.address).collect()
}

fn problems(allocated: &Allocated, name: &str) -> Vec<Problem> {
    allocated.granted[&ObjectKey::new("default", name)].problems.list().to_vec()
}

#[test]
fn a_pool_of_sixteen_assigns_every_address_and_is_then_full() {
    let services: Vec<Service> = (0..17).map(|i| created(service("default", &format!("s{i}")), i)).collect();
    let applicants: Vec<_> = services.iter().map(applicant).collect();
    let allocated = run(&[pool("public", &["203.0.113.0/28"])], &applicants);
    let given: BTreeSet<IpAddr> =
        allocated.granted.values().flat_map(|g| &g.load_balancer).map(|a| a.address).collect();
    assert_eq!(given.len(), 16);
    assert!(given.contains(&ip("203.0.113.0")) && given.contains(&ip("203.0.113.15")));
    let last = &problems(&allocated, "s16")[0];
    assert_eq!(last.what, "Service default/s16 waits for an address: no IPv4 address: pool public is full");
    assert_eq!((last.kind, last.field.as_str()), (ProblemKind::AllocationFailed, "spec.type"));
    assert_eq!(allocated.usage[0].free(), 0);
}

#[test]
fn requested_addresses_are_assigned_before_any_is_chosen() {
    let (early, late) = (created(service("default", "early"), 1), created(service("default", "late"), 2));
    let pools = [pool("one", &["203.0.113.7/32"])];
    let allocated = run(&pools, &[applicant(&early), requesting(&late, "203.0.113.7")]);
    assert_eq!(addresses(&allocated, "default", "late"), [ip("203.0.113.7")]);
    assert!(allocated.granted[&early.meta.key].pending.is_some());
}

#[test]
fn a_port_of_a_listener_set_decides_no_address() {
    let pools = [pool("two", &["203.0.113.6/31"])];
    let taking_81 = |time| {
        let mut web = created(service("default", "web"), time);
        web.ports = vec![service_port(81, Protocol::Tcp)];
        web
    };
    let mut edge = created(service("default", "edge"), 2);
    edge.ports = vec![service_port(80, Protocol::Tcp), service_port(81, Protocol::Tcp)];
    edge.added_ports = 1;
    fn keyed(applicant: Applicant<'_>) -> Applicant<'_> {
        Applicant { sharing_key: Some("k".into()), ..applicant }
    }
    let contested = |allocated: &Allocated| allocated.granted[&edge.meta.key].contested.clone();
    let lost = BTreeSet::from([(ip("203.0.113.7"), (Protocol::Tcp, 81))]);
    for time in [1, 3] {
        let web = taking_81(time);
        let keyed_web = keyed(requesting(&web, "203.0.113.7"));
        for edge in [applicant(&edge), requesting(&edge, "203.0.113.7")] {
            let edge = || keyed(edge.clone());
            let allocated = run(&pools, &[keyed_web.clone(), edge()]);
            for name in ["web", "edge"] {
                assert_eq!(addresses(&allocated, "default", name), [ip("203.0.113.7")], "{name} at {time}");
            }
            assert_eq!(contested(&allocated), lost);
            let refused = problems(&allocated, "edge");
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert!(refused[0].what.contains("TCP port 81 belongs to Service default/web"), "{refused:?}");
            // Next time, and when the port is free.
            let again = allocate(
                &pools,
                &BTreeMap::new(),
                &[keyed_web.clone(), edge()],
                &allocated.allocations,
                &Authority::default(),
            );
            assert_eq!(again.granted, allocated.granted);
            let alone =
                allocate(&pools, &BTreeMap::new(), &[edge()], &allocated.allocations, &Authority::default());
            assert_eq!(contested(&alone), BTreeSet::new());
        }
    }
}

#[test]
fn a_gateway_keeps_its_address_when_its_only_port_moves_to_a_taken_one() {
    let pools = [pool("one", &["203.0.113.7/32"])];
    let web = created(service("default", "web"), 1);
    let edge = |port: u16| {
        let mut edge = created(service("default", "edge"), 2);
        edge.ports = vec![service_port(port, Protocol::Tcp)];
        edge.added_ports = 1;
        edge
    };
    let keyed = |service| Applicant { sharing_key: Some("k".into()), ..applicant(service) };
    let (before, after) = (edge(81), edge(80));
    let first = run(&pools, &[keyed(&web), keyed(&before)]);
    let both = [keyed(&web), keyed(&after)];
    let then = allocate(&pools, &BTreeMap::new(), &both, &first.allocations, &Authority::default());
    assert_eq!(addresses(&then, "default", "edge"), [ip("203.0.113.7")]);
    assert_eq!(then.granted[&after.meta.key].contested.len(), 1);
}

#[test]
fn refused_requests_name_the_reason_and_what_would_be_granted() {
    let web = service("default", "web");
    let mut internal = pool("internal", &["198.51.100.0/29"]);
    internal.service_selector.match_labels.insert("scope".into(), "internal".into());
    let mut closed = pool("closed", &["198.51.100.8/29"]);
    closed.disabled = true;
    let pools = [pool("public", &["203.0.113.0/28"]), internal, closed];
    let reserved = BTreeMap::from([(ip("203.0.113.1"), ReservedBy::Gateway)]);
    for (address, why, accepted) in [
        ("192.0.2.1", "the address is in no pool", "public (203.0.113.0-203.0.113.15); "),
        ("198.51.100.1", "the selectors of pool internal do not match", "whose selectors match this Service"),
        ("198.51.100.9", "pool closed is disabled", "not disabled"),
        ("203.0.113.1", "an address of the gateway itself", "a free address"),
        ("2001:db8::1", "the address is in no pool", "public"),
    ] {
        let allocated = allocate(
            &pools,
            &reserved,
            &[requesting(&web, address)],
            &Allocations::default(),
            &Authority::default(),
        );
        let problem = &problems(&allocated, "web")[0];
        assert!(problem.what.contains(why), "{}", problem.what);
        assert!(problem.accepted.as_ref().is_some_and(|a| a.contains(accepted)), "{:?}", problem.accepted);
        assert_eq!(problem.field, "spec.loadBalancerIP");
        assert_eq!(addresses(&allocated, "default", "web"), [] as [IpAddr; 0], "no other address instead");
    }
}

#[test]
fn a_named_pool_is_the_only_one_used_and_need_not_be_automatic() {
    let web = service("default", "web");
    let mut named = pool("named", &["198.51.100.0/29"]);
    named.auto_assign = false;
    let pools = [pool("public", &["203.0.113.0/28"]), named];
    let of = |name: &str| Applicant {
        pool: Some(PoolRequest {
            wanted: RequestedPool::Named(name.into()),
            field: "metadata.annotations[tidegate.dev/address-pool]".into(),
        }),
        ..applicant(&web)
    };
    let allocated = run(&pools, &[of("named")]);
    assert_eq!(allocated.granted[&web.meta.key].load_balancer[0].pool, "named");
    let problem = &problems(&run(&pools, &[of("nmaed")]), "web")[0];
    assert!(problem.what.contains("\"nmaed\", which is not configured"));
    assert_eq!(problem.accepted.as_deref(), Some("public, named"));
}

#[test]
fn a_changed_request_releases_the_old_address() {
    let web = service("default", "web");
    let pools = [pool("public", &["203.0.113.0/28"])];
    let first = run(&pools, &[requesting(&web, "203.0.113.3")]);
    let then = allocate(
        &pools,
        &BTreeMap::new(),
        &[requesting(&web, "203.0.113.4")],
        &first.allocations,
        &Authority::default(),
    );
    assert_eq!(addresses(&then, "default", "web"), [ip("203.0.113.4")]);
    assert_eq!(then.usage[0].assigned, 1);
}

#[test]
fn a_large_ipv6_pool_is_as_fast_as_a_small_one() {
    let services: Vec<Service> = (0..500).map(|i| service("default", &format!("s{i}"))).collect();
    let applicants: Vec<_> = services.iter().map(applicant).collect();
    let allocated = run(&[pool("wide", &["2001:db8::/32"])], &applicants);
    assert!(allocated.granted.values().all(|g| g.load_balancer.len() == 1));
}

#[test]
fn without_previous_addresses_a_new_service_moves_few_others() {
    let services: Vec<Service> = (0..40).map(|i| service("default", &format!("s{i}"))).collect();
    let pools = [pool("public", &["203.0.113.0/24"])];
    let all: Vec<_> = services.iter().map(applicant).collect();
    let before = run(&pools, &all[1..]);
    let after = run(&pools, &all);
    let moved =
        before.granted.iter().filter(|(k, g)| after.granted[*k].load_balancer != g.load_balancer).count();
    assert!(moved <= 1, "{moved} moved");
}

proptest! {
    #[test]
    fn the_order_of_applicants_has_no_effect(
        seed in proptest::collection::vec((0_u8..3, 0_u8..4, any::<bool>(), 0_i64..3), 1..20),
        shuffle in any::<u64>(),
    ) {
        let mut edge = pool("edge", &["203.0.113.0/28", "2001:db8::/125"]);
        edge.external_ips = true;
        edge.quota_per_namespace = Some(6);
        let services: Vec<(Service, bool)> = seed.iter().enumerate().map(|(i, (namespace, at, keyed, time))| {
            let mut s = service(&format!("n{namespace}"), &format!("s{i}"));
            if *time > 0 { s = created(s, *time); }
            s.ports = vec![service_port(80 + u16::from(*at), Protocol::Tcp)];
            if *at == 3 { s.external_ips = vec![ip("203.0.113.5")]; }
            if *at == 2 { s.ip_family_policy = IpFamilyPolicy::RequireDualStack; }
            (s, *keyed)
        }).collect();
        let mut applicants: Vec<Applicant<'_>> = services.iter().map(|(s, keyed)| Applicant {
            sharing_key: keyed.then(|| "k".to_owned()),
            requested: if s.ports[0].port.get() == 81 { vec![(ip("203.0.113.6"), "f".into())] } else { vec![] },
            ..applicant(s)
        }).collect();
        let pools = [edge];
        let one = run(&pools, &applicants);
        let mut state = shuffle;
        applicants.sort_by_key(|_| { state = state.wrapping_mul(6364136223846793005).wrapping_add(1); state });
        prop_assert_eq!(&one, &run(&pools, &applicants));

        // No frontend has two owners, and a second call with the memory of the first changes nothing.
        let mut owners: BTreeMap<(IpAddr, Protocol, u16), &ObjectKey> = BTreeMap::new();
        for (key, granted) in &one.granted {
            let service = &services.iter().find(|(s, _)| s.meta.key == *key).expect("an applicant").0;
            let port = (service.ports[0].protocol, service.ports[0].port.get());
            let mut owned: BTreeSet<IpAddr> = granted.load_balancer.iter().map(|a| a.address).collect();
            owned.extend(granted.external.iter().filter(|(_, p)| p.contains(&port)).map(|(a, _)| a.address));
            for address in owned {
                prop_assert!(owners.insert((address, port.0, port.1), key).is_none(), "{} has two owners", address);
            }
        }
        let again = allocate(&pools, &BTreeMap::new(), &applicants, &one.allocations, &Authority::default());
        prop_assert_eq!(one.allocations, again.allocations);
    }
}

#[test]
fn a_follower_assigns_nothing_and_keeps_the_addresses_in_the_status() {
    let (previous, new) = (service("default", "had"), service("default", "new"));
    let previous = Service { ingress_ips: vec![ip("203.0.113.4")], ..previous };
    let applicants = [applicant(&previous), requesting(&new, "203.0.113.5")];
    let pools = [pool("public", &["203.0.113.0/28"])];
    let follows = Authority::Follows;
    let allocated = allocate(&pools, &BTreeMap::new(), &applicants, &Allocations::default(), &follows);
    assert_eq!(addresses(&allocated, "default", "had"), [ip("203.0.113.4")]);
    assert_eq!(addresses(&allocated, "default", "new"), [] as [IpAddr; 0]);
    let pending = allocated.granted[&ObjectKey::new("default", "new")].pending.clone();
    assert_eq!(pending.as_deref(), Some("Service default/new waits for the leader to assign an address"));
    assert_eq!(problems(&allocated, "new"), [], "that is not a fault of the Service");
}

#[test]
fn a_released_address_is_not_assigned_until_no_gateway_serves_it() {
    let old = Service { ingress_ips: vec![ip("203.0.113.7")], ..service("default", "old") };
    let new = created(service("default", "new"), 9);
    let pools = [pool("one", &["203.0.113.7/32"])];
    let releasing = Applicant { wants_load_balancer: false, releasing: true, ..applicant(&old) };
    let allocated = run(&pools, &[releasing, applicant(&new)]);
    assert_eq!(addresses(&allocated, "default", "old"), [] as [IpAddr; 0]);
    assert_eq!(addresses(&allocated, "default", "new"), [] as [IpAddr; 0]);
    assert_eq!(allocated.usage[0].free(), 0);
    let remembered = &allocated.allocations.by_service[&ObjectKey::new("default", "old")];
    assert_eq!(remembered.addresses[0].address, ip("203.0.113.7"));
    assert_eq!(addresses(&run(&pools, &[applicant(&new)]), "default", "new"), [ip("203.0.113.7")]);
}

#[test]
fn an_address_that_another_gateway_still_serves_is_not_assigned() {
    let web = service("default", "web");
    let pools = [pool("two", &["203.0.113.6/31"])];
    let authority = Authority::Decides { withheld: BTreeSet::from([ip("203.0.113.6")]) };
    let none = (BTreeMap::new(), Allocations::default());
    let chosen = allocate(&pools, &none.0, &[applicant(&web)], &none.1, &authority);
    assert_eq!(addresses(&chosen, "default", "web"), [ip("203.0.113.7")]);
    let requested = allocate(&pools, &none.0, &[requesting(&web, "203.0.113.6")], &none.1, &authority);
    assert_eq!(addresses(&requested, "default", "web"), [] as [IpAddr; 0]);
    assert_eq!(problems(&requested, "web"), [], "that is not a fault of the Service");
    let pending = requested.granted[&web.meta.key].pending.as_deref();
    assert!(pending.is_some_and(|why| why.contains("withdraw")), "{pending:?}");
    let waits = allocate(&pools, &none.0, &[applicant(&web)], &none.1, &Authority::Waits);
    assert_eq!((addresses(&waits, "default", "web"), problems(&waits, "web")), (vec![], vec![]));
}

/// The memory after each of these Services, one after another, had the only address and was removed.
fn after_having_had(services: &[&Service], pools: &[Pool]) -> Allocations {
    services.iter().fold(Allocations::default(), |previous, service| {
        let at = |applicants: &[Applicant<'_>], previous: &Allocations| {
            allocate(pools, &BTreeMap::new(), applicants, previous, &Authority::default()).allocations
        };
        at(&[], &at(&[applicant(service)], &previous))
    })
}

#[test]
fn a_returning_service_gets_its_address_while_others_withdraw_it() {
    let (web, db) = (service("default", "web"), service("default", "db"));
    let pools = [pool("one", &["203.0.113.6/32"])];
    let withheld = Authority::Decides { withheld: BTreeSet::from([ip("203.0.113.6")]) };
    let again = |previous: &Allocations, applicants: &[Applicant<'_>], name: &str| {
        addresses(&allocate(&pools, &BTreeMap::new(), applicants, previous, &withheld), "default", name)
    };
    let none: [IpAddr; 0] = [];
    let previous = after_having_had(&[&web], &pools);
    for (web, db) in
        [(applicant(&web), applicant(&db)), (requesting(&web, "203.0.113.6"), requesting(&db, "203.0.113.6"))]
    {
        assert_eq!(again(&previous, &[web], "web"), [ip("203.0.113.6")]);
        assert_eq!(again(&previous, &[db], "db"), none, "gateways still serve it for web");
    }
    // Another Service had it in between, so gateways may still serve it for that Service.
    let previous = after_having_had(&[&web, &db], &pools);
    assert_eq!(again(&previous, &[applicant(&web)], "web"), none);
    assert_eq!(again(&previous, &[applicant(&db)], "db"), [ip("203.0.113.6")]);
}

#[test]
fn a_service_that_left_a_shared_address_gets_it_back_only_if_free() {
    let web = service("default", "web");
    let ports = vec![service_port(81, Protocol::Tcp)];
    let db = Service { ports, ..service("default", "db") };
    let sharing = |service| Applicant { sharing_key: Some("k".into()), ..applicant(service) };
    let pools = [pool("one", &["203.0.113.6/32"])];
    let step = |applicants: &[Applicant<'_>], previous: &Allocations, authority: &Authority| {
        allocate(&pools, &BTreeMap::new(), applicants, previous, authority)
    };
    let decides = Authority::default();
    let both = step(&[sharing(&web), sharing(&db)], &Allocations::default(), &decides).allocations;
    let one = step(&[sharing(&db)], &both, &decides).allocations;
    let neither = step(&[], &one, &decides).allocations;
    let withheld = Authority::Decides { withheld: BTreeSet::from([ip("203.0.113.6")]) };
    let returned = step(&[sharing(&web)], &neither, &withheld);
    assert_eq!(addresses(&returned, "default", "web"), [] as [IpAddr; 0], "db had it last");
}

#[test]
fn an_address_stays_reserved_until_the_status_of_its_loser_changes() {
    let web = service("default", "web");
    let mut old = Service { ingress_ips: vec![ip("203.0.113.6")], ..service("default", "old") };
    old.stored.ingress_managers = vec![FIELD_MANAGER.to_owned()];
    let pools = [pool("two", &["203.0.113.6/31"])];
    let moved = run(&pools, &[requesting(&old, "203.0.113.7"), requesting(&web, "203.0.113.6")]);
    assert_eq!(addresses(&moved, "default", "old"), [ip("203.0.113.7")]);
    assert_eq!(addresses(&moved, "default", "web"), [] as [IpAddr; 0]);
    old.ingress_ips = vec![ip("203.0.113.7")];
    let written = run(&pools, &[requesting(&old, "203.0.113.7"), requesting(&web, "203.0.113.6")]);
    assert_eq!(addresses(&written, "default", "web"), [ip("203.0.113.6")]);
}

/// Counts the searches of pools with very many Services of one namespace: when all are created, when one of another
/// namespace is created, and when the first one is deleted. Also returns how many have an address at the end.
fn searches_for_many(pool: Pool) -> ([usize; 3], usize) {
    const MANY: usize = 1_000;
    let mut services: BTreeMap<ObjectKey, Service> = (0..MANY)
        .map(|n| created(service("many", &format!("s{n}")), i64::try_from(n).expect("a small number")))
        .map(|service| (service.meta.key.clone(), service))
        .collect();
    let mut allocator = Allocator::new(vec![pool], BTreeMap::new(), Authority::default());
    let mut searches = Vec::new();
    let mut update = |services: &BTreeMap<ObjectKey, Service>, changed: Vec<ObjectKey>| {
        let before = allocator.searches();
        allocator.update(changed, |key, previous| {
            let applicant = applicant(services.get(key)?);
            Some(Applicant {
                previous: adopted(applicant.service, previous, &Authority::default()),
                ..applicant
            })
        });
        searches.push(allocator.searches() - before);
        allocator.granted().values().filter(|granted| !granted.load_balancer.is_empty()).count()
    };
    update(&services, services.keys().cloned().collect());
    let other = created(service("other", "web"), 2_000);
    services.insert(other.meta.key.clone(), other.clone());
    update(&services, vec![other.meta.key]);
    let first = ObjectKey::new("many", "s0");
    services.remove(&first);
    update(&services, vec![first.clone()]);
    let served = update(&services, vec![first]);
    (searches[..3].try_into().expect("there are that many"), served)
}

#[test]
fn a_full_pool_is_not_searched_for_each_waiting_service() {
    let (searches, served) = searches_for_many(pool("public", &["203.0.113.0/28"]));
    assert!(searches[0] <= 17 && searches[1..].iter().all(|n| *n <= 2), "{searches:?}");
    assert_eq!(served, 16, "released addresses are assigned again");
}

#[test]
fn no_pool_is_searched_for_services_beyond_their_quota() {
    let pool = Pool { quota_per_namespace: Some(3), ..pool("public", &["203.0.113.0/24"]) };
    let (searches, served) = searches_for_many(pool);
    assert!(searches[0] <= 3 && searches[1..].iter().all(|n| *n <= 1), "{searches:?}");
    assert_eq!(served, 4);
}

#[test]
fn only_the_first_of_many_refused_requests_are_described() {
    let mut service = service("default", "web");
    service.service_type = ServiceType::ClusterIp;
    service.external_ips =
        (0..10_000_u32).map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).into()).collect();
    let allocated = run(&[pool("public", &["203.0.113.0/28"])], &[applicant(&service)]);
    let problems = &allocated.granted[&ObjectKey::new("default", "web")].problems;
    assert_eq!(problems.list().len(), DESCRIBED_MAX);
    assert_eq!(problems.list()[31].field, "spec.externalIPs[31]");
    let not_described: Vec<_> = problems.not_described().collect();
    assert_eq!(not_described, [(ProblemKind::ExternalIpDenied, 10_000 - DESCRIBED_MAX, Severity::Error)]);
}
