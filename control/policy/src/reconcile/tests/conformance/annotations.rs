//! Section 8, our own annotations: the effect of each, its range, and the findings for invalid values.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use tidegate_model::config::{self, FlowLogDefaults};
use tidegate_spec::{FlowTracking, FormerWeight, HashInput, MssClamp, Scheduler, SourceRate, SynCookies};

use super::*;
use crate::reconcile::annotations::key;

fn annotated_with(key: &str, value: &str) -> Outcome {
    Both::new(&annotated_web(&[(key, value)])).look()
}

/// The outcome without the annotation.
fn plain() -> Outcome {
    Both::new(&annotated_web(&[])).look()
}

/// Invalid values for which the default is used.
const NOT_UNDERSTOOD: &[(&str, &str, &str)] = &[
    (key::FORWARDING, "dsr", "dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat"),
    (key::FORWARDING, "", "dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat"),
    (key::FLOW_LOG, "yes", config::FLOW_LOG_ACCEPTED),
    (key::FLOW_LOG, "1/0", config::FLOW_LOG_ACCEPTED),
    (key::GUE_VARIANT, "2", "0, 1"),
    (key::GUE_PORT, "0", "a port number, 1 to 65535"),
    (key::GUE_PORT, "65536", "a port number, 1 to 65535"),
    (key::GUE_PORT, "+6080", "a port number, 1 to 65535"),
    (key::GRE_KEY, "4294967296", "0 to 4294967295, or none"),
    (key::GRE_KEY, "-1", "0 to 4294967295, or none"),
    (key::GRE_KEY, "", "0 to 4294967295, or none"),
    (key::DSCP, "0", "1 to 63, different for VIPs that share a backend"),
    (key::DSCP, "ef", "1 to 63, different for VIPs that share a backend"),
    (key::GENEVE_PORT, "0", "a port number, 1 to 65535"),
    (key::GENEVE_VNI, "16777216", "0 to 16777215"),
    (key::GENEVE_VNI, "none", "0 to 16777215"),
    (key::TARGET, "pods", "pod, node"),
    (key::SCHEDULER, "round", "rendezvous, maglev, wrr, lc, sed, nq, sh, dh"),
    (key::TABLE_SIZE, "65536", "a prime from 251 to 655373 such as 65521 or 65537"),
    (key::TABLE_SIZE, "241", "a prime from 251 to 655373 such as 251"),
    (key::TABLE_SIZE, "655387", "a prime from 251 to 655373 such as 655373"),
    (key::TABLE_SIZE, "many", "a prime from 251 to 655373 such as 65537"),
    (key::TABLE_SIZE, "auto", "a prime from 251 to 655373 such as 65537"),
    (key::DRAIN_TIMEOUT, "soon", "a duration such as"),
    (key::DRAIN_TIMEOUT, "86401s", "0s to 24h"),
    (key::DRAIN_TIMEOUT, "-1s", "0s to 24h"),
    (key::IDLE_TIMEOUT_TCP, "0s", "1s to 168h"),
    (key::IDLE_TIMEOUT_TCP, "604801s", "1s to 168h"),
    (key::IDLE_TIMEOUT_UDP, "999ms", "1s to 24h"),
    (key::IDLE_TIMEOUT_UDP, "2 days", "a duration such as"),
    (key::IDLE_TIMEOUT_SCTP, "0s", "1s to 168h"),
    (key::FLOW_TRACKING, "never", "always, on-change"),
    (key::FLOW_TRACKING, "", "always, on-change"),
    (key::PASSIVE_HEALTH, "yes", "on, off"),
    (key::SYN_COOKIES, "on", "off, auto, always"),
    (key::SYN_COOKIES, "", "off, auto, always"),
    (key::MSS_CLAMP, "535", "off, path, or a number of bytes from 536 to 65495"),
    (key::MSS_CLAMP, "65496", "off, path, or a number of bytes from 536 to 65495"),
    (key::MSS_CLAMP, "auto", "off, path, or a number of bytes from 536 to 65495"),
    (key::SLOW_START, "9s", "0s, or a duration from 10s to 1h"),
    (key::SLOW_START, "61m", "0s, or a duration from 10s to 1h"),
    (key::SLOW_START, "slow", "0s, or a duration from 10s to 1h"),
    (key::BGP_COMMUNITIES, "65536:1", "a community such as 65000:100"),
    (
        key::BGP_COMMUNITIES,
        "1:1,1:2,1:3,1:4,1:5,1:6,1:7,1:8,1:9,1:10,1:11,1:12,1:13,1:14,1:15,1:16,1:17,1:18,1:19\
         ,1:20,1:21,1:22,1:23,1:24,1:25,1:26,1:27,1:28,1:29,1:30,1:31,1:32,1:33",
        "a list of at most 32, separated by commas",
    ),
    (key::BGP_LOCAL_PREF, "-1", "from 0 to 4294967295"),
    (key::BGP_MED, "low", "from 0 to 4294967295"),
    (key::BGP_PREPENDS, "11", "from 0 to 10"),
    (key::ADDRESS_POOL, "", "the name of a pool"),
    (key::ALLOW_SHARED_IP, " ", "any text that is the same on all Services that share an address"),
    (key::HEALTH_PROTOCOL, "smtp", "tcp, http, https, udp, sctp, none"),
    (key::HEALTH_PORT, "0", "a port number, 1 to 65535"),
    (key::HEALTH_PORT, "65536", "a port number, 1 to 65535"),
    (key::HEALTH_PORT, "http", "a port number, 1 to 65535"),
    (key::HEALTH_PATH, "healthz", "a path such as /healthz"),
    (key::HEALTH_PATH, "/a b", "a path such as /healthz"),
    (key::HEALTH_PATH, "/a#b", "a path such as /healthz"),
    (key::HEALTH_INTERVAL, "99ms", "100ms to 1h"),
    (key::HEALTH_INTERVAL, "3601s", "100ms to 1h"),
    (key::HEALTH_TIMEOUT, "9ms", "10ms to 1h"),
    (key::HEALTH_TIMEOUT, "61m", "10ms to 1h"),
    (key::HEALTHY_THRESHOLD, "0", "1 to 100"),
    (key::HEALTHY_THRESHOLD, "101", "1 to 100"),
    (key::UNHEALTHY_THRESHOLD, "-1", "1 to 100"),
    (key::UNHEALTHY_THRESHOLD, "all", "1 to 100"),
];

/// One address more than a list may have.
const SEVENTEEN: &str = "9.9.9.0,9.9.9.1,9.9.9.2,9.9.9.3,9.9.9.4,9.9.9.5,9.9.9.6,9.9.9.7,9.9.9.8,9.9.9.9,9.9.9.0,9.9.9.1,9.9.9.2,9.9.9.3,9.9.9.4,9.9.9.5,9.9.9.6";

