//! Tests of neighbour resolution: which addresses are requested, which answers are accepted, and when an entry is given
//! up.

use tidegate_wire::{ArpPacket, Parsed, ethernet, ndp, parse};

use super::super::conflicts::LOGGED_PER_STATION;
use super::*;

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn context() -> ResolverContext {
    let link = Link {
        mac: OURS,
        vlan: None,
        addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
    };
    ResolverContext { interfaces: vec![link], ..ResolverContext::default() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(millis: u64) -> Now {
    Now(millis * 1_000_000)
}

/// The ARP packets among the actions, with the destination of their frames.
fn requests(actions: &[Action]) -> Vec<(MacAddr, ArpPacket)> {
    let frames = actions
        .iter()
        .filter_map(|action| if let Action::Send { frame, .. } = action { Some(frame) } else { None });
    frames
        .filter_map(|frame| match parse(frame) {
            Ok(Parsed::Arp(packet)) => Some((ethernet::destination(frame), packet)),
            _ => None,
        })
        .collect()
}

/// Runs the machine's timers up to `until` and returns all actions with their times. No packet uses a neighbour.
fn run(resolver: &mut Resolver, until: Now) -> Vec<(Now, Action)> {
    run_with(resolver, until, &UNUSED)
}

fn run_with(resolver: &mut Resolver, until: Now, uses: Uses<'_>) -> Vec<(Now, Action)> {
    let mut all = Vec::new();
    while let Some(due) = resolver.due().filter(|&due| due <= until) {
        all.extend(resolver.tick(due, uses).into_iter().map(|action| (due, action)));
    }
    all
}

const UNUSED: fn(InterfaceIndex, IpAddr) -> bool = |_, _| false;
const USED: fn(InterfaceIndex, IpAddr) -> bool = |_, _| true;
const ANSWER: Sighting = Sighting::Answer { overrides: true };
const ANNOUNCEMENT: Sighting = Sighting::Announcement { overrides: true };

fn answer(resolver: &mut Resolver, now: Now, address: IpAddr, mac: MacAddr) -> Vec<Action> {
    receive(resolver, now, address, mac, ANSWER)
}

fn receive(resolver: &mut Resolver, now: Now, address: IpAddr, mac: MacAddr, how: Sighting) -> Vec<Action> {
    resolver.seen(now, (0, address), Some(mac), how, &UNUSED)
}

fn update(address: IpAddr, mac: MacAddr, how: Known) -> Action {
    Action::Update { interface: 0, address, mac, how }
}

/// A pinned neighbour that has answered.
fn pinned(address: IpAddr, mac: MacAddr) -> Resolver {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), ResolverContext { next_hops: [address].into(), ..context() });
    resolver.tick(at(0), &UNUSED);
    assert_eq!(answer(&mut resolver, at(10), address, mac), [update(address, mac, Known::Confirmed)]);
    resolver
}

/// A neighbour that a packet needed and that has answered.
fn on_demand(resolver: &mut Resolver, now: Now, address: IpAddr, mac: MacAddr) {
    resolver.wanted(now, 0, address);
    run(resolver, now);
    assert_eq!(answer(resolver, now, address, mac).last(), Some(&update(address, mac, Known::Confirmed)));
}

fn hosts(first: [u8; 4], count: u32) -> impl Iterator<Item = IpAddr> {
    (0..count).map(move |n| IpAddr::from((u32::from_be_bytes(first) + n).to_be_bytes()))
}

/// The report of a claim by [`OTHER`].
fn conflict(address: IpAddr, defended: bool) -> Action {
    Action::Conflict { interface: 0, address, mac: Some(OTHER), defended, is_last: false }
}

fn is_known(resolver: &Resolver, address: IpAddr) -> bool {
    resolver.known().any(|(_, known, _)| known == address)
}

