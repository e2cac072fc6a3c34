//! Messages are for display only: changing their wording changes no other part of writes, statuses and events.
//!
//! Two clusters run the same steps. One uses the gateway's messages, in the other all texts in the results of the
//! rounds are replaced. Their plans must be equal except for message fields.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::TrafficPolicy;

use super::*;
use crate::reasons::condition_type;

/// Words that a program could mistake for a reason, a mode, a kind or a status, and some meaningless ones.
const WORDS: &[&str] = &[
    "",
    "not supported",
    "another Service",
    "LoadBalancer",
    "dsr-l2",
    "True",
    "AllocationFailed: no address",
    "it belongs to Service default/web",
    "waits",
];

/// Replaces a text. Different texts stay different.
fn reworded(text: &str, words: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{words} {:x} {words}", hasher.finish())
}

fn reword_findings<'a>(findings: impl IntoIterator<Item = &'a mut Finding>, words: &str) {
    for Finding { diagnostic: Diagnostic { what, accepted, .. }, .. } in findings {
        *what = reworded(what, words);
        *accepted = accepted.as_deref().map(|text| reworded(text, words));
    }
}

/// Replaces all texts for display.
fn reword(observation: &mut Observation, words: &str) {
    let change = |text: &mut String| *text = reworded(text, words);
    let outcome = Arc::make_mut(&mut observation.outcome);
    for view in &mut outcome.services {
        let view = Arc::make_mut(view);
        view.pending.iter_mut().chain(&mut view.refused).chain(&mut view.unapplied).for_each(change);
        view.warnings.iter_mut().for_each(change);
        for port in &mut view.ports {
            port.refused.iter_mut().for_each(|refusal| change(&mut refusal.message));
            port.note.iter_mut().for_each(change);
            port.backends.iter_mut().flat_map(|backend| &mut backend.health.failure).for_each(change);
        }
    }
    let mut findings = outcome.findings.to_vec();
    reword_findings(&mut findings, words);
    outcome.findings = findings.into();
    reword_findings(&mut observation.own_findings, words);
    observation
        .forwarding
        .publish_failure
        .iter_mut()
        .chain(&mut observation.forwarding.links_lost)
        .chain(&mut observation.forwarding.hung)
        .for_each(change);
}

/// The results of one round for an API server, without messages.
#[derive(Debug, PartialEq)]
struct Written {
    writes: Vec<Write>,
    events: Vec<Event>,
    plan_again_at: Option<Timestamp>,
    gateway: crd::GatewayStatusStatus,
}

fn without_messages(mut plan: Plan, mut gateway: crd::GatewayStatusStatus) -> Written {
    for write in &mut plan.writes {
        match write {
            // The record of allocated addresses is for programs.
            Write::ServiceStatus { conditions, .. } => {
                let for_people = |c: &&mut Condition| c.kind != condition_type::RECORD.as_str();
                conditions.iter_mut().filter(for_people).for_each(|c| c.message.clear());
            }
            Write::PoolStatus { status, .. } => status.conditions.iter_mut().for_each(|c| c.message.clear()),
            // The clusters of these tests have no Gateways.
            Write::Finalizer { .. } | Write::PoolFinalizer { .. } | Write::GatewayApiStatus { .. } => {}
        }
    }
    plan.events.iter_mut().for_each(|event| event.note.clear());
    gateway.conditions.iter_mut().for_each(|c| c.message.clear());
    Written { writes: plan.writes, events: plan.events, plan_again_at: plan.plan_again_at, gateway }
}

/// Runs a round whose writes succeed. Uses `words` instead of the gateway's texts if given.
fn round(cluster: &mut Cluster, fails: bool, words: Option<&str>) -> Written {
    let mut observation = cluster.observe();
    if fails {
        observation.forwarding.publish_failure = Some("table full".to_owned());
        observation.forwarding.links_lost = vec!["uplink: the link is down".to_owned()];
        observation.forwarding.hung = vec!["worker 0 hangs".to_owned()];
        let of_ours = observation.outcome.findings.iter().filter(|f| f.kind == ObjectKind::Service);
        let of_ours = of_ours.take(1).cloned();
        let reason = Reason::FailedToStartServiceHealthcheck;
        observation.own_findings = of_ours.map(|finding| Finding { reason, ..finding }).collect();
    }
    let (mut duplicate_name, mut cannot_lead) = ("instance b".to_owned(), "403".to_owned());
    if let Some(words) = words {
        reword(&mut observation, words);
        duplicate_name = reworded(&duplicate_name, words);
        cannot_lead = reworded(&cannot_lead, words);
    }
    let identity = Identity { name: "edge-1".into(), instance: "a".into(), node: None };
    let situation = Situation {
        observation: &observation,
        identity: &identity,
        leads: cluster.leads,
        withdrawn: cluster.withdrawn,
        peers: &cluster.peers,
        polled: cluster.now,
        duplicate_name: fails.then_some(duplicate_name.as_str()),
        cannot_lead: (!cluster.leads).then_some(cannot_lead.as_str()),
        now: cluster.now,
    };
    let plan = plan(&situation, &mut cluster.memory);
    let gateway = gateway_status(&situation, &crd::GatewayStatusStatus::default());
    plan.writes.iter().for_each(|write| cluster.take(write));
    cluster.now += SignedDuration::from_secs(10);
    without_messages(plan, gateway)
}