/// Nothing is served for these values: invalid ones whose default could allow what the author wanted to exclude, and
/// requests that are not granted yet.
const UNSAFE: &[(&str, &str, Reason, &str)] = &[
    (key::LOAD_BALANCER_IPS, "203.0.113.400", Reason::InvalidValue, "one IPv4 address, one IPv6 address"),
    (key::LOAD_BALANCER_IPS, ",", Reason::InvalidValue, "one IPv4 address, one IPv6 address"),
    (key::LOAD_BALANCER_IPS, SEVENTEEN, Reason::InvalidValue, "one IPv4 address, one IPv6 address"),
    (key::BACKEND_NODE_SELECTOR, "disk=ssd=fast", Reason::InvalidValue, "a label selector such as"),
    (key::HASH, "source", Reason::InvalidValue, "flow, client"),
    (key::PROXY_PROTOCOL, "v3", Reason::InvalidValue, "v1, v2, toa, none"),
    (key::PROXY_TLVS, "aws-vpce", Reason::InvalidValue, "one or more of unique-id, crc32c and vpce-id=TEXT"),
    (key::MAX_BANDWIDTH, "10Mbit", Reason::InvalidValue, "bits per second from 1M to 100G"),
    (key::MAX_BANDWIDTH, "999k", Reason::InvalidValue, "bits per second from 1M to 100G"),
    (key::MAX_CONNECTION_RATE, "100/s", Reason::InvalidValue, "from 1 to 100000000"),
    (key::MAX_CONNECTIONS, "many", Reason::InvalidValue, "from 1 to 1000000000"),
];

#[test]
fn an_invalid_value_names_key_value_and_accepted_and_the_default_is_used() {
    let plain = plain();
    for (key, value, accepted) in NOT_UNDERSTOOD {
        let outcome = annotated_with(key, value);
        assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets), "{key}: {value}");
        let (reason, what, wording) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue, "{key}: {value}");
        assert!(what.contains(&format!("{key}: {:?}", value.trim())), "{what}");
        assert!(wording.contains(accepted), "{key}: {value}: {wording}");
    }
}

#[test]
fn unless_the_default_would_be_unsafe() {
    for (key, value, reason, accepted) in UNSAFE {
        let fine = slice_of_web("fine", "IPv4", &["addresses: [10.0.1.2]"])
            .replace("service-name: web", "service-name: fine");
        let both = Both::new(&(annotated_web(&[(key, value)]) + &service_with("name: fine", "") + &fine));
        let outcome = both.look();
        assert_eq!(only(&outcome).name, "fine", "{key}: {value}");
        let checks: Vec<String> = outcome.targets.iter().map(ToString::to_string).collect();
        assert_eq!(checks, ["tcp://10.0.1.2:8080"], "what is not programmed is not checked");
        let (is, what, wording) = finding(&outcome);
        assert_eq!(is, *reason, "{key}: {value}");
        assert!(what.contains(&format!("{key}: {value:?}")), "{what}");
        assert!(wording.contains(accepted), "{key}: {value}: {wording}");
        let web = outcome.services.iter().find(|s| s.name == "web").expect("it is shown nevertheless");
        let refused = web
            .pending
            .as_deref()
            .or(web.ports.first().and_then(|p| p.refused.as_ref().map(|refusal| refusal.message.as_str())));
        assert!(refused.is_some_and(|why| why.contains(key)), "{refused:?}");
    }
}

#[test]
fn every_annotation_of_ours_has_an_error_path() {
    let wrong = NOT_UNDERSTOOD.iter().map(|w| w.0).chain(UNSAFE.iter().map(|w| w.0));
    let covered: BTreeSet<&str> = wrong.collect();
    assert_eq!(covered, key::ON_SERVICE.iter().copied().collect());
}

#[test]
fn a_message_has_the_line_of_the_value_or_names_the_object() {
    let yaml = "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  namespace: shop\n  annotations:\n    tidegate.dev/scheduler: \
                maglev\n    tidegate.dev/table-size: 'many'\nspec:\n  type: LoadBalancer\n  \
                allocateLoadBalancerNodePorts: false\n  ports: [{port: 80}]\n";
    let [directory, api] = Both::new(yaml).each();
    let wording = "error: annotation tidegate.dev/table-size: \"many\" is invalid: the default is used; accepted: \
                a prime from 251 to 655373 such as 65537";
    let message = messages(&directory)[0].clone();
    assert!(message.ends_with(&format!("objects.yaml:8:30: {wording}")), "{message}");
    assert_eq!(messages(&api), [format!("Service shop/web: {wording}")]);
}

#[test]
fn an_annotation_of_edges_programs_no_port_on_a_gateway() {
    for annotation in crate::reconcile::edge_key::ALL {
        let outcome = annotated_with(annotation, "tcp");
        assert!(outcome.spec.services.is_empty(), "{annotation}");
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::NotSupported);
        assert!(what.starts_with(&format!("annotation {annotation} is not supported: ")), "{what}");
        assert!(accepted.contains("edges"), "{accepted}");
    }
}

#[test]
fn an_unknown_annotation_of_ours_is_a_warning_with_a_suggestion() {
    let finding_for = |key: &str| {
        let outcome = annotated_with(key, "nat");
        assert_eq!(outcome.spec, plain().spec);
        let finding = outcome.findings.iter().next().expect("it is reported");
        assert_eq!(finding.reason, Reason::InvalidValue);
        finding.diagnostic.clone()
    };
    let misspelt = finding_for("tidegate.dev/fowarding");
    let wording = "annotation tidegate.dev/fowarding is not known; did you mean tidegate.dev/forwarding?";
    assert_eq!((misspelt.what.as_str(), misspelt.accepted), (wording, None));
    assert!(
        finding_for("tidegate.dev/idle-timout-tcp")
            .what
            .ends_with("did you mean tidegate.dev/idle-timeout-tcp?")
    );
    let unlike = finding_for("tidegate.dev/xyzzyplughxyzzyplugh");
    let accepted = unlike.accepted.expect("no name is similar");
    assert!(key::ON_SERVICE.iter().all(|key| accepted.contains(key)));
}

