//! Tests of the planned writes: each round reconciles, plans, and applies the writes to a minimal API server.

mod compare;
mod conformance;
mod gateway_api;
mod wording;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{
    AddressPool, AddressPoolStatus, AddressType, Condition, Conditions, Endpoint, EndpointPort,
    EndpointSlice, FINALIZER, Ingress, Metadata, ObjectVersion, Objects, Pool, Port, Protocol, Service,
    ServicePort, ServiceType, TargetPort,
};
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::pools::{Authority, FIELD_MANAGER};
use tidegate_policy::reconcile::{Input, Reason, Reconciler, Settings};
use tidegate_spec::testing;
use tidegate_spec::{ForwardingMode, NetworkSpec};
use tidegate_wire::MacAddr;

use super::*;
use crate::crd;

fn ip(s: &str) -> IpAddr {
    s.parse().expect("tests use valid addresses")
}

fn pool(name: &str, network: &str) -> Pool {
    Pool {
        external_ips: true,
        ..Pool::new(name, vec![network.parse::<ipnet::IpNet>().expect("a network").into()])
    }
}

fn port(name: &str, number: u16, target: u16, protocol: Protocol) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        app_protocol: None,
        port: Port::new(number).expect("not zero"),
        target_port: TargetPort::Number(Port::new(target).expect("not zero")),
        node_port: None,
        routed: None,
    }
}