#[test]
fn a_needed_neighbour_is_requested_and_its_answer_stored() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let allocate = [Action::Allocate { interface: 0, address: ip("192.0.2.1") }];
    assert_eq!(resolver.wanted(at(5), 0, ip("192.0.2.1")), allocate);
    let actions = resolver.tick(at(5), &UNUSED);
    let [(to, request)] = requests(&actions)[..] else { panic!("one request: {actions:?}") };
    assert_eq!(
        (to, request.sender_mac, request.sender_ip.to_string()),
        (MacAddr::BROADCAST, OURS, "192.0.2.2".into())
    );
    assert_eq!(request.target_ip.to_string(), "192.0.2.1");
    // The table may have been full, so the action is repeated. Only one request is sent.
    assert_eq!(resolver.wanted(at(6), 0, ip("192.0.2.1")), allocate);
    assert_eq!(resolver.tick(at(6), &UNUSED), []);
    let updates = answer(&mut resolver, at(7), ip("192.0.2.1"), ROUTER);
    assert_eq!(updates, [update(ip("192.0.2.1"), ROUTER, Known::Confirmed)]);
    assert_eq!(resolver.known().collect::<Vec<_>>(), [(0, ip("192.0.2.1"), ROUTER)]);
}

#[test]
fn ipv6_neighbours_are_solicited_at_their_group() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    resolver.wanted(at(0), 0, ip("2001:db8::1"));
    let actions = resolver.tick(at(0), &UNUSED);
    let [Action::Send { interface: 0, frame }] = &actions[..] else { panic!("one frame: {actions:?}") };
    let Ok(Parsed::Ip(headers)) = parse(frame) else { panic!("not IP") };
    assert_eq!((headers.src.ip(), headers.dst.ip()), (ip("2001:db8::2"), ip("ff02::1:ff00:1")));
    assert!(
        matches!(ndp::parse(frame, &headers), Ok(Some(ndp::Ndp::Solicitation { target, source_mac: Some(OURS) }))
        if IpAddr::V6(target) == ip("2001:db8::1"))
    );
    let updates = answer(&mut resolver, at(1), ip("2001:db8::1"), ROUTER);
    assert_eq!(updates.len(), 1);
}

#[test]
fn packets_about_unneeded_neighbours_change_nothing() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    for host in 1..=200 {
        let address = IpAddr::from([192, 0, 2, host]);
        assert!(answer(&mut resolver, at(1), address, OTHER).is_empty());
        assert!(receive(&mut resolver, at(1), address, OTHER, ANNOUNCEMENT).is_empty());
    }
    assert_eq!((resolver.known().count(), resolver.due()), (0, None));
}

#[test]
fn a_host_that_requests_our_address_is_stored_and_probed_once_used() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let client = ip("192.0.2.77");
    let actions = receive(&mut resolver, at(0), client, OTHER, Sighting::Request);
    assert_eq!(actions, [update(client, OTHER, Known::Unconfirmed)]);
    assert!(
        receive(&mut resolver, at(0), ip("198.51.100.7"), OTHER, Sighting::Request).len() == 1,
        "by a route"
    );
    assert!(run(&mut resolver, at(60_000)).is_empty(), "no packet uses it, so it is not probed");
    let requested: Vec<Action> =
        run_with(&mut resolver, at(65_000), &USED).into_iter().map(|(_, action)| action).collect();
    assert_eq!(requests(&requested)[0].0, OTHER, "a probe");
    assert_eq!(answer(&mut resolver, at(65_001), client, OTHER), [update(client, OTHER, Known::Confirmed)]);
}

#[test]
fn a_neighbour_that_is_not_used_is_not_probed_and_released_in_the_end() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    on_demand(&mut resolver, at(0), ip("192.0.2.7"), OTHER);
    let story: Vec<Action> = run(&mut resolver, at(700_000)).into_iter().map(|(_, action)| action).collect();
    let released = Action::Release { interface: 0, address: ip("192.0.2.7"), fixed: false };
    assert_eq!(story, [update(ip("192.0.2.7"), OTHER, Known::Unconfirmed), released]);
    assert_eq!(resolver.due(), None);
}