#[test]
fn annotations_of_routes_reach_the_view_and_change_no_packet() {
    let yaml = annotated_web(&[
        (key::BGP_COMMUNITIES, "65000:2, no-export"),
        (key::BGP_LOCAL_PREF, "50"),
        (key::BGP_MED, "7"),
        (key::BGP_PREPENDS, "2"),
    ]);
    let outcome = Both::new(&yaml).look();
    assert_eq!((&outcome.spec, messages(&outcome)), (&plain().spec, vec![]));
    let shown = serde_json::to_value(&outcome.services[0].bgp).unwrap();
    let expected = serde_json::json!({"communities": ["65000:2", "65535:65281"], "localPref": 50, "med": 7, "prepends": 2});
    assert_eq!(shown, expected);
}

#[test]
fn target_is_pod_or_node() {
    let nodes = node_yaml("n1", &["10.0.2.1"], "");
    let backends = |word: &str| {
        let service = annotated_web(&[(key::TARGET, word)])
            .replace("targetPort: 8080}", "targetPort: 8080, nodePort: 30080}")
            .replace("  allocateLoadBalancerNodePorts: false\n", "");
        Both::new(&(service + &nodes)).backends()
    };
    assert_eq!(backends("pod"), ["10.0.1.1:8080 active"]);
    assert_eq!(backends("node"), ["10.0.2.1:30080 active"]);
}

#[test]
fn scheduler_table_size_and_idle_timeouts_reach_the_spec() {
    let rendezvous = annotated_with(key::SCHEDULER, "rendezvous");
    assert_eq!((&rendezvous.spec, messages(&rendezvous)), (&plain().spec, vec![]));
    let default = Both::new(&annotated_web(&[(key::SCHEDULER, "maglev")])).look();
    assert_eq!(only(&default).scheduler, Scheduler::Maglev { slots: 65_537 });
    let outcome = Both::new(&annotated_web(&[
        (key::SCHEDULER, "maglev"),
        (key::TABLE_SIZE, "8191"),
        (key::IDLE_TIMEOUT_TCP, "1h"),
        (key::IDLE_TIMEOUT_UDP, " 30s "),
        (key::IDLE_TIMEOUT_SCTP, "10m"),
    ]))
    .look();
    assert_eq!(messages(&outcome).len(), 2, "the Service has only a TCP port: {:?}", messages(&outcome));
    let spec = only(&outcome);
    assert_eq!(spec.scheduler, Scheduler::Maglev { slots: 8_191 });
    assert_eq!((spec.idle_timeout_tcp.as_secs(), spec.idle_timeout_udp.as_secs()), (3600, 30));
    assert_eq!(spec.idle_timeout_sctp.as_secs(), 600);
    assert_eq!(only(&plain()).idle_timeout_sctp.as_secs(), 900);
    for (key, value) in [
        (key::IDLE_TIMEOUT_TCP, "1s"),
        (key::IDLE_TIMEOUT_TCP, "604800s"),
        (key::IDLE_TIMEOUT_UDP, "86400s"),
        (key::IDLE_TIMEOUT_SCTP, "604800s"),
        (key::DRAIN_TIMEOUT, "0s"),
        (key::DRAIN_TIMEOUT, "24h"),
        (key::PROXY_PROTOCOL, "none"),
        (key::MAX_BANDWIDTH, "0"),
        (key::MAX_CONNECTION_RATE, "0"),
        (key::MAX_CONNECTIONS, "0"),
    ] {
        let outcome = annotated_with(key, value);
        let invalid = messages(&outcome).into_iter().any(|wording| wording.contains("is invalid"));
        assert_eq!((outcome.spec.services.len(), invalid), (1, false), "{key}: {value}");
    }
}

#[test]
fn app_protocol_sets_the_default_idle_timeout_and_changes_no_check() {
    let idle = |protocol: &str, annotations: &[(&str, &str)]| {
        // The last value of a key counts.
        let nat = [(key::FORWARDING, "nat")];
        let all: BTreeMap<_, _> = nat.iter().chain(annotations).copied().collect();
        let all: Vec<_> = all.into_iter().collect();
        let yaml = annotated_web(&all);
        let with = yaml.replace("port: 80,", &format!("port: 80, appProtocol: {protocol},"));
        assert_ne!(yaml, with, "the port is in the text");
        let outcome = Both::new(&with).look();
        let checks: Vec<String> = outcome.targets.iter().map(ToString::to_string).collect();
        assert_eq!((messages(&outcome), checks), (vec![], vec!["tcp://10.0.1.1:8080".to_owned()]));
        only(&outcome).idle_timeout_tcp.as_secs()
    };
    for protocol in ["kubernetes.io/ws", "kubernetes.io/wss", "WSS", "mqtt", "amqp"] {
        assert_eq!(idle(protocol, &[]), 86_400, "{protocol}");
        assert_eq!(idle(protocol, &[(key::IDLE_TIMEOUT_TCP, "1h")]), 3_600, "{protocol}");
        // A vanished client would keep its SNAT port for a day.
        assert_eq!(idle(protocol, &[(key::FORWARDING, "fullnat")]), 7_440, "{protocol}");
    }
    for protocol in ["http", "https", "kubernetes.io/h2c", "example.com/ws"] {
        assert_eq!(idle(protocol, &[]), 7_440, "{protocol}");
    }
}

#[test]
fn every_scheduler_reaches_the_spec_from_annotation_and_configuration() {
    use tidegate_spec::LoadRule;
    for (word, scheduler) in [
        ("wrr", Scheduler::WeightedRoundRobin),
        ("lc", Scheduler::Loads(LoadRule::LeastConnections)),
        ("sed", Scheduler::Loads(LoadRule::ShortestDelay)),
        ("nq", Scheduler::Loads(LoadRule::NeverQueue)),
        ("sh", Scheduler::SourceHash),
        ("dh", Scheduler::DestinationHash),
    ] {
        let outcome = annotated_with(key::SCHEDULER, word);
        assert_eq!((only(&outcome).scheduler, messages(&outcome)), (scheduler, vec![]));
        assert_eq!(scheduler.as_str(), word);
        let same = tidegate_model::config::scheduler(word);
        assert_eq!(same.map(tidegate_model::config::Scheduler::as_str), Some(word));
    }
}