fn service(name: &str) -> Service {
    let mut service = Service::new(Metadata::new(ObjectKey::new("default", name)));
    service.service_type = ServiceType::LoadBalancer;
    service.ports = vec![port("http", 80, 8080, Protocol::Tcp)];
    service.stored.generation = 1;
    service
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

/// An API server with a gateway.
struct Cluster {
    settings: Settings,
    objects: Objects,
    gateway_api: GatewayApi,
    reconciler: Reconciler,
    reconciled: tidegate_policy::reconcile::Memory,
    memory: Memory,
    /// The version of the Services, and the version that every gateway has applied.
    version: u64,
    withdrawn: u64,
    leads: bool,
    cannot_lead: Option<String>,
    unapplied: Arc<BTreeSet<ObjectKey>>,
    lease_holders: Arc<LeaseHolders>,
    peers: Vec<Peer>,
    now: Timestamp,
    /// How long ago the last poll of the other gateways started.
    polled_before: SignedDuration,
}

impl Cluster {
    fn new(services: impl IntoIterator<Item = Service>) -> Self {
        let settings = Settings {
            network: NetworkSpec {
                interfaces: vec![testing::interface(MacAddr([2, 0, 0, 0, 0, 2]), &["10.0.0.1/16"])],
                snat_addresses: vec![ip("10.0.0.3")],
                ..NetworkSpec::default()
            }
            .into(),
            pools: vec![pool("public", "203.0.113.0/28")],
            ..Settings::default()
        };
        let mut cluster = Self {
            settings,
            objects: Objects::default(),
            gateway_api: GatewayApi::default(),
            reconciler: Reconciler::default(),
            reconciled: tidegate_policy::reconcile::Memory::default(),
            memory: Memory::default(),
            version: 7,
            withdrawn: 7,
            leads: true,
            cannot_lead: None,
            unapplied: Arc::default(),
            lease_holders: Arc::default(),
            peers: Vec::new(),
            now: Timestamp::from_second(1_000_000).expect("a time"),
            polled_before: SignedDuration::ZERO,
        };
        services.into_iter().for_each(|service| cluster.put(service));
        cluster
    }

    fn put(&mut self, service: Service) {
        self.objects.services.insert(service.meta.key.clone(), Arc::new(service));
    }

    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Service)) {
        let mut service = Service::clone(&self.objects.services[&key(name)]);
        edit(&mut service);
        self.put(service);
    }

    fn of(&self, name: &str) -> &Service {
        &self.objects.services[&key(name)]
    }

    fn endpoint(&mut self, of: &str, address: &str) {
        let mut meta = Metadata::new(key(&format!("{of}-1")));
        meta.labels.insert("kubernetes.io/service-name".into(), of.into());
        let endpoint = Endpoint {
            address: Some(ip(address)),
            conditions: Conditions::default(),
            node_name: None,
            zone: None,
            hint_zones: vec![],
            hint_nodes: vec![],
            target_ref: None,
        };
        let port = EndpointPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: Port::new(8080),
            app_protocol: None,
        };
        let slice = EndpointSlice {
            meta,
            address_type: AddressType::V4,
            ports: vec![port],
            endpoints: vec![endpoint],
            left_out: None,
        };
        self.objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
    }

    fn observe(&mut self) -> Observation {
        let authority = if self.leads { Authority::default() } else { Authority::Follows };
        self.settings.authority = authority;
        let objects = self.gateway_api.derive(&Arc::new(self.objects.clone()));
        // Use the incremental reconciler, so that unchanged values are shared.
        let outcome = self.reconciler.reconcile(&Input {
            settings: &self.settings,
            objects: &objects,
            verdicts: &Verdicts::default(),
            drained: &BTreeSet::new(),
            memory: &self.reconciled,
            generation: 1,
            now: Duration::from_secs(1),
        });
        self.reconciled = outcome.memory.clone();
        Observation {
            objects,
            gateway_states: Arc::clone(self.gateway_api.states()),
            version: self.version,
            outcome: Arc::new(outcome),
            comparisons: 0,
            decides: self.leads,
            waits_for: None,
            own_labels: Default::default(),
            own_addresses: self.settings.network.own_addresses(),
            own_flow_sharing: None,
            forwarding: Forwarding {
                generation_desired: 1,
                generation_applied: 1,
                version_applied: self.version,
                keeps_services: false,
                unapplied: Arc::clone(&self.unapplied),
                publish_failure: None,
                ready: true,
                links_lost: Vec::new(),
                hung: Vec::new(),
                drain: DrainPhase::Serving,
                drain_message: String::new(),
            },
            source_connected: true,
            lease_holders: Arc::clone(&self.lease_holders),
            own_findings: Vec::new(),
        }
    }

    fn identity(&self) -> Identity {
        Identity { name: "edge-1".into(), instance: "a".into(), node: None }
    }

    fn situation<'a>(&'a self, observation: &'a Observation, identity: &'a Identity) -> Situation<'a> {
        Situation {
            observation,
            identity,
            leads: self.leads,
            withdrawn: self.withdrawn,
            peers: &self.peers,
            polled: self.now - self.polled_before,
            duplicate_name: None,
            cannot_lead: self.cannot_lead.as_deref(),
            now: self.now,
        }
    }

    /// Reconciles and plans.
    fn plan(&mut self) -> Plan {
        let observation = self.observe();
        let identity = self.identity();
        let mut memory = self.memory.clone();
        let situation = self.situation(&observation, &identity);
        let (compared, differences) = plan_compared(&situation, &mut memory);
        assert_eq!(differences, []);
        // A plan without the list of up-to-date Services must have the same result.
        let mut fresh = self.memory.without_up_to_date();
        let from_scratch = plan(&situation, &mut fresh);
        let mut memory = self.memory.clone();
        let planned = plan(&situation, &mut memory);
        self.memory = memory;
        assert_eq!((&planned, &compared), (&from_scratch, &from_scratch));
        assert_eq!(self.memory.without_up_to_date(), fresh.without_up_to_date());
        planned
    }

    /// Runs a round whose writes succeed.
    fn round(&mut self) -> Plan {
        let plan = self.plan();
        plan.writes.iter().for_each(|write| self.take(write));
        self.now += SignedDuration::from_secs(1);
        plan
    }

    /// Runs rounds until nothing is written, and returns all events.
    fn run_until_stable(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..8 {
            let plan = self.round();
            events.extend(plan.events);
            if plan.writes.is_empty() {
                return events;
            }
        }
        panic!("the writes never end");
    }

    fn take(&mut self, write: &Write) {
        match write {
            Write::Finalizer { service, present, .. } if service.gateway_name().is_some() => {
                self.take_gateway_finalizer(service, *present);
            }
            Write::GatewayApiStatus { object, status, .. } => self.take_status(object, status),
            Write::Finalizer { service, present, .. } => {
                let mut object = Service::clone(&self.objects.services[service]);
                object.stored.finalizers.retain(|f| f != FINALIZER);
                if *present {
                    object.stored.finalizers.push(FINALIZER.into());
                } else if object.meta.deletion_time.is_some() {
                    self.objects.services.remove(service);
                    return;
                }
                self.put(object);
            }
            Write::ServiceStatus { service, ingress, conditions, .. } => {
                let mut object = Service::clone(&self.objects.services[service]);
                let stored = &mut object.stored;
                stored.conditions.retain(|c| !c.kind.starts_with("tidegate.dev/"));
                stored.conditions.extend(conditions.iter().cloned());
                match ingress {
                    Some(ingress) => {
                        stored.ingress.clone_from(ingress);
                        stored.ingress_managers = vec![FIELD_MANAGER.into()];
                    }
                    None if stored.ingress_managers == [FIELD_MANAGER] => {
                        stored.ingress.clear();
                        stored.ingress_managers.clear();
                    }
                    None => stored.ingress_managers.retain(|m| m != FIELD_MANAGER),
                }
                object.ingress_ips = object.stored.ingress.iter().filter_map(|i| i.ip).collect();
                assert!(
                    object.ingress_ips.is_empty()
                        || object.stored.is_finalized_by_us()
                        || !object.stored.ingress_managers.contains(&FIELD_MANAGER.to_owned()),
                    "an address without the finalizer: {object:?}"
                );
                self.put(object);
            }
            Write::PoolFinalizer { pool, present, .. } => {
                let mut object = AddressPool::clone(&self.objects.address_pools[pool]);
                object.is_finalized_by_us = *present;
                if !present && object.meta.deletion_time.is_some() {
                    self.objects.address_pools.remove(pool);
                } else {
                    self.objects.address_pools.insert(pool.clone(), Arc::new(object));
                }
            }
            Write::PoolStatus { pool, status } => {
                let mut object = AddressPool::clone(&self.objects.address_pools[pool]);
                object.status = AddressPoolStatus {
                    gateways: status.gateways.clone(),
                    gateway_summary: status.gateway_summary.clone(),
                    address_summary: status.address_summary.clone(),
                    total: status.total,
                    used: status.used,
                    available: status.available,
                    conditions: status
                        .conditions
                        .iter()
                        .map(|c| Condition {
                            kind: c.kind.clone(),
                            status: c.status.clone(),
                            reason: c.reason.clone(),
                            message: c.message.clone(),
                            observed_generation: c.observed_generation,
                            last_transition: c.last_transition_time.parse().ok(),
                        })
                        .collect(),
                };
                self.objects.address_pools.insert(pool.clone(), Arc::new(object));
            }
        }
    }

    /// Writes the status as another client.
    fn write_as_another_client(&mut self, name: &str, address: &str) {
        self.edit(name, |service| {
            service.stored.ingress = vec![Ingress { ip: Some(ip(address)), ..Ingress::default() }];
            service.stored.ingress_managers = vec!["another-controller".into()];
            service.ingress_ips = vec![ip(address)];
        });
    }

    fn condition(&self, name: &str, kind: &str) -> String {
        let condition = self.of(name).stored.condition(&format!("tidegate.dev/{kind}"));
        condition.map_or_else(|| "absent".to_owned(), |c| format!("{} {}", c.status, c.reason))
    }
}

