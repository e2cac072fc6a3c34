//! The rules of `docs/kubernetes.md`, sections 5 to 8, about written objects. Each rule is tested with the objects of
//! both sources.
//!
//! Only an API server can be written to. The planned writes depend only on the objects, so objects from a directory
//! must result in the same plan: [`Both`] asserts this at each step.

use tidegate_policy::reconcile::{ObjectKind, Reason};

use super::*;
use crate::event::EventType;

/// One cluster whose objects are read by both sources.
struct Both {
    directory: Cluster,
    api: Cluster,
}

impl Both {
    fn new(yaml: &str) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        std::fs::write(files.path().join("objects.yaml"), yaml).expect("a file");
        let (objects, report) = tidegate_source::directory::DirectorySource::load(files.path());
        assert!(!report.has_errors(), "{report}");
        let mut both = Self { directory: Cluster::new([]), api: Cluster::new([]) };
        both.directory.objects = objects;
        both.api.objects = tidegate_source::kubernetes::testing::objects_of(yaml);
        both
    }

    fn both(&mut self, change: impl Fn(&mut Cluster)) {
        change(&mut self.directory);
        change(&mut self.api);
    }

    fn with(mut self, change: impl Fn(&mut Cluster)) -> Self {
        self.both(change);
        self
    }

    fn edit(&mut self, name: &str, edit: impl Fn(&mut Service)) {
        self.both(|cluster| cluster.edit(name, &edit));
    }

    /// Runs a round whose writes succeed, and returns the plan, which is the same for both sources.
    fn round(&mut self) -> Plan {
        let (directory, api) = (self.directory.round(), self.api.round());
        assert_eq!(directory, api);
        api
    }

    /// Runs rounds until nothing is written, and returns all events.
    fn run_until_stable(&mut self) -> Vec<Event> {
        let (directory, api) = (self.directory.run_until_stable(), self.api.run_until_stable());
        assert_eq!(directory, api);
        assert_eq!(self.directory.objects.services, self.api.objects.services);
        api
    }

    fn of(&self, name: &str) -> &Service {
        self.api.of(name)
    }

    /// `STATUS REASON: MESSAGE` of a condition.
    fn condition(&self, name: &str, kind: &str) -> String {
        let condition = self.of(name).stored.condition(&format!("tidegate.dev/{kind}"));
        let condition = condition.unwrap_or_else(|| panic!("{kind} is there"));
        assert!(condition.last_transition.is_some(), "the condition has a time");
        format!("{} {}: {}", condition.status, condition.reason, condition.message)
    }
}

/// `TYPE REASON: NOTE` of each event.
fn shown(events: &[Event]) -> Vec<String> {
    events.iter().map(|e| format!("{} {}: {}", e.event_type.as_str(), e.reason, e.note)).collect()
}

/// The notes of the events with one reason.
fn notes<'e>(events: &'e [Event], reason: &str) -> Vec<&'e str> {
    events.iter().filter(|e| e.reason == reason).map(|e| e.note.as_str()).collect()
}

/// `default/NAME` of type LoadBalancer with these ports and additional metadata and spec.
fn balanced(name: &str, metadata: &str, ports: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default, generation: 1{metadata}}}\nspec:\n  \
         type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  ports: [{ports}]\n{spec}---\n"
    )
}

const HTTP: &str = "{name: http, port: 80, targetPort: 8080}";
const FIVE: &str = "  loadBalancerIP: 203.0.113.5\n";

/// `default/web` with 203.0.113.5 and additional metadata.
fn web(metadata: &str) -> String {
    balanced("web", metadata, HTTP, FIVE)
}

/// An endpoint of `default/web`.
const ENDPOINT: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, namespace: default, \
                        labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: \
                        8080}]\nendpoints: [{addresses: [10.0.1.1]}]\n---\n";

#[test]
fn events_report_each_step_until_a_service_has_its_address() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    assert_eq!(shown(&both.round().events), ["Normal EnsuringLoadBalancer: Ensuring load balancer"]);
    assert_eq!(
        shown(&both.round().events),
        [
            "Normal EnsuredLoadBalancer: Ensured load balancer: 203.0.113.5",
            "Normal IPAllocated: Assigned IP 203.0.113.5 from pool public",
        ]
    );
    assert_eq!(both.round(), Plan::default(), "nothing else is written");
}

#[test]
fn allocation_failed_explains_why_there_is_no_address() {
    let mut both = Both::new(&balanced("web", "", HTTP, "  loadBalancerIP: 192.0.2.1\n"));
    let events = both.run_until_stable();
    assert_eq!(
        shown(&events),
        [
            "Warning AllocationFailed: address 192.0.2.1 of Service default/web is not assigned: the address is in no pool; accepted: \
          public (203.0.113.0-203.0.113.15)"
        ]
    );
    let condition = "False AllocationFailed: address 192.0.2.1 of Service default/web is not assigned: the address is in no pool";
    assert_eq!(both.condition("web", "Allocated"), condition);
    assert!(both.of("web").stored.ingress.is_empty() && !both.of("web").stored.is_finalized_by_us());
}

#[test]
fn prefer_dual_stack_falls_back_with_an_event() {
    let mut both = Both::new(&(balanced("web", "", HTTP, "  ipFamilyPolicy: PreferDualStack\n") + ENDPOINT));
    let events = both.run_until_stable();
    assert_eq!(
        notes(&events, "FamilyFallback"),
        [
            "Service default/web has addresses of only one family: no IPv6 address: pool public has no IPv6 addresses"
        ]
    );
    assert_eq!(both.of("web").stored.ingress.len(), 1);
}