#[test]
fn a_flood_of_unused_addresses_evicts_no_known_neighbour() {
    let mut resolver = Resolver::default();
    let backend = ip("192.0.2.10");
    resolver.configure(at(0), ResolverContext { next_hops: [backend].into(), ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(1), backend, ROUTER);
    let clients: Vec<IpAddr> = hosts([192, 0, 2, 100], 100).collect();
    clients.iter().for_each(|&client| on_demand(&mut resolver, at(1_000), client, OTHER));
    let mut stored = 0_i64;
    for address in hosts([10, 0, 0, 1], 200_000) {
        for action in resolver.wanted(at(2_000), 0, address) {
            stored += match action {
                Action::Allocate { .. } => 1,
                Action::Release { .. } => -1,
                other => panic!("{other:?}"),
            };
        }
    }
    let all = i64::try_from(tidegate_spec::limits::NEIGHBORS_ON_DEMAND_MAX).unwrap();
    assert!((1..=all / 8).contains(&stored), "{stored} addresses requested at once");
    assert!(clients.iter().all(|&client| is_known(&resolver, client)) && is_known(&resolver, backend));
    assert!(
        resolver.unresolved().any(|(_, address)| address == hosts([10, 0, 0, 1], 200_000).last().unwrap())
    );
    let v6 = ip("2001:db8::77");
    on_demand(&mut resolver, at(2_500), v6, OTHER);
}

#[test]
fn a_flood_of_unused_addresses_leaves_requests_time_for_answers() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let mut flood = hosts([10, 0, 0, 1], 200_000);
    let (mut requested, mut answered) = (Vec::new(), 0);
    for milli in 1_000..3_000 {
        for address in flood.by_ref().take(100) {
            resolver.wanted(at(milli), 0, address);
        }
        let actions = resolver.tick(at(milli), &UNUSED);
        requested.extend(requests(&actions).iter().map(|(_, packet)| (milli, IpAddr::V4(packet.target_ip))));
        // An answer takes 2 ms.
        for &(_, address) in requested.iter().filter(|(when, _)| when + 2 == milli) {
            let confirmed = update(address, OTHER, Known::Confirmed);
            answered += usize::from(answer(&mut resolver, at(milli), address, OTHER).contains(&confirmed));
        }
    }
    let in_time = requested.iter().filter(|(when, _)| when + 2 < 3_000).count();
    assert!(in_time > 1_900, "{in_time} requests");
    assert_eq!(answered, in_time);
}

#[test]
fn first_requests_come_before_repeated_ones() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let (early, mut flood) = (ip("192.0.2.7"), hosts([10, 0, 0, 1], 200_000));
    resolver.wanted(at(999), 0, early);
    let mut requested = Vec::new();
    for milli in 1_000..3_000 {
        for address in flood.by_ref().take(100) {
            resolver.wanted(at(milli), 0, address);
        }
        let actions = resolver.tick(at(milli), &UNUSED);
        requested.extend(requests(&actions).iter().map(|(_, packet)| IpAddr::V4(packet.target_ip)));
    }
    let distinct: BTreeSet<IpAddr> = requested.iter().copied().collect();
    assert_eq!((distinct.len(), distinct.contains(&early)), (requested.len(), true));
    assert!(resolver.refused_and_evicted().1 > 100_000, "and the others are counted");
}

#[test]
fn forged_requests_evict_neither_known_nor_newly_used_neighbours() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let clients: Vec<IpAddr> = hosts([192, 0, 2, 100], 50).collect();
    clients.iter().for_each(|&client| on_demand(&mut resolver, at(0), client, OTHER));
    let newcomer = ip("192.0.2.99");
    receive(&mut resolver, at(1), newcomer, OTHER, Sighting::Request);
    let uses = |_, address| address == newcomer;
    let mut stored = 0_i64;
    for address in hosts([10, 0, 0, 1], 100_000) {
        for action in resolver.seen(at(2), (0, address), Some(ROUTER), Sighting::Request, &uses) {
            stored += match action {
                Action::Update { .. } => 1,
                Action::Release { .. } => -1,
                other => panic!("{other:?}"),
            };
        }
    }
    let all = i64::try_from(tidegate_spec::limits::NEIGHBORS_ON_DEMAND_MAX).unwrap();
    assert!((1..=all / 8).contains(&stored), "{stored} forged neighbours at once");
    assert!(clients.iter().all(|&client| is_known(&resolver, client)) && is_known(&resolver, newcomer));
}