fn reasons(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.reason).collect()
}

#[test]
fn without_a_leader_gateways_report_why_they_cannot_lead() {
    let mut cluster = Cluster::new([service("web")]);
    (cluster.leads, cluster.cannot_lead) = (false, Some("cannot acquire the Lease: 403".to_owned()));
    let first = cluster.round();
    assert_eq!((first.events, first.writes), (vec![], vec![]), "another gateway may be about to lead");
    let again = first.plan_again_at.expect("the Service is checked again");
    assert!(again > cluster.now && again <= cluster.now + SignedDuration::from_secs(60));
    cluster.now = again;
    let plan = cluster.round();
    assert_eq!(reasons(&plan.events), ["WaitingForLeader"]);
    assert!(plan.events[0].note.contains("cannot acquire the Lease: 403"), "{:?}", plan.events);
    assert_eq!(cluster.round().events, [], "once");
    // This gateway leads and reports why there is no address, so the owner gets an explanation.
    cluster.settings.pools.clear();
    cluster.leads = true;
    cluster.run_until_stable();
    assert_eq!(cluster.condition("web", "Allocated"), "False AllocationFailed");
    cluster.leads = false;
    cluster.now += SignedDuration::from_secs(3600);
    assert_eq!(cluster.round().events, []);
    cluster.now += SignedDuration::from_secs(3600);
    assert_eq!(cluster.round().events, []);
}