#[test]
fn a_local_service_that_loses_client_addresses_is_reported() {
    let local = format!("{FIVE}  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n");
    let mut both = Both::new(&(balanced("web", "", HTTP, &local) + ENDPOINT));
    let events = both.run_until_stable();
    let lost = "Service default/web has externalTrafficPolicy Local, and forwarding fullnat replaces its clients' \
                addresses with the gateway's";
    assert_eq!(notes(&events, "ClientAddressLost").len(), 1, "{events:?}");
    assert!(notes(&events, "ClientAddressLost")[0].starts_with(lost), "{events:?}");
    let served = "True ClientAddressLost: every port is forwarded with fullnat; ";
    assert_eq!(both.condition("web", "Programmed"), format!("{served}{lost}"));

    both.both(|cluster| {
        cluster.settings.services.defaults.forwarding_local =
            Some(tidegate_model::config::ForwardingMode::Nat);
    });
    both.run_until_stable();
    assert_eq!(both.condition("web", "Programmed"), "True Programmed: every port is forwarded with nat");
}

#[test]
fn clear_assignment_reports_a_released_address() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.both(|cluster| {
        let pool = &mut cluster.settings.pools[0];
        (pool.disabled, pool.force_release) = (true, true);
    });
    let events = both.run_until_stable();
    let cleared = notes(&events, "ClearAssignment");
    assert_eq!(cleared.len(), 1, "{events:?}");
    assert!(cleared[0].starts_with("Released the address: address 203.0.113.5"), "{cleared:?}");
    assert_eq!(both.of("web").stored.ingress, []);

    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.edit("web", |web| web.load_balancer_class = Some("example.com/other".into()));
    assert_eq!(shown(&both.run_until_stable()), ["Normal ClearAssignment: Released the address"]);
    let stored = &both.of("web").stored;
    assert!(stored.ingress.is_empty() && stored.conditions.is_empty() && !stored.is_finalized_by_us());
}

#[test]
fn updated_load_balancer_reports_that_a_change_is_served() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.edit("web", |web| {
        // Services have no generation.
        web.stored.generation = 0;
        web.session_affinity = Some(Duration::from_secs(60));
    });
    assert_eq!(
        shown(&both.run_until_stable()),
        ["Normal UpdatedLoadBalancer: Updated load balancer: 203.0.113.5"]
    );
    assert_eq!(both.run_until_stable(), [], "once");
}

#[test]
fn deleted_load_balancer_reports_that_all_gateways_have_withdrawn_it() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.both(|cluster| cluster.version = 9);
    both.edit("web", |web| web.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    let plan = both.round();
    assert!(plan.writes.is_empty() && plan.events.is_empty() && plan.waits_for_peers, "{plan:?}");
    // More changes happen meanwhile, but nothing has to wait for them.
    both.both(|cluster| (cluster.version, cluster.withdrawn) = (12, 9));
    assert_eq!(shown(&both.round().events), ["Normal DeletedLoadBalancer: Deleted load balancer"]);
    assert!(both.api.objects.services.is_empty());
}

#[test]
fn a_deleted_service_with_another_finalizer_loses_its_address() {
    let mut both = Both::new(&(web(", finalizers: [example.com/finalizer]") + ENDPOINT));
    both.run_until_stable();
    assert!(!both.of("web").stored.ingress.is_empty());
    both.edit("web", |web| web.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    let cleared = both.round();
    let is_cleared = |write: &Write| matches!(write, Write::ServiceStatus { ingress: None, .. });
    assert!(cleared.writes.iter().any(is_cleared), "{cleared:?}");
    assert!(both.of("web").stored.ingress.is_empty() && both.of("web").stored.is_finalized_by_us());
    let released = both.round();
    assert!(matches!(released.writes[..], [Write::Finalizer { present: false, .. }]), "{released:?}");
}

#[test]
fn sync_load_balancer_failed_reports_the_unserved_port() {
    let ports = "{name: http, port: 80}, {name: sig, port: 81, targetPort: 8081, protocol: SCTP}";
    let mut both = Both::new(&balanced("web", "", ports, FIVE))
        .with(|cluster| cluster.settings.services.defaults.forwarding = ForwardingMode::DsrL2);
    let why = "dsr-l2 keeps the destination port 81, but the target port is 8081";
    let events = both.run_until_stable();
    assert_eq!(notes(&events, "SyncLoadBalancerFailed"), [format!("81/SCTP: {why}")]);
    assert!(
        events.iter().any(|e| e.reason == "SyncLoadBalancerFailed" && e.event_type == EventType::Warning)
    );
    assert_eq!(both.condition("web", "Programmed"), format!("False PortsNotProgrammed: 81/SCTP: {why}"));
    assert!(notes(&events, "EnsuredLoadBalancer").is_empty());
}

#[test]
fn unavailable_load_balancer_reports_that_no_backend_accepts_flows() {
    let mut both = Both::new(&web(""));
    let expected = ["no active backend for 80/TCP"];
    assert_eq!(notes(&both.run_until_stable(), "UnAvailableLoadBalancer"), expected);
    both.both(|cluster| cluster.endpoint("web", "10.0.1.1"));
    assert_eq!(both.run_until_stable(), [], "only the condition reports that it is available again");
    assert_eq!(both.condition("web", "Healthy"), "True BackendsUp: every port has an active backend");
    both.both(|cluster| cluster.objects.endpoint_slices = Default::default());
    assert_eq!(notes(&both.run_until_stable(), "UnAvailableLoadBalancer"), expected, "on change");
}

#[test]
fn another_writer_of_the_status_is_reported_without_flapping() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.both(|cluster| cluster.write_as_another_client("web", "198.51.100.1"));
    let events = both.run_until_stable();
    assert_eq!(notes(&events, "ConflictingController").len(), 1);
    assert_eq!((events.len(), events[0].event_type), (1, EventType::Warning));
    assert!(
        events[0].note.contains("Field manager \"another-controller\" also writes status.loadBalancer"),
        "{events:?}"
    );
    assert!(both.condition("web", "Conflicted").starts_with("True ConflictingController: "));
    assert_eq!(both.of("web").stored.ingress[0].ip, Some(ip("198.51.100.1")), "it is left unchanged");
    let mut writes = 0;
    for _ in 0..600 {
        let plan = both.round();
        if plan.writes.iter().any(|w| matches!(w, Write::ServiceStatus { ingress: Some(_), .. })) {
            writes += 1;
            both.round();
            both.both(|cluster| cluster.write_as_another_client("web", "198.51.100.1"));
        }
    }
    assert!((2..=4).contains(&writes), "in ten minutes: {writes}");
    // An edit by the owner takes effect immediately, and stays after the other writer is gone.
    both.edit("web", |web| web.session_affinity = Some(Duration::from_secs(60)));
    both.run_until_stable();
    assert_eq!(both.of("web").stored.ingress[0].ip, Some(ip("203.0.113.5")));
    assert_eq!(both.condition("web", "Conflicted"), "False NoConflict: ");
}