#[test]
fn hash_reaches_the_spec_and_client_needs_a_scheduler_that_supports_it() {
    let requested = |hash: &str, scheduler: &str| {
        Both::new(&annotated_web(&[(key::HASH, hash), (key::SCHEDULER, scheduler)])).look()
    };
    for scheduler in ["rendezvous", "maglev", "sh"] {
        let outcome = requested("client", scheduler);
        assert_eq!(
            (only(&outcome).choice.hash, messages(&outcome)),
            (HashInput::Client, vec![]),
            "{scheduler}"
        );
    }
    for scheduler in ["rendezvous", "maglev", "wrr", "lc"] {
        let outcome = requested(" flow ", scheduler);
        assert_eq!(
            (only(&outcome).choice.hash, messages(&outcome)),
            (HashInput::Flow, vec![]),
            "{scheduler}"
        );
    }
    for (scheduler, why) in [
        ("wrr", "does not choose by a hash"),
        ("lc", "does not choose by a hash"),
        ("dh", "chooses by the VIP"),
    ] {
        let outcome = requested("client", scheduler);
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!((outcome.spec.services.len(), reason), (0, Reason::InvalidValue));
        let whole = format!("cannot be guaranteed: scheduler {scheduler} {why}; no port is programmed");
        assert!(what.ends_with(&whole), "{what}");
        assert_eq!(accepted, "tidegate.dev/scheduler rendezvous, maglev or sh, or sessionAffinity: ClientIP");
        let refused = outcome.services[0].ports[0].refused.as_ref().expect("it is shown");
        assert!(refused.message.contains(why), "{refused}");
    }
    for (scheduler, why) in [("sh", "chooses by the client's address"), ("dh", "chooses by the VIP")] {
        let outcome = requested("flow", scheduler);
        let (_, what, _) = finding(&outcome);
        assert_eq!(outcome.spec.services.len(), 1);
        assert_eq!(what, format!("annotation tidegate.dev/hash has no effect: scheduler {scheduler} {why}"));
    }
    let sticky = |hash: &str| {
        let yaml = annotated_web(&[(key::HASH, hash)]);
        Both::new(&yaml.replace("spec:\n", "spec:\n  sessionAffinity: ClientIP\n")).look()
    };
    assert_eq!(messages(&sticky("client")), [] as [String; 0]);
    let outcome = sticky("flow");
    let (_, what, _) = finding(&outcome);
    assert!(what.ends_with("sessionAffinity: ClientIP chooses by the client's address"), "{what}");
}

#[test]
fn a_table_size_is_251_to_655373_and_has_no_effect_without_a_table() {
    for size in ["251", "655373"] {
        let maglev = Both::new(&annotated_web(&[(key::SCHEDULER, "maglev"), (key::TABLE_SIZE, size)])).look();
        let slots = size.parse().expect("a number");
        assert_eq!((only(&maglev).scheduler, messages(&maglev)), (Scheduler::Maglev { slots }, vec![]));
        let outcome = annotated_with(key::TABLE_SIZE, size);
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!((reason, outcome.spec.clone()), (Reason::InvalidValue, plain().spec));
        assert_eq!(
            what,
            "annotation tidegate.dev/table-size has no effect: scheduler rendezvous has no Maglev table"
        );
        assert_eq!(accepted, "tidegate.dev/scheduler maglev, or no annotation");
    }
}

#[test]
fn flow_tracking_on_change_needs_a_service_that_works_without_entries() {
    let on_change = (key::FLOW_TRACKING, "on-change");
    let dsr = |more: &[(&str, &str)]| {
        let all: Vec<_> = [(key::FORWARDING, "dsr-ipip"), on_change].iter().chain(more).copied().collect();
        annotated_web(&all).replace("port: 80,", "port: 8080,")
    };
    let outcome = Both::new(&dsr(&[])).look();
    let expected = FlowTracking::OnChange([].into());
    assert_eq!((&only(&outcome).flow_tracking, messages(&outcome)), (&expected, vec![]));
    assert_eq!(only(&plain()).flow_tracking, FlowTracking::Always);
    let sticky = dsr(&[]).replace("spec:\n", "spec:\n  sessionAffinity: ClientIP\n");
    for (yaml, why) in [
        (annotated_web(&[on_change]), "NAT modes need a flow-table entry for each flow"),
        (dsr(&[(key::SCHEDULER, "maglev")]), "only scheduler rendezvous knows the former backend of a flow"),
        (sticky, "sessionAffinity: ClientIP needs a flow-table entry for each client"),
        (dsr(&[(key::SLOW_START, "30s")]), "slow start changes the backends of flows at each step"),
    ] {
        let outcome = Both::new(&yaml).look();
        assert_eq!(only(&outcome).flow_tracking, FlowTracking::Always);
        let (reason, what, _) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue);
        assert_eq!(what, format!("annotation tidegate.dev/flow-tracking has no effect: {why}"));
    }
}

#[test]
fn all_udp_flows_have_entries_if_new_ones_are_counted_by_source() {
    let tracking = |protocol: &str, rate: Option<SourceRate>| {
        let annotations = [(key::FORWARDING, "dsr-ipip"), (key::FLOW_TRACKING, "on-change")];
        let yaml = annotated_web(&annotations).replace("port: 80,", "port: 8080,");
        let yaml = yaml
            .replace("protocol: TCP, ", "")
            .replace("name: http,", &format!("name: http, protocol: {protocol},"));
        let outcome = Both::new(&yaml).with(|world| world.settings.network.source_rate = rate).look();
        only(&outcome).flow_tracking.clone()
    };
    let rate = Some(SourceRate { per_second: 3, burst: 6, v4_len: 32, v6_len: 64 });
    let on_change = FlowTracking::OnChange([].into());
    assert_eq!((tracking("UDP", None), tracking("TCP", rate)), (on_change.clone(), on_change));
    assert_eq!(tracking("UDP", rate), FlowTracking::Always);
}

#[test]
fn new_ready_backends_warm_up_in_steps_and_the_first_ones_are_warm() {
    let service = annotated_web(&[(key::SLOW_START, "30s")]);
    let second = slice_of_web("second", "IPv4", &["addresses: [10.0.1.2]"]);
    let joined = format!("{service}{second}");
    let warming = |outcome: &Outcome| -> Vec<String> {
        let all = only(outcome).choice.warming.iter();
        all.map(|one| format!("{}:{} {}", one.address, one.port, one.step)).collect()
    };
    let shown = |outcome: &Outcome| -> Vec<Option<u8>> {
        outcome.services[0].ports[0].backends.iter().map(|backend| backend.warm_up_percent).collect()
    };
    let mut both = Both::new(&service);
    let first = both.step();
    assert_eq!((warming(&first), first.reconcile_at, messages(&first)), (vec![], None, vec![]));
    both.set(&joined);
    let begun = both.directory.now;
    for (seconds, step, next) in [(0, 1, 6), (6, 2, 9), (10, 3, 12), (29, 9, 30)] {
        both.both(|world| world.now = begun + Duration::from_secs(seconds));
        let outcome = both.step();
        assert_eq!(warming(&outcome), [format!("10.0.1.2:8080 {step}")], "after {seconds} s");
        assert_eq!(shown(&outcome), [None, Some(10 * step)]);
        assert_eq!(outcome.reconcile_at, Some(begun + Duration::from_secs(next)));
    }
    both.both(|world| world.now = begun + Duration::from_secs(30));
    let warm = both.step();
    assert_eq!((warming(&warm), shown(&warm), warm.reconcile_at), (vec![], vec![None, None], None));
    // A gateway that starts now knows no earlier state.
    let restarted = Both::new(&joined).step();
    assert_eq!(warming(&restarted), [] as [String; 0]);
}