fn annotated(name: &str, annotation: &str, value: &str) -> Service {
    let mut service = service(name);
    service.meta.annotations.insert(annotation.into(), value.into());
    service
}

/// Services that are refused, pending, denied and in conflict, each for a different reason.
fn cluster() -> Cluster {
    let mut sctp = service("sctp");
    sctp.ports.push(port("signal", 82, 82, Protocol::Sctp));
    let mut direct = annotated("direct", "tidegate.dev/forwarding", "dsr-l2");
    direct.ports = vec![port("same", 80, 80, Protocol::Tcp), port("other", 81, 8081, Protocol::Tcp)];
    let mut limited = annotated("limited", "tidegate.dev/forwarding", "dsr-l2");
    limited.meta.annotations.insert("tidegate.dev/proxy-protocol".into(), "v2".into());
    limited.ports = vec![port("same", 80, 80, Protocol::Tcp)];
    let selects = annotated("selects", "tidegate.dev/backend-node-selector", "zone in not supported");
    let pending = annotated("pending", "tidegate.dev/address-pool", "none-of-this-name");
    let mut denied = service("denied");
    (denied.service_type, denied.external_ips) = (ServiceType::ClusterIp, vec![ip("192.0.2.1")]);
    let mut local = service("local");
    local.external_traffic_policy = TrafficPolicy::Local;
    let shared = |name: &str, number: u16| {
        let mut service = annotated(name, "tidegate.dev/allow-shared-ip", "shared");
        service.load_balancer_ip = Some(ip("203.0.113.9"));
        service.ports = vec![port("http", number, 8080, Protocol::Tcp)];
        service
    };
    let services =
        [sctp, direct, limited, selects, pending, denied, local, shared("first", 90), shared("second", 91)];
    let mut cluster = Cluster::new(services);
    for (name, network) in [("a", "198.51.100.0/28"), ("b", "198.51.100.8/29")] {
        let object = AddressPool {
            meta: Metadata::new(ObjectKey::new("", name)),
            pool: pool(name, network),
            faults: Vec::new(),
            generation: 1,
            is_finalized_by_us: false,
            status: AddressPoolStatus::default(),
        };
        cluster.objects.address_pools.insert(name.into(), Arc::new(object));
    }
    cluster.settings.services.defaults.forwarding = ForwardingMode::FullNat;
    cluster.endpoint("sctp", "10.0.1.1");
    cluster.endpoint("local", "10.0.1.2");
    cluster
}

/// The writes since the first round, with the texts of the gateway or with replaced texts.
fn story(words: Option<&str>) -> (Vec<Written>, Cluster) {
    let mut cluster = cluster();
    let mut written = Vec::new();
    let mut rounds = |cluster: &mut Cluster, n: usize, fails: bool| {
        written.extend((0..n).map(|_| round(cluster, fails, words)));
    };
    rounds(&mut cluster, 5, false);
    // Another Service on the shared address already uses the port.
    cluster.edit("second", |service| service.ports.push(port("more", 90, 8080, Protocol::Tcp)));
    rounds(&mut cluster, 3, false);
    cluster.unapplied = Arc::new(BTreeSet::from([key("local"), key("sctp")]));
    rounds(&mut cluster, 3, true);
    cluster.unapplied = Arc::default();
    cluster.write_as_another_client("local", "198.51.100.1");
    cluster.settings.pools.clear();
    rounds(&mut cluster, 3, false);
    cluster.leads = false;
    rounds(&mut cluster, 5, false);
    (written, cluster)
}

#[test]
fn no_wording_of_a_message_changes_what_is_written_to_the_api() {
    let (plain, cluster) = story(None);
    let errors = |name: &str| {
        let ports = cluster.of(name).stored.ingress.iter().flat_map(|ingress| &ingress.ports);
        ports.filter_map(|port| port.error.clone()).collect::<Vec<_>>()
    };
    // The steps produce every port error, so replaced words could affect them.
    assert_eq!(errors("limited"), ["tidegate.dev/NotSupported"]);
    assert_eq!(errors("direct"), ["tidegate.dev/PortNotProgrammed"]);
    assert_eq!(errors("selects"), ["tidegate.dev/PortNotProgrammed"]);
    assert_eq!(errors("second"), ["tidegate.dev/Conflict"]);
    for words in WORDS {
        let (other, _) = story(Some(words));
        for (at, (plain, other)) in plain.iter().zip(&other).enumerate() {
            assert_eq!(plain, other, "round {at}, with the words {words:?}");
        }
    }
}