#[test]
fn events_are_recorded_on_changes_only() {
    let mut both = Both::new(&(web(", annotations: {tidegate.dev/table-size: many}") + ENDPOINT));
    assert_eq!(notes(&both.run_until_stable(), "InvalidValue").len(), 1);
    for _ in 0..10 {
        both.both(|cluster| cluster.now += SignedDuration::from_mins(10));
        assert_eq!(both.round(), Plan::default());
    }
}

#[test]
fn the_conditions_are_allocated_programmed_healthy_and_conflicted() {
    let all = |both: &Both, name: &str| {
        ["Allocated", "Programmed", "Healthy", "Conflicted"].map(|k| both.condition(name, k))
    };
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    assert_eq!(
        all(&both, "web"),
        [
            "True Allocated: 203.0.113.5 from pool public",
            "True Programmed: every port is forwarded with fullnat",
            "True BackendsUp: every port has an active backend",
            "False NoConflict: ",
        ]
    );
    let kinds: BTreeSet<&str> = both.of("web").stored.conditions.iter().map(|c| c.kind.as_str()).collect();
    let expected =
        ["Allocated", "Conflicted", "Healthy", "Holds", "Programmed"].map(|k| format!("tidegate.dev/{k}"));
    assert_eq!(kinds, expected.iter().map(String::as_str).collect());

    let mut both = Both::new(&balanced("web", "", HTTP, "")).with(|cluster| cluster.settings.pools.clear());
    both.run_until_stable();
    let waits = "Service default/web waits for an address: no IPv4 address: no pool is configured";
    assert_eq!(
        all(&both, "web"),
        [
            format!("False AllocationFailed: {waits}"),
            "False NoAddress: the Service does not have the address that it requests".into(),
            "Unknown NoPorts: no port is served".into(),
            "False NoConflict: ".into(),
        ]
    );
}

#[test]
fn a_port_of_another_service_makes_conflicted_true() {
    let external = |name: &str, created: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default, generation: 1, \
             creationTimestamp: '{created}'}}\nspec: {{externalIPs: [203.0.113.9], ports: [{{port: 80}}]}}\n---\n"
        )
    };
    let mut both =
        Both::new(&(external("a", "2026-01-02T00:00:00Z") + &external("z", "2026-01-01T00:00:00Z")));
    let events = both.run_until_stable();
    let owner = "it belongs to Service default/z";
    assert!(
        notes(&events, "Conflict")[0].contains("TCP port 80 belongs to Service default/z"),
        "{owner}: {events:?}"
    );
    assert!(
        both.condition("a", "Conflicted")
            .starts_with("True PortConflict: TCP port 80 on external IP 203.0.113.9")
    );
    assert!(both.condition("z", "Conflicted").starts_with("False NoConflict"));
    assert!(both.condition("z", "Programmed").starts_with("True Programmed"));
}

#[test]
fn ip_mode_is_vip_only_where_the_vip_reaches_the_node() {
    for (mode, expected) in [
        (ForwardingMode::DsrL2, "VIP"),
        (ForwardingMode::DsrIpip, "VIP"),
        (ForwardingMode::DsrGue, "VIP"),
        (ForwardingMode::DsrGre, "VIP"),
        (ForwardingMode::DsrGeneve, "VIP"),
        (ForwardingMode::DsrDscp, "Proxy"),
        (ForwardingMode::Nat, "Proxy"),
        (ForwardingMode::FullNat, "Proxy"),
    ] {
        let metadata = match mode {
            ForwardingMode::DsrDscp => ", annotations: {tidegate.dev/dscp: '46'}",
            _ => "",
        };
        let yaml = balanced("web", metadata, "{name: http, port: 8080}", FIVE);
        let mut both = Both::new(&yaml).with(|cluster| {
            cluster.settings.services.defaults.forwarding = mode;
            cluster.settings.network.tunnel_source_v4 = Some("10.0.0.1".parse().expect("an address"));
        });
        both.run_until_stable();
        let ingress = &both.of("web").stored.ingress;
        assert_eq!(ingress[0].ip_mode.as_deref(), Some(expected), "{mode}");
        assert!(ingress[0].ports.is_empty(), "every port is served");
    }
}