#[test]
fn a_clock_that_is_set_back_prolongs_no_wait() {
    let hour = SignedDuration::from_hours(1);
    let soon = |cluster: &Cluster, plan: &Plan| {
        plan.plan_again_at.is_some_and(|at| at <= cluster.now + SignedDuration::from_mins(2))
    };
    let mut cluster = Cluster::new([service("web")]);
    (cluster.leads, cluster.cannot_lead) = (false, Some("cannot acquire the Lease: 403".to_owned()));
    cluster.round();
    cluster.now -= hour;
    let waits = cluster.plan();
    assert!(soon(&cluster, &waits), "{waits:?}");
    cluster.now += SignedDuration::from_mins(1);
    assert_eq!(reasons(&cluster.plan().events), ["WaitingForLeader"]);

    let mut cluster = Cluster::new([service("web")]);
    cluster.run_until_stable();
    cluster.write_as_another_client("web", "198.51.100.1");
    cluster.round();
    cluster.now -= hour;
    let yields = cluster.plan();
    assert!(soon(&cluster, &yields), "{yields:?}");
    cluster.now += SignedDuration::from_mins(3);
    let again = cluster.plan();
    let writes_address = |write: &Write| matches!(write, Write::ServiceStatus { ingress: Some(_), .. });
    assert!(again.writes.iter().any(writes_address), "{again:?}");
}

#[test]
fn an_up_to_date_service_is_skipped_until_its_inputs_change() {
    let mut cluster = Cluster::new([service("web"), service("other")]);
    cluster.endpoint("web", "10.0.1.1");
    cluster.run_until_stable();
    let up_to_date = |cluster: &Cluster| cluster.memory.up_to_date.keys().cloned().collect::<Vec<_>>();
    assert_eq!(up_to_date(&cluster), [key("other"), key("web")]);
    // Another endpoint changes the view, which requires a write.
    cluster.endpoint("other", "10.0.1.2");
    assert!(!cluster.plan().writes.is_empty());
    assert_eq!(up_to_date(&cluster), [key("web")]);
    cluster.run_until_stable();
    cluster.edit("web", |service| service.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    cluster.plan();
    assert_eq!(up_to_date(&cluster), [key("other")]);
}

#[test]
fn last_transition_times_change_only_with_the_status() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.run_until_stable();
    let healthy = |cluster: &Cluster| cluster.of("web").stored.condition("tidegate.dev/Healthy").cloned();
    let down = healthy(&cluster).expect("the condition exists");
    cluster.now += SignedDuration::from_hours(1);
    cluster.edit("web", |web| web.stored.generation = 2);
    cluster.run_until_stable();
    let still_down = healthy(&cluster).expect("the condition exists");
    assert_eq!((down.status.as_str(), still_down.observed_generation), ("False", 2));
    assert_eq!(down.last_transition, still_down.last_transition);
    cluster.endpoint("web", "10.0.1.1");
    cluster.run_until_stable();
    let up = healthy(&cluster).expect("the condition exists");
    assert!(up.last_transition > still_down.last_transition && up.status == "True", "{up:?}");
}