#[test]
fn idle_neighbours_are_evicted_and_those_in_use_are_not() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let capacity = u32::try_from(tidegate_spec::limits::NEIGHBORS_ON_DEMAND_MAX / 4).unwrap();
    // Not faster than the rate limit of requests.
    for (n, client) in (0..).zip(hosts([10, 0, 0, 1], capacity)) {
        on_demand(&mut resolver, at(1_000 + n), client, OTHER);
    }
    let late = ip("192.0.2.7");
    let arrives = |resolver: &mut Resolver, now: Now, uses: Uses<'_>| {
        resolver.wanted(now, 0, late);
        run_with(resolver, now, uses);
        resolver.seen(now, (0, late), Some(OTHER), ANSWER, uses)
    };
    assert_eq!(arrives(&mut resolver, at(10_000), &USED).len(), 1, "released again");
    assert!(!is_known(&resolver, late) && resolver.refused_and_evicted().0 == 1);
    assert!(hosts([10, 0, 0, 1], capacity).all(|client| is_known(&resolver, client)));
    arrives(&mut resolver, at(200_000), &UNUSED);
    assert!(is_known(&resolver, late), "one that was idle for minutes was evicted");
}

#[test]
fn a_dead_address_is_requested_less_and_less_often_while_packets_need_it() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    let mut sent = Vec::new();
    for milli in (0..120_000).step_by(50) {
        resolver.wanted(at(milli), 0, ip("192.0.2.7"));
        sent.extend(run(&mut resolver, at(milli)));
    }
    assert!((8..=12).contains(&sent.len()), "{} requests in two minutes", sent.len());
}

#[test]
fn requests_for_dead_addresses_are_limited_and_delay_no_backend_probe() {
    let mut resolver = pinned(ip("192.0.2.1"), ROUTER);
    let mut sent = 0;
    for milli in 20_000..32_000_u64 {
        for n in 0..64 {
            let n = u32::try_from(milli).unwrap() * 64 + n;
            resolver.wanted(at(milli), 0, IpAddr::from((0x0a00_0000_u32 + n).to_be_bytes()));
        }
        let actions = resolver.tick(at(milli), &UNUSED);
        sent += requests(&actions).iter().filter(|(to, _)| *to == MacAddr::BROADCAST).count();
        if requests(&actions).iter().any(|(to, _)| *to == ROUTER) {
            answer(&mut resolver, at(milli), ip("192.0.2.1"), ROUTER);
        }
    }
    assert!((11_000..=12_500).contains(&sent), "{sent} requests in 12 s");
    assert!(is_known(&resolver, ip("192.0.2.1")));
    assert!(
        resolver.entries.timer_queues[PINNED].timers.first().unwrap().0 > at(55_000),
        "it was requested in time"
    );
}

#[test]
fn only_a_requested_answer_makes_a_neighbour_reachable() {
    let router = ip("192.0.2.1");
    let mut resolver = pinned(router, ROUTER);
    let probe = resolver.due().unwrap();
    for second in 1..=29 {
        for how in [ANSWER, ANNOUNCEMENT, Sighting::Request] {
            assert!(receive(&mut resolver, at(second * 1_000), router, ROUTER, how).is_empty());
        }
    }
    assert_eq!(resolver.due(), Some(probe), "it is probed as if nothing had arrived");
    run(&mut resolver, probe);
    assert!(receive(&mut resolver, probe, router, ROUTER, ANNOUNCEMENT).is_empty());
    assert_eq!(resolver.due(), Some(probe.plus(PROBE_INTERVAL)), "still probing");
    let actions = resolver.seen(probe, (0, router), None, ANSWER, &UNUSED);
    assert!(
        actions.is_empty() && resolver.due() > Some(probe.plus(REACHABLE - DELAY)),
        "no option is needed"
    );
}

#[test]
fn an_advertisement_without_override_only_triggers_a_probe() {
    let router = ip("2001:db8::1");
    let mut resolver = pinned(router, ROUTER);
    for overrides in [Sighting::Announcement { overrides: false }, Sighting::Answer { overrides: false }] {
        assert!(receive(&mut resolver, at(100), router, OTHER, overrides).is_empty());
    }
    assert_eq!(resolver.known().collect::<Vec<_>>(), [(0, router, ROUTER)]);
    assert_eq!(resolver.due(), Some(at(100).plus(DELAY)), "stale: RFC 4861 7.2.5");
}