#[test]
fn unserved_ports_have_an_error_in_the_status() {
    let ports = "{name: same, port: 80}, {name: other, port: 81, targetPort: 8081}, {name: sig, port: 82, protocol: SCTP}";
    let mut both = Both::new(&balanced("web", "", ports, FIVE))
        .with(|cluster| cluster.settings.services.defaults.forwarding = ForwardingMode::DsrL2);
    both.run_until_stable();
    let ports = &both.of("web").stored.ingress[0].ports;
    let shown: Vec<(u16, &str, Option<&str>)> =
        ports.iter().map(|p| (p.port, p.protocol.as_str(), p.error.as_deref())).collect();
    assert_eq!(
        shown,
        [(80, "TCP", None), (81, "TCP", Some("tidegate.dev/PortNotProgrammed")), (82, "SCTP", None),]
    );
}

#[test]
fn a_refused_service_keeps_its_ip_mode_and_every_port_has_an_error() {
    let mut both =
        Both::new(&balanced("web", "", "{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}", FIVE))
            .with(|cluster| cluster.settings.services.defaults.forwarding = ForwardingMode::DsrL2);
    both.run_until_stable();
    assert!(both.of("web").stored.ingress[0].ports.is_empty(), "every port is served");
    both.edit("web", |web| web.external_ips = vec![ip("192.0.2.1"); 1_025]);
    let events = both.run_until_stable();
    assert_eq!(notes(&events, "LimitExceeded").len(), 1, "{events:?}");
    let ingress = &both.of("web").stored.ingress[0];
    assert_eq!((ingress.ip, ingress.ip_mode.as_deref()), (Some(ip("203.0.113.5")), Some("VIP")));
    let shown: Vec<(u16, &str, Option<&str>)> =
        ingress.ports.iter().map(|p| (p.port, p.protocol.as_str(), p.error.as_deref())).collect();
    let not_programmed = Some("tidegate.dev/PortNotProgrammed");
    assert_eq!(shown, [(80, "TCP", not_programmed), (53, "UDP", not_programmed)]);
}

#[test]
fn ingress_is_one_atomic_list_and_only_for_load_balancers() {
    let dual = balanced("web", "", HTTP, "  ipFamilyPolicy: RequireDualStack\n");
    let external = "apiVersion: v1\nkind: Service\nmetadata: {name: external, namespace: default}\nspec: {externalIPs: \
                    [203.0.113.9], ports: [{port: 80}]}\n";
    let mut both = Both::new(&(dual + external)).with(|cluster| {
        cluster.settings.pools.push(pool("six", "2001:db8:1::/124"));
    });
    let mut lists = Vec::new();
    for _ in 0..4 {
        for write in both.round().writes {
            if let Write::ServiceStatus { service, ingress, .. } = write {
                lists.push((service.name, ingress.map_or(0, |list| list.len())));
            }
        }
    }
    lists.sort();
    assert_eq!(lists, [("external".to_owned(), 0), ("web".to_owned(), 2)], "both families in one write");
    assert_eq!(both.condition("external", "Allocated"), "True Allocated: 203.0.113.9 from pool public");
    assert!(!both.of("external").stored.is_finalized_by_us(), "it has no address of ours to release");
}

#[test]
fn the_finalizer_is_our_own_and_comes_before_the_address() {
    let standard = "service.kubernetes.io/load-balancer-cleanup";
    let mut both = Both::new(&web(&format!(", finalizers: [{standard}]")));
    let first = both.round();
    assert!(matches!(first.writes[..], [Write::Finalizer { present: true, .. }]), "{first:?}");
    assert_eq!(both.of("web").stored.finalizers, [standard, "tidegate.dev/cleanup"]);
    both.run_until_stable();
    both.edit("web", |web| web.load_balancer_class = Some("example.com/other".into()));
    both.run_until_stable();
    assert_eq!(both.of("web").stored.finalizers, [standard], "it belongs to another controller");
}

#[test]
fn a_restart_adopts_the_status_and_writes_nothing() {
    let mut both = Both::new(&(web("") + &balanced("db", "", HTTP, "") + ENDPOINT));
    both.run_until_stable();
    let before = both.api.objects.clone();
    both.both(|cluster| (cluster.memory, cluster.reconciled) = Default::default());
    assert_eq!(both.round().writes, []);
    assert_eq!(both.api.objects, before);
}

#[test]
fn status_is_written_by_the_leader_alone() {
    let mut both = Both::new(&(web(", annotations: {tidegate.dev/table-size: many}") + ENDPOINT))
        .with(|cluster| cluster.leads = false);
    assert_eq!(both.round(), Plan::default());
    both.both(|cluster| cluster.leads = true);
    assert_eq!(both.round().writes.len(), 1);
}

#[test]
fn overlapping_pools_are_a_condition_not_a_crash() {
    let object = |name: &str, addresses: &str| {
        format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {{name: {name}, generation: 3}}\nspec: \
             {{addresses: [{addresses}]}}\n---\n"
        )
    };
    let pools = object("a", "203.0.113.0/28") + &object("b", "203.0.113.8/29") + &object("c", "192.0.2.0/30");
    let mut both = Both::new(&(pools + &web(""))).with(|cluster| cluster.settings.pools.clear());
    let events = both.run_until_stable();
    let shown = |name: &str| {
        let status = &both.api.objects.address_pools[name].status;
        let conditions =
            status.conditions.iter().map(|c| format!("{} {}", c.kind, c.status)).collect::<Vec<_>>();
        ((status.total, status.used, status.available), conditions.join(", "))
    };
    assert_eq!(shown("a"), ((16, 1, 15), "Accepted True, Overlaps True, InUse True".to_owned()));
    assert_eq!(shown("b").1, "Accepted True, Overlaps True, InUse False");
    assert_eq!(shown("c"), ((4, 0, 4), "Accepted True, Overlaps False, InUse False".to_owned()));
    let overlap: Vec<&Event> = events.iter().filter(|e| e.reason == "PoolsOverlap").collect();
    let about: Vec<_> = overlap.iter().map(|e| (e.regarding.kind, e.regarding.key.name.as_str())).collect();
    assert_eq!(about, [(ObjectKind::AddressPool, "a"), (ObjectKind::AddressPool, "b")]);
}