#[test]
fn the_only_backend_that_takes_flows_does_not_warm_up() {
    let service = annotated_web(&[(key::SLOW_START, "30s")]);
    let mut both = Both::new(&service);
    both.step();
    both.set(&service.replace("10.0.1.1", "10.0.1.2"));
    let outcome = both.step();
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 down", "10.0.1.2:8080 active"]);
    assert!(only(&outcome).choice.warming.is_empty());
}

#[test]
fn former_weights_are_kept_for_the_drain_timeout() {
    let service = annotated_web(&[
        (key::FORWARDING, "dsr-ipip"),
        (key::FLOW_TRACKING, "on-change"),
        (key::DRAIN_TIMEOUT, "60s"),
    ]);
    let service = service.replace("port: 80,", "port: 8080,");
    let joined = service.replace("10.0.1.1", "10.0.1.2");
    assert_ne!(service, joined, "the endpoint is in the text");
    let former = |outcome: &Outcome| match &only(outcome).flow_tracking {
        FlowTracking::OnChange(moved) => {
            moved.iter().map(|one| format!("{} {}", one.address, one.weight)).collect()
        }
        FlowTracking::AlwaysAfter(moved) => {
            let former = moved.iter().map(|one| format!("{} {} in entries now", one.address, one.weight));
            former.collect()
        }
        FlowTracking::Always => vec!["always".to_owned()],
    };
    let mut both = Both::new(&service);
    assert_eq!(former(&both.step()), [] as [String; 0]);
    let begun = both.directory.now;
    both.set(&joined);
    let outcome = both.step();
    assert_eq!(former(&outcome), ["10.0.1.1 1", "10.0.1.2 0"]);
    assert_eq!(outcome.reconcile_at, Some(begun + Duration::from_secs(60)));
    assert_eq!(states(only(&outcome)), ["10.0.1.1:8080 down", "10.0.1.2:8080 active"]);

    // A Service that changes back to `always` has no entries yet, so its window continues.
    both.both(|world| world.now = begun + Duration::from_secs(20));
    let always = joined.replace("on-change", "always");
    both.set(&always);
    let outcome = both.step();
    assert_eq!(former(&outcome), ["10.0.1.1 1 in entries now", "10.0.1.2 0 in entries now"]);
    let again = always.replace("10.0.1.2", "10.0.1.3");
    both.both(|world| world.now = begun + Duration::from_secs(50));
    both.set(&again);
    let moved = ["10.0.1.1 1", "10.0.1.2 0", "10.0.1.3 0"].map(|one| format!("{one} in entries now"));
    let outcome = both.step();
    assert_eq!(former(&outcome)[0], moved[0]);
    assert_eq!(former(&outcome).last(), moved.last());
    both.both(|world| world.now = begun + Duration::from_secs(80));
    assert_eq!(former(&both.step()), ["always"], "one drain timeout after the change to always");
}

#[test]
fn the_flow_log_is_chosen_by_the_annotation_or_by_the_gateway() {
    let every = |n| std::num::NonZeroU16::new(n);
    let logged = |annotation: Option<(&str, &str)>, gateway: Option<(bool, u16)>| {
        let annotations: Vec<_> = annotation.into_iter().collect();
        let mut both = Both::new(&annotated_web(&annotations));
        both.both(|world| {
            world.settings.services.compat = ["aws".to_owned()].into();
            world.settings.flow_log = gateway.map(|(all_services, sample)| FlowLogDefaults {
                all_services,
                sample: every(sample).expect("not zero"),
            });
        });
        let outcome = both.step();
        (only(&outcome).flow_log, outcome.findings.len())
    };
    const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-access-log-enabled";
    for (annotation, gateway, expected) in [
        (None, None, (None, 0)),
        (None, Some((false, 10)), (None, 0)),
        (None, Some((true, 10)), (every(10), 0)),
        (Some((key::FLOW_LOG, "true")), Some((false, 10)), (every(10), 0)),
        (Some((key::FLOW_LOG, "1/100")), Some((true, 10)), (every(100), 0)),
        (Some((key::FLOW_LOG, "false")), Some((true, 10)), (None, 0)),
        (Some((AWS, "true")), Some((false, 1)), (every(1), 0)),
        (Some((AWS, "false")), Some((true, 1)), (None, 0)),
        // Without an output there is a warning, unless the Service requests none.
        (Some((key::FLOW_LOG, "1/100")), None, (None, 1)),
        (Some((key::FLOW_LOG, "false")), None, (None, 0)),
        (Some((AWS, "true")), None, (None, 1)),
        // An invalid value keeps the default of the gateway.
        (Some((key::FLOW_LOG, "1/0")), Some((true, 3)), (every(3), 1)),
        (Some((key::FLOW_LOG, "2/3")), Some((false, 3)), (None, 1)),
    ] {
        assert_eq!(logged(annotation, gateway), expected, "{annotation:?} {gateway:?}");
    }
}

#[test]
fn with_flow_sharing_former_weights_are_kept_for_always_too() {
    let tracking = |mode: &str, shares_flows: bool| {
        let service = annotated_web(&[(key::FORWARDING, mode), (key::DRAIN_TIMEOUT, "60s")]);
        let service = service.replace("port: 80,", "port: 8080,");
        let mut both = Both::new(&service);
        both.both(|world| world.settings.shares_flows = shares_flows);
        both.step();
        both.set(&service.replace("10.0.1.1", "10.0.1.2"));
        only(&both.step()).flow_tracking.clone()
    };
    let former = [("10.0.1.1", 1), ("10.0.1.2", 0)];
    let former = former.map(|(address, weight)| FormerWeight {
        address: address.parse().unwrap(),
        port: 8080,
        weight,
    });
    assert_eq!(tracking("dsr-ipip", true), FlowTracking::AlwaysAfter(former.into()));
    assert_eq!(tracking("dsr-ipip", false), FlowTracking::Always, "flows created since then would break");
    assert_eq!(
        tracking("nat", true),
        FlowTracking::Always,
        "the former owner cannot use a packet without its entry"
    );
}