#[test]
fn a_write_that_is_not_seen_yet_is_planned_unchanged() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.round();
    let first = cluster.plan();
    cluster.now += SignedDuration::from_mins(5);
    let again = cluster.plan();
    assert_eq!(first.writes, again.writes, "with the same times");
    assert_eq!((first.events.is_empty(), again.events.as_slice()), (false, [].as_slice()), "reported once");
}

#[test]
fn a_service_of_another_class_is_ignored() {
    let mut web = service("web");
    web.load_balancer_class = Some("example.com/other".into());
    let mut cluster = Cluster::new([web]);
    cluster.write_as_another_client("web", "198.51.100.1");
    assert_eq!(cluster.round(), Plan::default());
}

#[test]
fn a_follower_writes_nothing_and_reports_only_its_own_status() {
    let mut wrong = service("web");
    wrong.meta.annotations.insert("tidegate.dev/table-size".into(), "many".into());
    let mut cluster = Cluster::new([wrong]);
    cluster.leads = false;
    let observation = cluster.observe();
    let finding = Finding {
        reason: Reason::FailedToStartServiceHealthcheck,
        ..observation.outcome.findings[0].clone()
    };
    let observation = Observation { own_findings: vec![finding], ..observation };
    let identity = Identity { name: "edge-2".into(), instance: "b".into(), node: None };
    let situation = Situation {
        observation: &observation,
        identity: &identity,
        leads: false,
        withdrawn: 7,
        peers: &[],
        polled: cluster.now,
        duplicate_name: None,
        cannot_lead: None,
        now: cluster.now,
    };
    let plan = plan(&situation, &mut Memory::default());
    assert_eq!(plan.writes, []);
    assert_eq!(reasons(&plan.events), ["FailedToStartServiceHealthcheck"]);
}

#[test]
fn a_service_that_waits_for_an_address_is_not_programmed() {
    let mut waiting = service("web");
    waiting.cluster_ips = vec!["10.96.0.10".parse().expect("an address")];
    let mut inside = waiting.clone();
    inside.meta.key.name = "inside".into();
    inside.meta.uid = "inside".into();
    inside.service_type = tidegate_model::objects::ServiceType::ClusterIp;
    inside.cluster_ips = vec!["10.96.0.11".parse().expect("an address")];
    let mut cluster = Cluster::new([waiting, inside]);
    cluster.settings.services.own_cluster_ips = true;
    cluster.settings.pools.clear();
    cluster.run_until_stable();
    assert_eq!(cluster.condition("web", "Programmed"), "False NoAddress");
    assert!(cluster.of("inside").stored.conditions.is_empty(), "it requests nothing");
}

/// Asserts that the Service has nothing of ours and that its address is free.
fn assert_released(cluster: &mut Cluster, name: &str, how: &str) {
    let stored = &cluster.of(name).stored;
    assert!(stored.conditions.is_empty(), "{how}: {:?}", stored.conditions);
    assert!(stored.ingress.is_empty() && stored.ingress_managers.is_empty(), "{how}: {:?}", stored.ingress);
    assert!(stored.finalizers.is_empty(), "{how}: {:?}", stored.finalizers);
    assert_eq!(cluster.observe().outcome.pools[0].assigned, 0, "{how}");
}