#[test]
fn a_full_pool_is_reported_until_an_address_is_free() {
    let of =
        |name: &str, created: &str| balanced(name, &format!(", creationTimestamp: '{created}'"), HTTP, "");
    let mut both = Both::new(&(of("a", "2026-01-01T00:00:00Z") + &of("b", "2026-01-02T00:00:00Z")))
        .with(|cluster| cluster.settings.pools = vec![pool("one", "203.0.113.1/32")]);
    let events = both.run_until_stable();
    let why = "Service default/b waits for an address: no IPv4 address: pool one is full";
    assert_eq!(
        notes(&events, "AllocationFailed"),
        [format!("{why}; accepted: a pool with a free address that this Service may use")]
    );
    assert_eq!(both.condition("b", "Allocated"), format!("False AllocationFailed: {why}"));
    both.edit("a", |a| a.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    let events = both.run_until_stable();
    assert_eq!(notes(&events, "IPAllocated"), ["Assigned IP 203.0.113.1 from pool one"]);
    assert_eq!(both.condition("b", "Allocated"), "True Allocated: 203.0.113.1 from pool one");
}

#[test]
fn a_denied_external_ip_is_reported_in_conditions_and_events_only() {
    let denied = "apiVersion: v1\nkind: Service\nmetadata: {name: denied, namespace: default}\nspec: {externalIPs: \
                  [192.0.2.1], ports: [{port: 80}]}\n";
    let mut both = Both::new(denied);
    let events = both.run_until_stable();
    let why = "external IP 192.0.2.1 of Service default/denied is denied: the address is in no pool";
    assert_eq!(
        shown(&events),
        [format!(
            "Warning ExternalIPDenied: {why}; accepted: an address of a pool with externalIPs: true: public \
             (203.0.113.0-203.0.113.15)"
        )]
    );
    assert_eq!(both.condition("denied", "Allocated"), format!("False ExternalIPDenied: {why}"));
    assert_eq!(both.of("denied").stored.ingress, []);
}

#[test]
fn an_invalid_value_is_an_event_on_its_object() {
    let weight = "annotations: {tidegate.dev/weight: heavy}";
    let objects = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: default, uid: u-pod, {weight}}}\n---\napiVersion: \
         v1\nkind: Node\nmetadata: {{name: n1, uid: u-node, {weight}}}\n---\n"
    );
    let endpoint = ENDPOINT.replace(
        "[10.0.1.1]",
        "[10.0.1.1], nodeName: n1, targetRef: {kind: Pod, name: web, namespace: default}",
    );
    let mut both = Both::new(
        &(web(", uid: u-svc, annotations: {tidegate.dev/table-size: many}") + &objects + &endpoint),
    );
    let events = both.run_until_stable();
    let about: BTreeSet<(&str, &str, &str)> = events
        .iter()
        .filter(|e| e.reason == Reason::InvalidValue.as_str())
        .map(|e| (e.regarding.kind.as_str(), e.regarding.uid.as_str(), e.note.as_str()))
        .collect();
    let weight = "annotation tidegate.dev/weight: \"heavy\" is invalid: the default is used; accepted: a number, 0 \
                  (no new flows) to 65535";
    let size = "annotation tidegate.dev/table-size: \"many\" is invalid: the default is used; accepted: a prime \
                from 251 to 655373 such as 65537";
    let expected = [
        (ObjectKind::Node, "u-node", weight),
        (ObjectKind::Pod, "u-pod", weight),
        (ObjectKind::Service, "u-svc", size),
    ];
    assert_eq!(about, expected.map(|(kind, uid, note)| (kind.as_str(), uid, note)).into());
    assert!(events.iter().all(|e| e.regarding.api_version() == "v1"));
}

#[test]
fn a_node_whose_pods_get_no_route_has_an_event() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: far, uid: u-node}\nspec: {podCIDRs: [10.1.3.0/24]}\nstatus: \
                {addresses: [{type: InternalIP, address: 172.16.0.1}]}\n";
    let mut both = Both::new(node)
        .with(|cluster| cluster.settings.services.pod_routes = tidegate_model::config::PodRoutes::Node);
    let events = both.run_until_stable();
    let [event] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        (event.reason, event.regarding.kind.as_str(), event.regarding.uid.as_str()),
        ("PodRouteRefused", "Node", "u-node")
    );
}

#[test]
fn an_unsupported_alias_is_a_warning_event() {
    let annotation = "service.beta.kubernetes.io/aws-load-balancer-eip-allocations";
    let mut both = Both::new(&(web(&format!(", annotations: {{{annotation}: a}}")) + ENDPOINT))
        .with(|cluster| cluster.settings.services.compat = ["aws".to_owned()].into());
    let events = both.run_until_stable();
    let warning = events.iter().find(|e| e.reason == "AliasIgnored").expect("the event exists");
    assert_eq!(warning.event_type, EventType::Warning);
    assert!(warning.note.starts_with(&format!("annotation {annotation} has no effect")), "{}", warning.note);
}