#[test]
fn a_new_gateway_imports_former_weights_from_its_peers() {
    let service = annotated_web(&[
        (key::FORWARDING, "dsr-ipip"),
        (key::FLOW_TRACKING, "on-change"),
        (key::DRAIN_TIMEOUT, "60s"),
    ]);
    let service = service.replace("port: 80,", "port: 8080,");
    let joined = service.replace("10.0.1.1", "10.0.1.2");
    let mut old = Both::new(&service);
    old.step();
    old.set(&joined);
    let seen = old.step();
    let begun = old.directory.now;
    let mut new = Both::new(&joined);
    assert_eq!(only(&new.step()).flow_tracking, FlowTracking::OnChange([].into()));
    // The clock of each gateway starts with the gateway.
    let now = new.directory.now;
    let moved: Vec<_> = seen.memory.drains.changes(begun + Duration::from_secs(20)).collect();
    assert_eq!(moved.len(), 3, "one backend was removed, and two weights have changed");
    new.both(|world| world.memory.drains.import(&moved, now));
    let outcome = new.step();
    assert_eq!(only(&outcome).flow_tracking, only(&seen).flow_tracking);
    assert_eq!(only(&outcome).backends, only(&seen).backends, "the removed backend keeps its flows");
    assert_eq!(outcome.reconcile_at, Some(now + Duration::from_secs(40)), "the rest of the window");
    new.both(|world| world.now = now + Duration::from_secs(40));
    assert_eq!(only(&new.step()).flow_tracking, FlowTracking::OnChange([].into()));
    // Seats of a Service that this gateway does not have, or that tracks always, are ignored.
    let mut always = Both::new(&joined.replace("on-change", "always"));
    always.step();
    always.both(|world| world.memory.drains.import(&moved, now));
    assert_eq!(only(&always.step()).flow_tracking, FlowTracking::Always);
}

#[test]
fn a_new_gateway_keeps_the_backends_that_its_peers_keep() {
    let service = annotated_web(&[(key::DRAIN_TIMEOUT, "60s")]);
    let joined = service.replace("10.0.1.1", "10.0.1.2");
    let mut old = Both::new(&service);
    old.step();
    old.set(&joined);
    let seen = old.step();
    let changes: Vec<_> = seen.memory.drains.changes(old.directory.now + Duration::from_secs(20)).collect();
    assert_eq!(changes.len(), 1);
    let backends = |outcome: &Outcome| only(outcome).backends.len();
    let mut new = Both::new(&joined);
    assert_eq!(backends(&new.step()), 1);
    let now = new.directory.now;
    new.both(|world| world.memory.drains.import(&changes, now));
    assert_eq!(only(&new.step()).backends, only(&seen).backends);
    new.both(|world| world.now = now + Duration::from_secs(39));
    // It receives what it already knows again, as at the start of every session.
    new.both(|world| world.memory.drains.import(&changes, now + Duration::from_secs(39)));
    assert_eq!(backends(&new.step()), 2);
    new.both(|world| world.now = now + Duration::from_secs(40));
    assert_eq!(backends(&new.step()), 1, "the rest of the drain timeout is over");

    let mut other = Both::new(&joined.replace("name: web", "name: other"));
    other.step();
    other.both(|world| world.memory.drains.import(&changes, now));
    assert_eq!(backends(&other.step()), 1, "another Service has the port");
}

#[test]
fn passive_health_is_that_of_the_operator_unless_the_service_has_none() {
    let rules = tidegate_model::config::HealthConfig::default().passive;
    assert_eq!(only(&plain()).passive_health, Some(rules));
    let off = annotated_with(key::PASSIVE_HEALTH, " off ");
    assert_eq!((only(&off).passive_health, messages(&off)), (None, vec![]));
    let nat = Both::new(&annotated_web(&[(key::FORWARDING, "nat"), (key::PASSIVE_HEALTH, "on")])).look();
    assert_eq!((only(&nat).passive_health, messages(&nat)), (Some(rules), vec![]));
    let dsr = [(key::FORWARDING, "dsr-ipip"), (key::PASSIVE_HEALTH, "on")];
    let dsr = Both::new(&annotated_web(&dsr).replace("port: 80,", "port: 8080,")).look();
    let (_, what, accepted) = finding(&dsr);
    assert!(what.starts_with("annotation tidegate.dev/passive-health has no effect: in DSR modes"), "{what}");
    assert_eq!(accepted, "tidegate.dev/forwarding nat or fullnat, or no annotation");
}

#[test]
fn syn_cookies_reach_the_spec_and_have_no_effect_in_dsr_modes() {
    assert_eq!(only(&plain()).syn_cookies, None);
    for choice in [SynCookies::Off, SynCookies::Auto, SynCookies::Always] {
        let value = choice.as_str();
        let outcome = annotated_with(key::SYN_COOKIES, value);
        assert_eq!((only(&outcome).syn_cookies, messages(&outcome)), (Some(choice), vec![]), "{value}");
        let dsr = [(key::FORWARDING, "dsr-l2"), (key::SYN_COOKIES, value)];
        let dsr = Both::new(&annotated_web(&dsr).replace("port: 80,", "port: 8080,")).look();
        if choice == SynCookies::Off {
            assert_eq!(messages(&dsr), Vec::<String>::new());
            continue;
        }
        let (_, what, accepted) = finding(&dsr);
        let why = "annotation tidegate.dev/syn-cookies has no effect: in DSR modes the backend answers";
        assert!(what.starts_with(why), "{what}");
        assert_eq!(accepted, "tidegate.dev/forwarding nat or fullnat, or tidegate.dev/syn-cookies off");
    }
}

#[test]
fn mss_clamp_reaches_the_spec_and_has_no_effect_with_dsr_l2() {
    for (value, clamp) in
        [("path", MssClamp::Path), (" 536 ", MssClamp::AtMost(536)), ("65495", MssClamp::AtMost(65_495))]
    {
        let outcome = annotated_with(key::MSS_CLAMP, value);
        assert_eq!((only(&outcome).mss_clamp, messages(&outcome)), (clamp, vec![]), "{value}");
    }
    assert_eq!(
        (&annotated_with(key::MSS_CLAMP, "off").spec, only(&plain()).mss_clamp),
        (&plain().spec, MssClamp::Off)
    );
    let on_link = [(key::FORWARDING, "dsr-l2"), (key::MSS_CLAMP, "path")];
    let both = Both::new(&annotated_web(&on_link).replace("port: 80,", "port: 8080,"));
    let outcome = both.look();
    let (reason, what, accepted) = finding(&outcome);
    assert_eq!((reason, outcome.spec.services.len()), (Reason::InvalidValue, 1));
    assert!(
        what.starts_with("annotation tidegate.dev/mss-clamp has no effect: forwarding dsr-l2 adds no header"),
        "{what}"
    );
    assert_eq!(accepted, "a tunnel or NAT mode in tidegate.dev/forwarding, or tidegate.dev/mss-clamp off");
}