#[test]
fn an_unsolicited_move_is_followed_and_probed_once_a_second_at_most() {
    let router = ip("192.0.2.1");
    let mut resolver = pinned(router, ROUTER);
    let moved = receive(&mut resolver, at(1_000), router, OTHER, ANNOUNCEMENT);
    assert_eq!(moved, [update(router, OTHER, Known::Unconfirmed)]);
    for milli in 1_001..2_000 {
        assert!(receive(&mut resolver, at(milli), router, ROUTER, ANNOUNCEMENT).is_empty());
    }
    assert_eq!(resolver.due(), Some(at(1_000).plus(DELAY)));
    let probe = resolver.tick(at(6_000), &UNUSED);
    assert_eq!(requests(&probe)[0].0, OTHER);
    assert_eq!(answer(&mut resolver, at(6_001), router, OTHER), [update(router, OTHER, Known::Confirmed)]);
}

#[test]
fn a_claim_is_defended_every_ten_seconds_and_never_without_announcements() {
    let mut resolver = Resolver::default();
    let (vip, quiet) = (ip("192.0.2.100"), ip("192.0.2.101"));
    resolver.configure(at(0), ResolverContext { owned: [vip].into(), ..context() });
    run(&mut resolver, at(10_000));
    let mut defended = 0;
    for milli in (20_000..60_000).step_by(10) {
        let actions = resolver.claimed(at(milli), (0, vip), Some(OTHER));
        defended += requests(&actions).len();
        if let [send, said] = &actions[..] {
            let (to, packet) = requests(std::slice::from_ref(send))[0];
            assert_eq!(
                (to, IpAddr::V4(packet.sender_ip), packet.sender_mac),
                (MacAddr::BROADCAST, vip, OURS)
            );
            assert_eq!(*said, conflict(vip, true));
        } else {
            assert!(actions.is_empty());
        }
    }
    assert_eq!(defended, 4);
    assert_eq!(resolver.claimed(at(70_000), (0, quiet), Some(OTHER)), [conflict(quiet, false)]);
}

#[test]
fn a_claim_is_defended_while_another_station_claims_thousands() {
    let mut resolver = Resolver::default();
    let vips: Vec<IpAddr> = hosts([10, 0, 0, 1], 5_000).collect();
    resolver.configure(at(0), ResolverContext { owned: vips.iter().copied().collect(), ..context() });
    let (last, others) = vips.split_last().unwrap();
    let (mut defended, mut reported) = (0, 0);
    for &vip in others {
        let actions = resolver.claimed(at(1), (0, vip), Some(ROUTER));
        defended += requests(&actions).len();
        reported += actions.iter().filter(|action| matches!(action, Action::Conflict { .. })).count();
    }
    assert_eq!((defended, reported), (others.len(), LOGGED_PER_STATION));
    let actions = resolver.claimed(at(1), (0, *last), Some(OTHER));
    assert_eq!((requests(&actions).len(), actions.last()), (1, Some(&conflict(*last, true))));
}

#[test]
fn requests_back_off_and_traffic_alone_gives_up() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    resolver.wanted(at(0), 0, ip("192.0.2.7"));
    let story = run(&mut resolver, at(60_000));
    let sent = story.iter().filter(|(_, action)| matches!(action, Action::Send { .. }));
    let times: Vec<u64> = sent.map(|(now, _)| now.0 / 1_000_000).collect();
    assert_eq!(times, [0, 250, 750, 1750, 3750]);
    assert_eq!(resolver.unresolved().count(), 0, "forgotten; the next packet requests it again");
}

#[test]
fn configured_next_hops_are_requested_early_and_never_given_up() {
    let mut resolver = Resolver::default();
    let next_hops = [ip("192.0.2.1"), ip("198.51.100.1")].into();
    resolver.configure(at(0), ResolverContext { next_hops, ..context() });
    assert_eq!(requests(&resolver.tick(at(0), &UNUSED)).len(), 1, "only the one that is on a link");
    let sent = run(&mut resolver, at(300_000));
    let last = sent.last().unwrap().0;
    assert!(last > at(240_000), "still requested after minutes: {last:?}");
    assert!(sent.len() < 20, "but not often: {}", sent.len());
}

