//! Property: an allocator that saw Services created, changed and deleted has the same result as a new one.

use super::*;

/// The requests of a Service. The numbers are small, so that requests collide.
#[derive(Debug, Clone)]
struct Wants {
    /// Decides the port, and whether it has an external IP.
    at: u8,
    created: i64,
    policy: IpFamilyPolicy,
    requested: Option<u8>,
    ingress: Option<u8>,
    key: Option<bool>,
    role: Role,
    edge: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    LoadBalancer,
    ExternalOnly,
    Leaving,
}

#[derive(Debug, Clone)]
enum Step {
    Put(u8, Wants),
    Remove(u8),
    /// Sets the addresses of nodes.
    Nodes(BTreeSet<u8>),
    Withhold(BTreeSet<u8>),
    Follow(bool),
}

fn wants() -> impl Strategy<Value = Wants> {
    let policy = prop_oneof![
        3 => Just(IpFamilyPolicy::SingleStack),
        1 => Just(IpFamilyPolicy::PreferDualStack),
        1 => Just(IpFamilyPolicy::RequireDualStack),
    ];
    let role = prop_oneof![
        6 => Just(Role::LoadBalancer),
        1 => Just(Role::ExternalOnly),
        1 => Just(Role::Leaving),
    ];
    let address = || proptest::option::weighted(0.25, 0_u8..9);
    (
        0_u8..4,
        0_i64..4,
        policy,
        address(),
        address(),
        proptest::option::of(any::<bool>()),
        role,
        any::<bool>(),
    )
        .prop_map(|(at, created, policy, requested, ingress, key, role, edge)| Wants {
            at,
            created,
            policy,
            requested,
            ingress,
            key,
            role,
            edge,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let addresses = || proptest::collection::btree_set(0_u8..9, 0..3);
    prop_oneof![
        8 => (0_u8..12, wants()).prop_map(|(n, wants)| Step::Put(n, wants)),
        3 => (0_u8..12).prop_map(Step::Remove),
        1 => addresses().prop_map(Step::Nodes),
        1 => addresses().prop_map(Step::Withhold),
        1 => any::<bool>().prop_map(Step::Follow),
    ]
}

/// Ten addresses of IPv4, four of them also in the pool `edge`, and six of IPv6.
fn pools(quota: Option<u32>) -> Vec<Pool> {
    let mut public = pool("public", &["203.0.113.0/29", "2001:db8::/125"]);
    public.quota_per_namespace = quota;
    let mut edge = pool("edge", &["203.0.113.4/30", "203.0.113.8/31"]);
    edge.external_ips = true;
    edge.shared_across_namespaces = true;
    edge.auto_assign = false;
    vec![public, edge]
}

fn address(n: u8) -> IpAddr {
    ip(&format!("203.0.113.{n}"))
}

fn key(n: u8) -> ObjectKey {
    ObjectKey::new(format!("n{}", n % 3), format!("s{n}"))
}

fn made(n: u8, wants: &Wants) -> Service {
    let ObjectKey { namespace, name } = key(n);
    let mut made = service(&namespace, &name);
    if wants.created > 0 {
        made = created(made, wants.created);
    }
    made.ports = vec![service_port(80 + u16::from(wants.at % 2), Protocol::Tcp)];
    if wants.at == 2 {
        made.ports.push(service_port(81, Protocol::Tcp));
        made.added_ports = 1;
    }
    made.ip_family_policy = wants.policy;
    made.ingress_ips = wants.ingress.iter().map(|n| address(*n)).collect();
    if wants.at == 3 || wants.role == Role::ExternalOnly {
        made.external_ips = vec![address(4 + wants.at), address(1)];
    }
    made
}

struct World {
    wants: BTreeMap<ObjectKey, (Service, Wants)>,
    reserved: BTreeMap<IpAddr, ReservedBy>,
    authority: Authority,
}

impl World {
    fn applicant(&self, key: &ObjectKey, remembered: Option<&Holdings>) -> Option<Applicant<'_>> {
        let (service, wants) = self.wants.get(key)?;
        let requested = wants.requested.filter(|_| wants.role == Role::LoadBalancer);
        Some(Applicant {
            wants_load_balancer: wants.role == Role::LoadBalancer,
            releasing: wants.role == Role::Leaving,
            requested: requested.iter().map(|n| (address(*n), "spec.loadBalancerIP".into())).collect(),
            pool: wants
                .edge
                .then(|| PoolRequest { wanted: RequestedPool::Named("edge".into()), field: "f".into() }),
            sharing_key: wants.key.map(|key| format!("k{key}")),
            previous: adopted(service, remembered, &self.authority),
            ..applicant(service)
        })
    }

    /// Performs a step and returns the changed Services.
    fn take(&mut self, step: &Step) -> Option<ObjectKey> {
        match step {
            Step::Put(n, wants) => {
                self.wants.insert(key(*n), (made(*n, wants), wants.clone()));
                return Some(key(*n));
            }
            Step::Remove(n) => {
                self.wants.remove(&key(*n));
                return Some(key(*n));
            }
            Step::Nodes(nodes) => {
                let node = |n: &u8| (address(*n), ReservedBy::Node(format!("node-{n}")));
                self.reserved = nodes.iter().map(node).chain([(address(0), ReservedBy::Gateway)]).collect();
            }
            Step::Withhold(withheld) => {
                let withheld = withheld.iter().map(|n| address(*n)).collect();
                self.authority = Authority::Decides { withheld };
            }
            Step::Follow(follows) => {
                self.authority = if *follows { Authority::Follows } else { Authority::default() };
            }
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn an_allocator_with_a_history_equals_a_new_one(
        quota in proptest::option::of(1_u32..4),
        rounds in proptest::collection::vec((proptest::collection::vec(step(), 0..4), any::<bool>()), 1..16),
    ) {
        let mut world = World {
            wants: BTreeMap::new(),
            reserved: BTreeMap::from([(address(0), ReservedBy::Gateway)]),
            authority: Authority::default(),
        };
        let anew = |world: &World| Allocator::new(pools(quota), world.reserved.clone(), world.authority.clone());
        let mut allocator = anew(&world);
        for (round, (steps, stabilizes)) in rounds.iter().enumerate() {
            let before = Arc::clone(allocator.allocations());
            let granted = Arc::clone(allocator.granted());
            let mut changed: BTreeSet<ObjectKey> = steps.iter().filter_map(|step| world.take(step)).collect();
            changed.extend(allocator.reserve(world.reserved.clone()));
            let authority_changed = allocator.set_authority(&world.authority);
            let continues = authority_changed.is_some();
            match authority_changed {
                Some(touched) => changed.extend(touched),
                None => {
                    changed.extend(world.wants.keys().chain(before.by_service.keys()).cloned());
                    allocator = anew(&world).resuming(&before);
                }
            }
            let reported = allocator.update(changed, |key, remembered| world.applicant(key, remembered));

            let mut scratch = anew(&world).resuming(&before);
            let all: Vec<ObjectKey> = world.wants.keys().chain(before.by_service.keys()).cloned().collect();
            scratch.update(all, |key, remembered| world.applicant(key, remembered));
            prop_assert_eq!(Allocated::of(&allocator), Allocated::of(&scratch), "in round {}", round);
            let differs = |key: &&ObjectKey| granted.get(*key) != allocator.granted().get(*key);
            let keys: BTreeSet<&ObjectKey> = granted.keys().chain(allocator.granted().keys()).collect();
            let differing: Vec<ObjectKey> = keys.into_iter().filter(differs).cloned().collect();
            prop_assert!(!continues || differing.iter().eq(&reported));
            if *stabilizes {
                let stable = Allocated::of(&allocator);
                allocator.stabilize_all(|key, remembered| world.applicant(key, remembered));
                prop_assert_eq!(stable, Allocated::of(&allocator));
            }
        }
    }
}

#[test]
fn creating_or_deleting_a_service_recomputes_no_other_service() {
    let services: Vec<Service> = (0..200).map(|i| service("default", &format!("s{i}"))).collect();
    let pools = vec![pool("public", &["203.0.113.0/24"])];
    let mut allocator = Allocator::new(pools, BTreeMap::new(), Authority::default());
    let computations = std::cell::RefCell::new(Vec::new());
    let applicants = |key: &ObjectKey, remembered: Option<&Holdings>| {
        computations.borrow_mut().push(key.clone());
        let service = services.iter().find(|service| service.meta.key == *key)?;
        Some(Applicant {
            previous: adopted(service, remembered, &Authority::default()),
            ..applicant(service)
        })
    };
    let last = services[199].meta.key.clone();
    allocator.update(services[..199].iter().map(|service| service.meta.key.clone()), applicants);
    allocator.stabilize(applicants);
    for _ in 0..2 {
        computations.borrow_mut().clear();
        assert_eq!(allocator.update([last.clone()], applicants), std::slice::from_ref(&last));
        assert_eq!(*computations.borrow(), std::slice::from_ref(&last));
        allocator.update([], applicants);
        allocator.update([last.clone()], |key, remembered| applicants(key, remembered).filter(|_| false));
    }
}

#[test]
fn removed_services_of_one_namespace_do_not_displace_those_of_others() {
    let owned = |n: u32| {
        let address = IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + n));
        Holdings::new("", vec![OwnedAddress::of_status(address)])
    };
    let greedy = (0..5_000).map(|n| (ObjectKey::new("greedy", format!("s{n:05}")), owned(n)));
    let victim = ObjectKey::new("victim", "web");
    let by_service = greedy.chain([(victim.clone(), owned(9_999))]).collect();
    let previous = Allocations { by_service, ..Allocations::default() };
    let pools = [pool("public", &["10.0.0.0/16"])];
    let gone = allocate(&pools, &BTreeMap::new(), &[], &previous, &Authority::default()).allocations;
    assert!(gone.by_service.is_empty());
    assert_eq!(gone.of_removed.len(), 4_096);
    assert_eq!(gone.of_removed.get(&victim), Some(&owned(9_999)), "it gets its address again");
}
