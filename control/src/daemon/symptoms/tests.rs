//! Which counters become symptoms, and when these end.

use tidegate_dataplane::gateway::BackendStats;
use tidegate_snapshot::counters::Traffic;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_wire::MacAddr;

use super::*;
use crate::views_testing;

const VIP: &str = "203.0.113.1";
const BACKEND: &str = "10.0.0.1";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn stats(mode: ForwardingMode, requests: u64, replies: u64) -> ServiceStats {
    let backend = BackendStats {
        id: BackendId::new(0, 0),
        address: ip(BACKEND).into(),
        port: 80,
        traffic: [Traffic::default(); 2],
        connections: 0,
        set_aside: 0,
    };
    ServiceStats {
        id: ServiceId::new(0, 0),
        key: ServiceKey { vip: ip(VIP), protocol: Protocol::Tcp, port: 80 },
        namespace: "shop".into(),
        name: "web".into(),
        port_name: "http".into(),
        mode,
        traffic: [requests, replies].map(|packets| Traffic { packets, bytes: packets * 100 }),
        partial_checksums: 0,
        from_router: 0,
        backends: vec![backend],
    }
}

fn view(state: BackendViewState) -> Arc<ServiceView> {
    let backend = views_testing::backend(&format!("{BACKEND}:80"), state);
    let port = views_testing::port(VIP, ForwardingMode::Nat, vec![backend]);
    Arc::new(views_testing::service("web", vec![port]))
}

/// Checks these counters of one Service every [`EVERY`], and returns the reasons found each time.
fn reasons(checks: &[ServiceStats], has_peers: bool) -> Vec<Vec<Reason>> {
    let (mut memory, mut now) = (Memory::default(), Instant::now());
    let views = [view(BackendViewState::Active)];
    let one = |stats: &ServiceStats| {
        now += EVERY;
        let services = std::slice::from_ref(stats);
        let snat = [vec![ip("192.0.2.3")], vec![]];
        let (interfaces, names, faults) = (&[], &[], &[]);
        let routers = vec![ip("192.0.2.1"), ip("2001:db8::1")];
        let seen = Seen { services, interfaces, names, faults, views: &views, snat, routers, has_peers };
        memory.look(&seen, now).findings.into_iter().map(|finding| finding.reason).collect()
    };
    checks.iter().map(one).collect()
}

#[test]
fn requests_without_replies_are_a_symptom_until_a_reply_arrives() {
    for mode in [ForwardingMode::Nat, ForwardingMode::FullNat] {
        let checks = [(4, 0), (5, 0), (5, 0), (9, 1), (12, 5)].map(|(to, from)| stats(mode, to, from));
        let silent = vec![Reason::NoReplies];
        assert_eq!(reasons(&checks, false), [vec![], silent.clone(), silent, vec![], vec![]], "{mode}");
    }
}

#[test]
fn connections_from_the_router_are_a_symptom_until_they_stop() {
    let of = |from_router| ServiceStats { from_router, ..stats(ForwardingMode::FullNat, 0, 0) };
    let found = vec![Reason::RouterAsClient];
    let quiet = (FORGET.as_secs() / EVERY.as_secs()) as usize;
    // The first count may include packets to an earlier Service with the same index, but they were refused, too.
    let checks: Vec<_> = [2, 3, 3].into_iter().chain(std::iter::repeat_n(3, quiet)).map(of).collect();
    let reasons = reasons(&checks, false);
    assert_eq!(reasons[..3], [vec![], found.clone(), found.clone()]);
    assert_eq!((&reasons[quiet], &reasons[quiet + 1]), (&found, &vec![]), "{quiet}");
    let finding = router_as_client(&of(3), &[ip("2001:db8::1"), ip("192.0.2.1")]);
    let what = "port 80 (TCP) of 203.0.113.1: new connections from 192.0.2.1 are dropped (bad_source)";
    assert!(finding.diagnostic.what.starts_with(what), "{finding:?}");
}