#[test]
fn a_silent_next_hop_stays_in_use_and_is_found_on_another_machine() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), ResolverContext { next_hops: [ip("192.0.2.1")].into(), ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(10), ip("192.0.2.1"), ROUTER);
    assert!(run(&mut resolver, at(30_000)).is_empty(), "believed for 30 s");
    let mut story = Vec::new();
    for (_, action) in run(&mut resolver, at(38_000)) {
        match &action {
            Action::Send { .. } => {
                story.push(if requests(&[action])[0].0 == ROUTER { "unicast" } else { "broadcast" });
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(story[..3], ["unicast"; 3]);
    assert!(story.len() > 6 && story[3..].iter().all(|probe| *probe == "broadcast"), "{story:?}");
    let known: Vec<_> = resolver.known().map(|(_, _, mac)| mac).collect();
    assert_eq!(known, [ROUTER], "a flood that loses the answers takes nothing away");
    assert_eq!(
        answer(&mut resolver, at(39_000), ip("192.0.2.1"), OTHER).len(),
        1,
        "back, on another machine"
    );
}

#[test]
fn an_answer_to_a_probe_renews_without_touching_the_table() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), ResolverContext { next_hops: [ip("192.0.2.1")].into(), ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(10), ip("192.0.2.1"), ROUTER);
    let due = resolver.due().unwrap();
    assert_eq!(requests(&resolver.tick(due, &UNUSED)).len(), 1);
    assert!(answer(&mut resolver, due, ip("192.0.2.1"), ROUTER).is_empty());
    assert!(resolver.due().unwrap() > due.plus(REACHABLE - Duration::from_secs(1)));
}

#[test]
fn a_moving_neighbour_is_followed_but_never_to_a_group_or_to_us() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), context());
    resolver.wanted(at(0), 0, ip("192.0.2.1"));
    answer(&mut resolver, at(1), ip("192.0.2.1"), ROUTER);
    assert!(answer(&mut resolver, at(2), ip("192.0.2.1"), MacAddr::BROADCAST).is_empty());
    assert!(answer(&mut resolver, at(2), ip("192.0.2.1"), OURS).is_empty());
    assert_eq!(answer(&mut resolver, at(3), ip("192.0.2.1"), OTHER).len(), 1);
}

#[test]
fn fixed_neighbours_are_published_at_once_and_cannot_be_replaced() {
    let mut resolver = Resolver::default();
    let fixed = vec![(ip("192.0.2.1"), ROUTER)];
    let next_hops = [ip("192.0.2.1")].into();
    let actions = resolver.configure(at(0), ResolverContext { fixed, next_hops, ..context() });
    assert_eq!(actions, [update(ip("192.0.2.1"), ROUTER, Known::Fixed)]);
    assert!(answer(&mut resolver, at(1), ip("192.0.2.1"), OTHER).is_empty());
    let actions = resolver.configure(at(2), context());
    assert_eq!(actions, [Action::Release { interface: 0, address: ip("192.0.2.1"), fixed: true }]);
}

#[test]
fn a_fixed_neighbour_that_answers_with_another_mac_is_a_fault() {
    let mut resolver = Resolver::default();
    let router = ip("192.0.2.1");
    let with = |mac| ResolverContext { fixed: vec![(router, mac)], ..context() };
    resolver.configure(at(0), with(ROUTER));
    let requested = resolver.tick(at(0), &UNUSED);
    assert_eq!((requests(&requested)[0].0, requests(&requested).len()), (MacAddr::BROADCAST, 1));
    assert!(answer(&mut resolver, at(1), router, OTHER).is_empty(), "the configuration decides");
    let fault =
        NeighborFault::OtherMac { interface: 0, address: router, configured: ROUTER, answered: OTHER };
    assert_eq!(resolver.faults(at(2)), [fault]);
    assert_eq!(requests(&resolver.tick(at(15_000), &UNUSED)).len(), 1, "requested again");
    answer(&mut resolver, at(15_001), router, ROUTER);
    assert_eq!(resolver.faults(at(15_002)), [], "another device had its address");
    answer(&mut resolver, at(30_000), router, OTHER);
    assert_eq!(resolver.faults(at(30_001)).len(), 1);
    resolver.configure(at(30_002), with(OTHER));
    assert_eq!(resolver.faults(at(30_003)), [], "the configuration was corrected");
}