#[test]
fn a_service_that_leaves_is_released_and_may_return() {
    type Edit = fn(&mut Service);
    let label: Edit =
        |web| drop(web.meta.labels.insert("service.kubernetes.io/service-proxy-name".into(), "x".into()));
    let class: Edit = |web| web.load_balancer_class = Some("example.com/other".into());
    let cluster_ip: Edit = |web| {
        web.service_type = ServiceType::ClusterIp;
        // An API server clears the status in this case.
        web.stored.ingress.clear();
        web.stored.ingress_managers.clear();
        web.ingress_ips.clear();
    };
    let external_name: Edit = |web| web.service_type = ServiceType::ExternalName;
    for (how, edit) in
        [("label", label), ("class", class), ("ClusterIP", cluster_ip), ("ExternalName", external_name)]
    {
        let mut cluster = Cluster::new([service("web")]);
        cluster.run_until_stable();
        for _ in 0..2 {
            let stored = cluster.of("web").stored.clone();
            assert!(stored.is_finalized_by_us() && stored.ingress.len() == 1, "{how}: {stored:?}");
            let before = Service::clone(cluster.of("web"));
            cluster.version += 1;
            cluster.edit("web", edit);
            let plan = cluster.round();
            assert!(plan.writes.is_empty() && plan.waits_for_peers, "{how}: others still serve it: {plan:?}");
            cluster.withdrawn = cluster.version;
            cluster.run_until_stable();
            assert_released(&mut cluster, "web", how);
            cluster.version += 1;
            cluster.withdrawn = cluster.version;
            cluster.edit("web", |web| {
                web.meta.labels.clear();
                web.load_balancer_class = None;
                web.service_type = ServiceType::LoadBalancer;
            });
            cluster.run_until_stable();
            assert_eq!(
                cluster.of("web").stored.ingress,
                before.stored.ingress,
                "{how}: it has its address again"
            );
        }
    }
}

#[test]
fn a_lost_address_is_released_once_every_gateway_has_seen_it() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.run_until_stable();
    let annotation = ("tidegate.dev/address-pool".to_owned(), "another".to_owned());
    cluster.edit("web", |web| web.meta.annotations.extend([annotation]));
    cluster.round();
    assert!(cluster.of("web").stored.ingress.is_empty(), "the status is cleared first");
    cluster.version += 1;
    let plan = cluster.round();
    assert!(cluster.of("web").stored.is_finalized_by_us() && plan.waits_for_peers, "{plan:?}");
    cluster.withdrawn = cluster.version;
    cluster.run_until_stable();
    assert!(!cluster.of("web").stored.is_finalized_by_us());
    assert!(
        cluster.condition("web", "Allocated").starts_with("False "),
        "and the condition explains the wait"
    );
}

#[test]
fn no_service_is_released_while_the_version_of_the_services_is_unknown() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.run_until_stable();
    cluster.edit("web", |web| web.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    cluster.version = 0;
    let plan = cluster.round();
    assert_eq!((plan.writes.as_slice(), plan.waits_for_peers), ([].as_slice(), true));
}