/// Another live gateway that serves everything.
fn peer(name: &str) -> Peer {
    let live = Duration::from_secs(3600);
    Peer { name: name.into(), applied: 7, live, is_ready: true, is_connected: true, ..Peer::default() }
}

#[test]
fn programmed_reports_the_owner_of_a_vip_and_why() {
    let group = "tidegate-l2-all-203.0.113.5";
    let owned_by = |by: Option<&str>| {
        let holders: LeaseHolders = [(group.to_owned(), by.map(str::to_owned))].into();
        Arc::new(holders)
    };
    let local = FIVE.to_owned() + "  externalTrafficPolicy: Local\n  healthCheckNodePort: 30500\n";
    let mut both = Both::new(&(balanced("web", "", HTTP, &local) + ENDPOINT)).with(|cluster| {
        cluster.settings.layer2.mode = tidegate_model::config::Layer2Mode::Lease;
        cluster.peers = vec![peer("edge-2")];
        cluster.lease_holders = owned_by(Some("edge-2"));
    });
    both.run_until_stable();
    let of = |both: &Both| both.condition("web", "Programmed");
    let is = |both: &Both, owner: &str| {
        let condition = of(both);
        assert!(condition.starts_with("True ") && condition.ends_with(owner), "{condition}");
    };
    is(&both, "; edge-2 answers for 203.0.113.5; other gateways can serve it, too");
    both.both(|cluster| {
        cluster.peers[0].without_backends = ["default/web".to_owned()].into();
        cluster.lease_holders = owned_by(Some("edge-1"));
    });
    both.run_until_stable();
    is(&both, "; edge-1 answers for 203.0.113.5; no other gateway can serve it");
    // The endpoint is on no node of a gateway.
    both.both(|cluster| {
        cluster.settings.node = Some("a".into());
        cluster.lease_holders = owned_by(None);
    });
    let events = both.run_until_stable();
    let why = "no gateway answers for 203.0.113.5, because none can serve it; edge-1: externalTrafficPolicy Local: node a has no endpoint";
    assert!(of(&both).starts_with(&format!("False NoGateway: {why}")), "{}", of(&both));
    assert!(notes(&events, "NoGateway")[0].starts_with(why), "{events:?}");
}

#[test]
fn programmed_reports_which_gateways_serve_a_service() {
    let listed = || std::iter::once("default/web".to_owned()).collect::<BTreeSet<_>>();
    let mut both = Both::new(&(web("") + ENDPOINT)).with(|cluster| cluster.peers = vec![peer("edge-2")]);
    both.run_until_stable();
    assert_eq!(both.condition("web", "Programmed"), "True Programmed: every port is forwarded with fullnat");

    both.both(|cluster| cluster.peers[0].not_programmed = listed());
    let events = both.run_until_stable();
    let message = "every port is forwarded with fullnat on 1 of 2 gateways; not on edge-2, which cannot serve every port";
    assert_eq!(both.condition("web", "Programmed"), format!("False NotOnEveryGateway: {message}"));
    assert_eq!(notes(&events, "SyncLoadBalancerFailed"), [message]);

    // A gateway that isn't ready receives no packets.
    both.both(|cluster| cluster.peers[0] = Peer { is_ready: false, ..peer("edge-2") });
    both.run_until_stable();
    let message =
        "every port is forwarded with fullnat on 1 of 2 gateways; not on edge-2, which is not ready";
    assert_eq!(both.condition("web", "Programmed"), format!("True Programmed: {message}"));

    both.both(|cluster| cluster.peers[0] = Peer { without_backends: listed(), ..peer("edge-2") });
    both.run_until_stable();
    assert_eq!(both.condition("web", "Programmed"), "True Programmed: every port is forwarded with fullnat");
    assert_eq!(
        both.condition("web", "Healthy"),
        "False NoBackendsOnSomeGateways: every port has an active backend on 1 of 2 gateways; at least one port has none on edge-2"
    );
}

#[test]
fn only_gateways_of_the_group_count_as_announcing_an_address() {
    let labelled = |name: &str, rack: &str| Peer {
        labels: [("rack".to_owned(), rack.to_owned())].into(),
        is_ready: name != "edge-3",
        ..peer(name)
    };
    let pool = "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {name: r2}\nspec: {addresses: \
                [203.0.113.0/29], gatewaySelector: {matchLabels: {rack: r2}}}\n---\n";
    let mut both = Both::new(&(pool.to_owned() + &web("") + ENDPOINT)).with(|cluster| {
        cluster.settings.pools.clear();
        cluster.peers = vec![labelled("edge-2", "r1")];
    });
    let events = both.run_until_stable();
    let why = "none matches the selector rack=r2 of pool r2";
    let condition = both.condition("web", "Programmed");
    assert!(
        condition.starts_with("False NoGateway: no live gateway announces 203.0.113.5"),
        "{condition}; {}",
        both.condition("web", "Allocated")
    );
    assert!(condition.ends_with(why), "{condition}");
    assert!(notes(&events, "NoGateway")[0].ends_with(why), "{events:?}");

    both.both(|cluster| cluster.peers = vec![labelled("edge-2", "r2"), labelled("edge-3", "r1")]);
    both.run_until_stable();
    let served = "True Programmed: every port is forwarded with fullnat";
    assert_eq!(
        both.condition("web", "Programmed"),
        served,
        "edge-3, which is not ready, belongs to another group"
    );
}