#[test]
fn a_vip_of_backends_is_probed_and_who_answers_is_a_fault_with_a_name() {
    let mut resolver = Resolver::default();
    let (vip, backend) = (ip("192.0.2.100"), ip("192.0.2.10"));
    let elsewhere = ip("192.0.2.101");
    let (owned, next_hops) = ([vip].into(), [backend].into());
    let probed = [vip, elsewhere].into();
    resolver.configure(at(0), ResolverContext { owned, next_hops, probed, ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(1), backend, OTHER);
    let sent: Vec<Action> = run(&mut resolver, at(60_000)).into_iter().map(|(_, action)| action).collect();
    let is_probe = |one: &&(MacAddr, ArpPacket)| one.1.sender_ip.is_unspecified();
    let sent = requests(&sent);
    let probes: Vec<_> = sent.iter().filter(is_probe).map(|one| IpAddr::V4(one.1.target_ip)).collect();
    assert!((3..=5).contains(&probes.len()) && probes.iter().all(|one| *one == vip), "{probes:?}");
    resolver.claimed(at(60_001), (0, vip), Some(OTHER));
    let fault =
        NeighborFault::Claimed { interface: 0, address: vip, mac: Some(OTHER), neighbor: Some(backend) };
    assert_eq!(resolver.faults(at(60_002)), [fault]);
    assert_eq!(resolver.faults(at(120_000)), [], "no station claims it any more");
}

#[test]
fn removed_backends_are_forgotten_and_kept_ones_are_not_requested_again() {
    let mut resolver = Resolver::default();
    let (a, b) = (ip("192.0.2.10"), ip("192.0.2.11"));
    resolver.configure(at(0), ResolverContext { next_hops: [a, b].into(), ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(1), a, ROUTER);
    answer(&mut resolver, at(1), b, OTHER);
    let actions = resolver.configure(at(2), ResolverContext { next_hops: [a].into(), ..context() });
    assert_eq!(actions, [Action::Release { interface: 0, address: b, fixed: false }]);
    assert!(resolver.tick(at(3), &UNUSED).is_empty());
}

#[test]
fn new_vips_are_announced_a_few_times_and_old_ones_are_not() {
    let mut resolver = Resolver::default();
    let vip = ip("192.0.2.100");
    resolver.configure(at(0), ResolverContext { owned: [vip].into(), ..context() });
    resolver.configure(at(1), ResolverContext { owned: [vip, ip("2001:db8:1::1")].into(), ..context() });
    let sent = run(&mut resolver, at(60_000));
    assert_eq!(sent.len(), 6, "three for each");
    let actions: Vec<Action> = sent.into_iter().map(|(_, action)| action).collect();
    let (to, packet) = requests(&actions)[0];
    assert_eq!(
        (to, packet.sender_ip, packet.target_ip),
        (MacAddr::BROADCAST, packet.target_ip, packet.sender_ip)
    );
    assert_eq!((IpAddr::V4(packet.sender_ip), packet.sender_mac), (vip, OURS));
}

#[test]
fn a_restored_link_gets_our_announcements_and_requests_for_its_neighbours() {
    let mut resolver = Resolver::default();
    let (owned, next_hops) = ([ip("192.0.2.100")].into(), [ip("192.0.2.1"), ip("192.0.2.7")].into());
    resolver.configure(at(0), ResolverContext { owned, next_hops, ..context() });
    resolver.tick(at(0), &UNUSED);
    answer(&mut resolver, at(1), ip("192.0.2.1"), ROUTER);
    run(&mut resolver, at(60_000));
    assert!(resolver.due().is_some_and(|due| due > at(60_000)));
    // The router has answered in the meantime. The other one never did, and is requested only every 30 s by now.
    answer(&mut resolver, at(60_000), ip("192.0.2.1"), ROUTER);
    resolver.link_up(at(60_001), 0);
    let actions = resolver.tick(at(60_001), &UNUSED);
    let requested: Vec<_> =
        requests(&actions).into_iter().map(|(to, packet)| (to, packet.target_ip.to_string())).collect();
    for wanted in
        [(MacAddr::BROADCAST, "192.0.2.100"), (ROUTER, "192.0.2.1"), (MacAddr::BROADCAST, "192.0.2.7")]
    {
        assert!(requested.contains(&(wanted.0, wanted.1.to_owned())), "{wanted:?} is not in {requested:?}");
    }
    assert!(
        resolver.known().any(|(_, address, mac)| (address, mac) == (ip("192.0.2.1"), ROUTER)),
        "it stays in use"
    );
}