#[test]
fn a_gateway_reports_its_services_its_node_and_its_progress() {
    let mut cluster = Cluster::new([service("web"), service("gone")]);
    cluster.run_until_stable();
    cluster.edit("gone", |gone| gone.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
    let observation = cluster.observe();
    let observation = Observation { version: 9, ..observation };
    let identity = Identity { name: "edge-2".into(), instance: "b".into(), node: Some("n1".into()) };
    let status_of = |observation: &Observation, before: &crd::GatewayStatusStatus| {
        let now = cluster.now;
        let (peers, duplicate_name) = (&[][..], None);
        let (leads, withdrawn, cannot_lead, polled) = (false, 0, None, now);
        let identity = &identity;
        let situation = Situation {
            observation,
            identity,
            leads,
            withdrawn,
            peers,
            polled,
            duplicate_name,
            cannot_lead,
            now,
        };
        gateway_status(&situation, before)
    };
    let status = status_of(&observation, &crd::GatewayStatusStatus::default());
    let address = cluster.of("web").stored.ingress[0].ip.expect("an address").to_string();
    assert_eq!((status.vips.as_slice(), status.vip_count), ([address].as_slice(), 1));
    assert_eq!(status.applied_resource_version, "7", "the version that its workers have applied");
    assert_eq!(status.addresses, ["10.0.0.1", "10.0.0.3"]);
    let mut keeps = observation.clone();
    keeps.forwarding.keeps_services = true;
    assert_eq!(status_of(&keeps, &status).applied_resource_version, "0", "it may serve any Service");
    assert_eq!((status.node.as_str(), status.services, status.leader), ("n1", 1, false));
    assert_eq!(status_of(&observation, &status), status, "nothing changes, including the times");
}

#[derive(Debug, Clone)]
enum Step {
    Create(u8),
    Delete(u8),
    Class(u8, bool),
    Type(u8),
    Request(u8, u8),
    Stranger(u8),
    Endpoint(u8),
    Restart,
    Pools(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let n = || 0..4_u8;
    let step = prop_oneof![
        4 => n().prop_map(Step::Create),
        2 => n().prop_map(Step::Delete),
        1 => (n(), any::<bool>()).prop_map(|(n, ours)| Step::Class(n, ours)),
        1 => n().prop_map(Step::Type),
        1 => (n(), 0..16_u8).prop_map(|(n, host)| Step::Request(n, host)),
        1 => n().prop_map(Step::Stranger),
        1 => n().prop_map(Step::Endpoint),
        1 => Just(Step::Restart),
        1 => any::<bool>().prop_map(Step::Pools),
    ];
    proptest::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// After any steps, the writes end, planning again plans nothing, no address is in a status without the finalizer
    /// (checked by `Cluster::take`), and no address of ours is in two statuses.
    #[test]
    fn planning_again_after_applying_a_plan_gives_nothing(steps in steps()) {
        let mut cluster = Cluster::new([]);
        for step in steps {
            let name = |n: u8| format!("s{n}");
            let known = |cluster: &Cluster, n: u8| cluster.objects.services.contains_key(&key(&name(n)));
            match step {
                Step::Create(n) if !known(&cluster, n) => cluster.put(service(&name(n))),
                Step::Delete(n) if known(&cluster, n) => {
                    if cluster.of(&name(n)).stored.finalizers.is_empty() {
                        cluster.objects.services.remove(&key(&name(n)));
                    } else {
                        cluster.edit(&name(n), |s| s.meta.deletion_time = Some(Timestamp::UNIX_EPOCH));
                    }
                }
                Step::Class(n, ours) if known(&cluster, n) => cluster.edit(&name(n), |s| {
                    s.load_balancer_class = (!ours).then(|| "example.com/other".into());
                    s.stored.generation += 1;
                }),
                Step::Type(n) if known(&cluster, n) => cluster.edit(&name(n), |s| {
                    s.service_type = ServiceType::ClusterIp;
                    s.stored.generation += 1;
                }),
                Step::Request(n, host) if known(&cluster, n) => cluster.edit(&name(n), |s| {
                    s.load_balancer_ip = Some(ip(&format!("203.0.113.{host}")));
                    s.stored.generation += 1;
                }),
                Step::Stranger(n) if known(&cluster, n) => cluster.write_as_another_client(&name(n), "198.51.100.1"),
                Step::Endpoint(n) => cluster.endpoint(&name(n), "10.0.1.1"),
                Step::Restart => (cluster.memory, cluster.reconciled) = Default::default(),
                Step::Pools(some) => {
                    cluster.settings.pools = if some { vec![pool("public", "203.0.113.0/28")] } else { vec![] };
                }
                _ => continue,
            }
            cluster.run_until_stable();
            let again = cluster.plan();
            prop_assert_eq!(&again.writes, &[] as &[Write]);
            prop_assert_eq!(&again.events, &[] as &[Event]);
            let mut seen = BTreeSet::new();
            for service in cluster.objects.services.values() {
                let ours = service.stored.ingress_managers.iter().any(|m| m == FIELD_MANAGER);
                for ip in service.ingress_ips.iter().filter(|_| ours) {
                    prop_assert!(seen.insert(*ip), "{} is in two statuses", ip);
                }
            }
        }
    }
}