#[test]
fn replies_on_another_path_are_not_a_symptom() {
    let silent = |mode| [3, 6, 9].map(|requests| stats(mode, requests, 0));
    let none = [vec![], vec![], vec![]];
    assert_eq!(reasons(&silent(ForwardingMode::DsrL2), false), none);
    assert_eq!(reasons(&silent(ForwardingMode::Nat), true), none, "by another gateway with the flows");
    assert_ne!(reasons(&silent(ForwardingMode::FullNat), true), none, "its SNAT addresses are its own");
    let mut datagrams = silent(ForwardingMode::Nat);
    datagrams.iter_mut().for_each(|one| one.key.protocol = Protocol::Udp);
    assert_eq!(reasons(&datagrams, false), none, "a datagram needs no reply");
}

#[test]
fn backends_that_fail_their_checks_are_not_reported_as_misrouted() {
    let (mut memory, now) = (Memory::default(), Instant::now());
    let views = [view(BackendViewState::Down)];
    for n in 1..4 {
        let services = [stats(ForwardingMode::Nat, 4 * n, 0)];
        let (interfaces, names, faults, snat) = (&[], &[], &[], Default::default());
        let seen = Seen {
            services: &services,
            interfaces,
            names,
            faults,
            views: &views,
            snat,
            routers: Vec::new(),
            has_peers: false,
        };
        assert_eq!(memory.look(&seen, now + EVERY), Symptoms::default());
    }
}

#[test]
fn a_chance_match_is_ignored_and_real_partial_checksums_are_reported() {
    let of = |sampled, partial| InterfaceStats {
        checksums_sampled: sampled,
        checksums_partial: partial,
        ..InterfaceStats::default()
    };
    for (counts, is_symptom) in [((200_000, 3), false), ((10, 2), false), ((10, 4), true)] {
        let mut memory = Memory::default();
        let services = [ServiceStats { partial_checksums: counts.1, ..stats(ForwardingMode::DsrL2, 9, 0) }];
        let interfaces = [of(counts.0, counts.1)];
        let seen = Seen {
            services: &services,
            interfaces: &interfaces,
            names: &["uplink"],
            faults: &[],
            views: &[],
            snat: Default::default(),
            routers: Vec::new(),
            has_peers: false,
        };
        let found = memory.look(&seen, Instant::now());
        let reasons: Vec<Reason> = found.findings.iter().map(|finding| finding.reason).collect();
        assert_eq!(reasons.contains(&Reason::PartialChecksums), is_symptom, "{counts:?}");
        let named =
            found.of_gateway.iter().any(|what| what.contains("partial checksum arrive on interface uplink"));
        assert_eq!(named, is_symptom);
    }
}

#[test]
fn a_backend_that_answers_for_a_vip_is_reported_with_its_mac() {
    let mac = MacAddr([2, 0, 0, 0, 1, 1]);
    let neighbor = Some(ip(BACKEND));
    let fault = NeighborFault::Claimed { interface: 0, address: ip(VIP), mac: Some(mac), neighbor };
    let other =
        NeighborFault::OtherMac { interface: 0, address: ip(BACKEND), configured: mac, answered: mac };
    let services = [stats(ForwardingMode::DsrL2, 0, 0)];
    let seen = Seen {
        services: &services,
        interfaces: &[],
        names: &["uplink"],
        faults: &[fault, other],
        views: &[],
        snat: Default::default(),
        routers: Vec::new(),
        has_peers: false,
    };
    let found = Memory::default().look(&seen, Instant::now());
    let reasons: Vec<Reason> = found.findings.iter().map(|finding| finding.reason).collect();
    assert_eq!(reasons, [Reason::VipClaimed, Reason::NeighborMacDiffers]);
    let claim = &found.findings[0];
    assert_eq!(claim.object, ObjectKey::new("shop", "web"));
    assert!(
        claim.diagnostic.what.starts_with("backend 10.0.0.1 (02:00:00:00:01:01) answers ARP"),
        "{claim:?}"
    );
}