#[test]
fn an_annotation_for_one_protocol_has_no_effect_without_such_a_port() {
    let values = [
        (key::SYN_COOKIES, "auto"),
        (key::MSS_CLAMP, "path"),
        (key::PASSIVE_HEALTH, "on"),
        (key::IDLE_TIMEOUT_TCP, "1m"),
        (key::IDLE_TIMEOUT_SCTP, "1m"),
    ];
    for (annotation, value) in values {
        let yaml = annotated_web(&[(key::FORWARDING, "fullnat"), (annotation, value)]);
        let outcome = Both::new(
            &yaml.replace("port: 80,", "port: 80, protocol: UDP,").replace("protocol: TCP", "protocol: UDP"),
        )
        .look();
        let (reason, what, accepted) = finding(&outcome);
        assert_eq!(reason, Reason::InvalidValue, "{annotation}");
        assert!(
            what.starts_with(&format!("annotation {annotation} has no effect: the Service has no "))
                && what.ends_with(" port"),
            "{what}"
        );
        assert!(accepted.ends_with(", or no annotation"), "{accepted}");
    }
    let outcome = annotated_with(key::IDLE_TIMEOUT_UDP, "1m");
    let (_, what, accepted) = finding(&outcome);
    assert_eq!(
        (what, accepted),
        (
            "annotation tidegate.dev/idle-timeout-udp has no effect: the Service has no UDP port",
            "a port with protocol UDP, or no annotation"
        )
    );
}

#[test]
fn drain_timeout_limits_how_long_flows_of_a_removed_backend_continue() {
    for (value, seconds) in [("10s", Some(10)), ("24h", Some(86_400)), ("0s", None)] {
        let yaml = annotated_web(&[(key::DRAIN_TIMEOUT, value)]);
        let mut both = Both::new(&yaml);
        let now = both.directory.now;
        both.step();
        both.set(yaml.split_inclusive("---\n").next().expect("the Service"));
        let outcome = both.step();
        assert_eq!(outcome.reconcile_at, seconds.map(|s| now + Duration::from_secs(s)), "{value}");
        assert_eq!(states(only(&outcome)).len(), usize::from(seconds.is_some()), "{value}");
    }
}

#[test]
fn load_balancer_ips_address_pool_and_allow_shared_ip_choose_the_address() {
    let outcome = annotated_with(key::LOAD_BALANCER_IPS, "203.0.113.9");
    assert_eq!(owners(&outcome), ["203.0.113.9 web"]);
    let outcome = annotated_with(key::LOAD_BALANCER_IPS, "::ffff:203.0.113.9");
    assert_eq!(owners(&outcome), ["203.0.113.9 web"]);
    let outcome = annotated_with(key::ADDRESS_POOL, "edge");
    assert_eq!(outcome.services[0].vips[0].pool, "edge", "though it is not automatic");
    let outcome = annotated_with(key::ADDRESS_POOL, "egde");
    let what = "Service default/web requests pool \"egde\", which is not configured";
    assert_eq!(finding(&outcome), (Reason::AllocationFailed, what, "public, edge"));
    assert_eq!(pending(&outcome, "web"), Some(what));
    let other = service_with("name: other, annotations: {tidegate.dev/allow-shared-ip: k}", "")
        .replace("port: 80,", "port: 81,");
    let outcome = Both::new(&(annotated_web(&[(key::ALLOW_SHARED_IP, "k")]) + &other)).look();
    let vips: BTreeSet<IpAddr> = outcome.spec.services.iter().map(|s| s.key.vip).collect();
    assert_eq!((outcome.spec.services.len(), vips.len()), (2, 1));
}

#[test]
fn health_check_annotations_choose_check_port_and_interval() {
    let look = |annotations: &[(&str, &str)]| {
        let outcome = Both::new(&annotated_web(annotations)).look();
        assert_eq!(messages(&outcome), [] as [String; 0]);
        outcome
    };
    let requested = |annotations: &[(&str, &str)]| -> Vec<String> {
        look(annotations).targets.iter().map(ToString::to_string).collect()
    };
    assert_eq!(requested(&[]), ["tcp://10.0.1.1:8080"]);
    assert_eq!(requested(&[(key::HEALTH_PROTOCOL, "TCP")]), ["tcp://10.0.1.1:8080"]);
    assert_eq!(requested(&[(key::HEALTH_PORT, "9000")]), ["tcp://10.0.1.1:9000"]);
    assert_eq!(requested(&[(key::HEALTH_PROTOCOL, "http")]), ["http://10.0.1.1:8080/"]);
    assert_eq!(
        requested(&[
            (key::HEALTH_PROTOCOL, "https"),
            (key::HEALTH_PATH, "/ready?full=1"),
            (key::HEALTH_PORT, "8443")
        ]),
        ["https://10.0.1.1:8443/ready?full=1"]
    );
    assert_eq!(requested(&[(key::HEALTH_PROTOCOL, "none")]), [] as [String; 0]);
    let outcome = look(&[
        (key::HEALTH_INTERVAL, "5s"),
        (key::HEALTH_TIMEOUT, "3s"),
        (key::HEALTHY_THRESHOLD, "1"),
        (key::UNHEALTHY_THRESHOLD, "100"),
    ]);
    let rules = outcome.targets.first().expect("one target").probe.rules;
    assert_eq!((rules.interval.as_secs(), rules.timeout.as_secs()), (5, 3));
    assert_eq!((rules.healthy_threshold, rules.unhealthy_threshold), (1, 100));
    let outcome = look(&[(key::HEALTH_INTERVAL, "500ms")]);
    let rules = outcome.targets.first().expect("one target").probe.rules;
    assert_eq!(
        (rules.interval.as_millis(), rules.timeout.as_millis()),
        (500, 500),
        "the configured timeout of 1 s is reduced without a finding"
    );
    let udp = annotated_web(&[(key::HEALTH_PROTOCOL, "udp")])
        .replace("port: 80,", "port: 80, protocol: UDP,")
        .replace("protocol: TCP", "protocol: UDP");
    let outcome = Both::new(&udp).look();
    assert_eq!(outcome.targets.iter().map(ToString::to_string).collect::<Vec<_>>(), ["udp://10.0.1.1:8080"]);
}