/// `web`, last changed in version 5, and a gateway that has applied version 3.
fn behind(how: impl Fn(&mut Peer)) -> Both {
    Both::new(&(web("") + ENDPOINT)).with(|cluster| {
        cluster.edit("web", |web| web.stored.version = ObjectVersion(5));
        cluster.peers = vec![Peer { applied: 3, ..peer("edge-2") }];
        how(&mut cluster.peers[0]);
    })
}

/// Advances the time while the gateway is polled and stays silent.
fn pass(both: &mut Both, seconds: u64) -> Vec<Event> {
    both.both(|cluster| {
        let time = Duration::from_secs(seconds);
        cluster.now += time;
        cluster.peers.iter_mut().for_each(|peer| peer.silent += time);
    });
    both.run_until_stable()
}

#[test]
fn a_disconnected_gateway_does_not_serve_new_services() {
    let mut both = behind(|peer| peer.is_connected = false);
    both.run_until_stable();
    let why = "on 1 of 2 gateways; not on edge-2, which is disconnected from the API server";
    assert!(both.condition("web", "Programmed").ends_with(why), "{}", both.condition("web", "Programmed"));
}

#[test]
fn a_ready_gateway_lags_if_it_does_not_confirm_a_change_within_5_s() {
    let mut both = behind(|_| ());
    both.run_until_stable();
    assert!(both.condition("web", "Programmed").starts_with("True"));
    let events = pass(&mut both, 5);
    let lagging = |silent: &str| {
        let message = "every port is forwarded with fullnat on 1 of 2 gateways; not on edge-2, which has not confirmed \
                    the last change of the Service";
        format!("False GatewayLagging: {message}{silent}")
    };
    assert_eq!(both.condition("web", "Programmed"), lagging(" and has been silent for more than 5 s"));
    assert_eq!(notes(&events, "SyncLoadBalancerFailed").len(), 1);
    assert!(both.round().waits_for_peers, "the gateway is polled again");
    // The status is written again when the silence has doubled.
    let mut texts = BTreeSet::new();
    for _ in 0..28 {
        assert_eq!(pass(&mut both, 1), []);
        texts.insert(both.condition("web", "Programmed"));
    }
    assert_eq!(texts.len(), 3, "{texts:?}");
    both.both(|cluster| cluster.peers[0].silent = Duration::ZERO);
    both.run_until_stable();
    assert_eq!(both.condition("web", "Programmed"), lagging(""), "its heartbeats arrive");
    both.both(|cluster| cluster.peers[0].applied = 5);
    both.run_until_stable();
    assert_eq!(both.condition("web", "Programmed"), "True Programmed: every port is forwarded with fullnat");
    assert!(!both.round().waits_for_peers);
}

#[test]
fn only_a_live_ready_gateway_with_a_known_version_can_lag() {
    type Change = fn(&mut Peer);
    let cases: [(&str, Change); 4] = [
        ("not ready, or draining", |peer| peer.is_ready = false),
        ("back after a pause", |peer| peer.live = Duration::from_secs(4)),
        ("keeps lost Services, so that it has no version", |peer| peer.applied = 0),
        ("up to date", |peer| peer.applied = 5),
    ];
    for (what, change) in cases {
        let mut both = behind(change);
        both.run_until_stable();
        pass(&mut both, 60);
        assert!(both.condition("web", "Programmed").starts_with("True"), "{what}");
    }
}

#[test]
fn an_old_poll_does_not_make_a_gateway_lagging() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.edit("web", |web| web.stored.version = ObjectVersion(5));
    cluster.peers = vec![Peer { applied: 3, ..peer("edge-2") }];
    cluster.run_until_stable();
    cluster.polled_before = SignedDuration::from_secs(60);
    cluster.now += SignedDuration::from_secs(60);
    cluster.run_until_stable();
    assert_eq!(cluster.condition("web", "Programmed"), "True Programmed");
    cluster.polled_before = SignedDuration::ZERO;
    cluster.run_until_stable();
    assert_eq!(cluster.condition("web", "Programmed"), "False GatewayLagging");
}

#[test]
fn a_new_leader_detects_that_the_previous_one_lags() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.both(|cluster| {
        cluster.edit("web", |web| web.stored.version = ObjectVersion(9));
        (cluster.memory, cluster.peers) = (Memory::default(), vec![peer("edge-2")]);
    });
    both.run_until_stable();
    pass(&mut both, 5);
    assert!(both.condition("web", "Programmed").starts_with("False GatewayLagging"));
}

#[test]
fn no_gateway_lags_behind_versions_before_a_restore() {
    let mut both = Both::new(&(web("") + ENDPOINT)).with(|cluster| {
        cluster.edit("web", |web| web.stored.version = ObjectVersion(5));
        cluster.peers = vec![peer("edge-2")];
    });
    both.run_until_stable();
    both.both(|cluster| (cluster.version, cluster.peers[0].applied) = (2, 2));
    both.run_until_stable();
    pass(&mut both, 60);
    assert!(both.condition("web", "Programmed").starts_with("True"));
}

#[test]
fn programmed_follows_what_the_workers_have_applied() {
    let mut both = Both::new(&(web("") + ENDPOINT))
        .with(|cluster| cluster.unapplied = Arc::new(BTreeSet::from([key("web")])));
    let events = both.run_until_stable();
    let message = "False NotApplied: the workers have not applied the latest state yet";
    assert_eq!(both.condition("web", "Programmed"), message);
    assert!(notes(&events, "EnsuredLoadBalancer").is_empty());
    both.both(|cluster| cluster.unapplied = Arc::default());
    let events = both.run_until_stable();
    assert!(both.condition("web", "Programmed").starts_with("True"));
    assert_eq!(notes(&events, "EnsuredLoadBalancer").len(), 1);
}