#[test]
fn unsupported_health_checks_are_named_and_others_continue() {
    let plain = plain();
    for (annotations, reason, wording) in [
        (
            &[(key::HEALTH_PROTOCOL, "sctp")][..],
            Reason::InvalidValue,
            "has no effect: the Service has no SCTP port",
        ),
        (
            &[(key::HEALTH_PROTOCOL, "grpc")],
            Reason::NotSupported,
            "\"grpc\" is not supported yet; tcp is used",
        ),
        (&[(key::HEALTH_PATH, "/z")], Reason::InvalidValue, "has no effect: checks use tcp"),
        (
            &[(key::HEALTH_PROTOCOL, "udp")],
            Reason::InvalidValue,
            "has no effect: the Service has no UDP port",
        ),
    ] {
        let outcome = Both::new(&annotated_web(annotations)).look();
        assert_eq!((&outcome.spec, &outcome.targets), (&plain.spec, &plain.targets));
        let (is, what, accepted) = finding(&outcome);
        assert!(is == reason && what.contains(wording) && what.contains(annotations[0].0), "{what}");
        assert!(!accepted.is_empty());
    }
    let outcome = annotated_with(key::HEALTH_TIMEOUT, "5s");
    assert_eq!(
        finding(&outcome).1,
        "health-check timeout 5s is longer than the interval 2s; the timeout is reduced to 2s"
    );
    assert_eq!(outcome.targets.first().expect("one").probe.rules.timeout.as_secs(), 2, "it is reduced");
}

/// Two Pods on nodes `a` and `b`. The nodes have this additional metadata.
fn on_nodes(service: &str, a: &str, b: &str) -> String {
    let endpoints = ["addresses: [10.0.1.1], nodeName: a", "addresses: [10.0.1.2], nodeName: b"];
    service.to_owned()
        + &slice_of_web("s", "IPv4", &endpoints)
        + &node_yaml("a", &["10.0.2.1"], a)
        + &node_yaml("b", &["10.0.2.2"], b)
}

#[test]
fn the_backend_node_selector_chooses_nodes_or_their_endpoints() {
    let ssd = ", labels: {disk: ssd}";
    let with = |annotations: &str| {
        let service = with_annotations(&web(""), annotations);
        Both::new(&on_nodes(&service, "", ssd)).backends()
    };
    let selector = "tidegate.dev/backend-node-selector";
    let to_nodes = "tidegate.dev/target: node, tidegate.dev/forwarding: dsr-l2";
    assert_eq!(with(to_nodes), ["10.0.2.1:80 active", "10.0.2.2:80 active"]);
    assert_eq!(with(&format!("{to_nodes}, {selector}: 'disk in (ssd, nvme)'")), ["10.0.2.2:80 active"]);
    assert_eq!(with(&format!("{selector}: disk=ssd")), ["10.0.1.2:8080 active"]);
    assert_eq!(with(&format!("{selector}: '!disk'")), ["10.0.1.1:8080 active"]);
    assert_eq!(with(&format!("{selector}: ''")).len(), 2, "an empty selector selects everything");
}

/// Four endpoints: Pods with weights, and one without a weight on node `a`. Pod `odd` and node `b` have the weight
/// `odd`.
fn weighed(odd: &str) -> Both {
    let pod = |name: &str, weight: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, annotations: {{tidegate.dev/weight: \
             '{weight}'}}}}\n---\n"
        )
    };
    let of_pod = |address: &str, name: &str, node: &str| {
        format!(
            "addresses: [{address}], nodeName: {node}, targetRef: {{kind: Pod, name: {name}, namespace: default}}"
        )
    };
    let endpoints = [
        of_pod("10.0.1.1", "heavy", "b"),
        of_pod("10.0.1.2", "none", "a"),
        "addresses: [10.0.1.3], nodeName: a".to_owned(),
        of_pod("10.0.1.4", "odd", "b"),
    ];
    let weight_of = |value: &str| format!(", annotations: {{tidegate.dev/weight: '{value}'}}");
    Both::new(
        &(web("")
            + &slice_of_web("s", "IPv4", &endpoints.each_ref().map(String::as_str))
            + &pod("heavy", "3")
            + &pod("none", "0")
            + &pod("odd", odd)
            + &node_yaml("a", &["10.0.2.1"], &weight_of("2"))
            + &node_yaml("b", &["10.0.2.2"], &weight_of(odd))),
    )
}

#[test]
fn the_weight_is_set_on_a_pod_or_node_and_zero_means_no_new_flows() {
    let outcome = weighed("65535").look();
    let backends = &only(&outcome).backends;
    let weights: Vec<(u16, BackendState)> = backends.iter().map(|b| (b.weight, b.state)).collect();
    use BackendState::{Active, Draining};
    assert_eq!(weights, [(3, Active), (0, Draining), (2, Active), (65_535, Active)]);
    assert_eq!(messages(&outcome), [] as [String; 0]);
}

#[test]
fn an_invalid_weight_is_reported_at_its_pod_or_node() {
    for odd in ["-1", "65536", "much"] {
        let [directory, api] = weighed(odd).each();
        let odd_one = only(&directory).backends.last().expect("four");
        assert_eq!((odd_one.weight, odd_one.state), (1, BackendState::Active));
        let wording: BTreeSet<(ObjectKind, String)> =
            api.findings.iter().map(|f| (f.kind, f.diagnostic.to_string())).collect();
        let message = |object: &str| {
            format!(
                "{object}: error: annotation tidegate.dev/weight: {odd:?} is invalid: the default is used; \
                 accepted: a number, 0 (no new flows) to 65535"
            )
        };
        let expected = [(ObjectKind::Pod, message("Pod default/odd")), (ObjectKind::Node, message("Node b"))];
        assert_eq!(wording, BTreeSet::from(expected));
        let with_location =
            directory.findings.iter().all(|f| f.diagnostic.location.as_ref().is_some_and(|l| l.line > 1));
        assert!(with_location, "{:?}", messages(&directory));
    }
    let on_the_service = annotated_with(key::WEIGHT, "2");
    let wording = "annotation tidegate.dev/weight has no effect: it works only on Pods and Nodes";
    assert_eq!(finding(&on_the_service).1, wording);
}

#[test]
fn the_limits_of_a_service_are_those_of_all_its_ports() {
    let outcome = Both::new(&annotated_web(&[
        (key::MAX_CONNECTIONS, "100"),
        (key::MAX_CONNECTION_RATE, " 7 "),
        (key::MAX_BANDWIDTH, "2500M"),
    ]))
    .look();
    assert_eq!(messages(&outcome), [] as [String; 0]);
    for spec in &outcome.spec.services {
        let limits = &spec.limits;
        assert_eq!(limits.connections.map(NonZeroU32::get), Some(100));
        assert_eq!(limits.connection_rate.map(NonZeroU32::get), Some(7));
        assert_eq!(limits.bandwidth.map(NonZeroU64::get), Some(2_500_000_000));
    }
    assert!(plain().spec.services.iter().all(|spec| spec.limits.is_none()));
}