#[test]
fn updated_load_balancer_ignores_changes_that_gateways_do_not_read() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.edit("web", |web| {
        web.stored.generation = 0;
        web.meta.annotations.insert("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into());
    });
    assert_eq!(both.run_until_stable(), []);
    both.edit("web", |web| {
        web.stored.generation = 0;
        web.meta.annotations.insert("tidegate.dev/drain-timeout".into(), "5s".into());
    });
    assert_eq!(
        shown(&both.run_until_stable()),
        ["Normal UpdatedLoadBalancer: Updated load balancer: 203.0.113.5"]
    );
}

#[test]
fn a_service_that_waits_for_gateways_gets_an_event_with_their_names() {
    let mut both = Both::new(&(web("") + ENDPOINT));
    both.run_until_stable();
    both.both(|cluster| {
        cluster.peers = vec![peer("edge-2"), Peer { applied: 9, ..peer("edge-3") }];
        (cluster.version, cluster.withdrawn) = (9, 7);
    });
    both.edit("web", |web| web.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    assert!(both.round().waits_for_peers);
    both.both(|cluster| cluster.now += SignedDuration::from_secs(10));
    let events = both.round().events;
    assert_eq!(
        shown(&events),
        [
            "Normal WaitingForGateways: Waiting until these gateways have withdrawn the released address: edge-2"
        ]
    );
}

/// An AddressPool `public` with additional metadata.
fn public(metadata: &str) -> String {
    format!(
        "apiVersion: tidegate.dev/v1alpha1\nkind: AddressPool\nmetadata: {{name: public, generation: 1{metadata}}}\nspec: \
         {{addresses: [203.0.113.0/28]}}\n---\n"
    )
}

#[test]
fn a_pool_in_use_lists_its_services_and_is_deleted_when_unused() {
    let mut both =
        Both::new(&(public("") + &web("") + ENDPOINT)).with(|cluster| cluster.settings.pools.clear());
    both.run_until_stable();
    let in_use = |both: &Both| {
        let pool = &both.api.objects.address_pools["public"];
        let condition =
            pool.status.conditions.iter().find(|c| c.kind == "InUse").expect("the condition exists");
        (pool.is_finalized_by_us, format!("{} {}: {}", condition.status, condition.reason, condition.message))
    };
    let condition = "True Held: Services use addresses of this pool: default/web".to_owned();
    assert_eq!(in_use(&both), (true, condition));
    // The pool is deleted: no Service loses its address, and the pool reports what it waits for.
    both.both(|cluster| {
        let mut pool = AddressPool::clone(&cluster.objects.address_pools["public"]);
        pool.meta.deletion_time = Some(Timestamp::UNIX_EPOCH);
        cluster.objects.address_pools.insert("public".into(), Arc::new(pool));
    });
    let events = both.run_until_stable();
    let (finalized, condition) = in_use(&both);
    let expected =
        "True DeletionWaits: Services use addresses of this pool: default/web; they keep their addresses";
    assert!(finalized && condition.starts_with(expected), "{condition}");
    assert_eq!(notes(&events, "PoolInUse").len(), 1, "{events:?}");
    assert_eq!(both.of("web").ingress_ips, [ip("203.0.113.5")]);
    both.edit("web", |service| service.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    both.run_until_stable();
    assert!(both.api.objects.address_pools.is_empty() && both.api.objects.services.is_empty());
}

#[test]
fn clear_assignment_reports_a_replaced_address() {
    let mut both = Both::new(&web(""));
    both.run_until_stable();
    both.edit("web", |service| {
        service.load_balancer_ip = Some(ip("203.0.113.6"));
        service.stored.generation += 1;
    });
    let events = both.run_until_stable();
    assert_eq!(
        notes(&events, "ClearAssignment"),
        ["The address 203.0.113.5 is released: the Service now has 203.0.113.6"]
    );
    assert_eq!(notes(&events, "IPAllocated"), ["Assigned IP 203.0.113.6 from pool public"]);
}

#[test]
fn a_new_leader_restores_allocations_from_the_status() {
    let mut both = Both::new(&web(""));
    both.run_until_stable();
    assert_eq!(
        both.condition("web", "Holds"),
        "True Recorded: [{\"address\":\"203.0.113.5\",\"as\":\"LoadBalancer\",\"pool\":\"public\",\"ports\":\
         \"TCP/80\"}]"
    );
    // The pool is removed, and with it everything that this leader remembers.
    both.both(|cluster| {
        cluster.settings.pools.clear();
        (cluster.memory, cluster.reconciled) = Default::default();
        cluster.reconciler = Reconciler::default();
    });
    let plan = both.round();
    assert_eq!(plan.writes, [], "{:?}", plan.writes);
    assert_eq!(both.of("web").ingress_ips, [ip("203.0.113.5")]);
}

#[test]
fn an_address_of_an_unknown_former_pool_is_allocated_not_denied() {
    let mut both = Both::new(&web(""));
    both.run_until_stable();
    // The status doesn't name the pool of the address, and no pool contains it anymore.
    both.edit("web", |web| web.stored.conditions.retain(|c| c.kind != "tidegate.dev/Holds"));
    both.both(|cluster| {
        cluster.settings.pools.clear();
        (cluster.memory, cluster.reconciled) = Default::default();
        cluster.reconciler = Reconciler::default();
    });
    both.run_until_stable();
    assert_eq!(both.of("web").ingress_ips, [ip("203.0.113.5")]);
    assert_eq!(both.condition("web", "Allocated"), "True Allocated: 203.0.113.5");
}
