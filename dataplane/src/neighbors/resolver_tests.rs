//! Stories about neighbours: who is asked, believed and given up, and when.

use super::*;
use tidegate_core::wire::{ArpPacket, Parsed, ethernet, parse};

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn around() -> Surroundings {
    let link = Link {
        mac: OURS,
        vlan: None,
        addresses: vec!["192.0.2.2/24".parse().unwrap(), "2001:db8::2/64".parse().unwrap()],
    };
    Surroundings { interfaces: vec![link], ..Surroundings::default() }
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

/// Runs the machine's timers up to `until`, and returns everything it did with the times.
fn run(resolver: &mut Resolver, until: Now) -> Vec<(Now, Action)> {
    let mut all = Vec::new();
    while let Some(due) = resolver.due().filter(|&due| due <= until) {
        all.extend(resolver.tick(due).into_iter().map(|action| (due, action)));
    }
    all
}

#[test]
fn a_wanted_neighbour_is_asked_for_and_its_answer_learnt() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    assert!(resolver.wanted(at(5), 0, ip("192.0.2.1")).is_empty());
    let actions = resolver.tick(at(5));
    let [(to, request)] = requests(&actions)[..] else { panic!("one request: {actions:?}") };
    assert_eq!(
        (to, request.sender_mac, request.sender_ip.to_string()),
        (MacAddr::BROADCAST, OURS, "192.0.2.2".into())
    );
    assert_eq!(request.target_ip.to_string(), "192.0.2.1");
    assert!(
        resolver.wanted(at(6), 0, ip("192.0.2.1")).is_empty() && resolver.tick(at(6)).is_empty(),
        "asked once"
    );
    let learnt = resolver.seen(at(7), 0, ip("192.0.2.1"), ROUTER);
    assert_eq!(learnt, [Action::Learn { interface: 0, address: ip("192.0.2.1"), mac: ROUTER, fixed: false }]);
    assert_eq!(resolver.known().collect::<Vec<_>>(), [(0, ip("192.0.2.1"), ROUTER)]);
}

#[test]
fn ipv6_neighbours_are_solicited_at_their_group() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    resolver.wanted(at(0), 0, ip("2001:db8::1"));
    let actions = resolver.tick(at(0));
    let [Action::Send { interface: 0, frame }] = &actions[..] else { panic!("one frame: {actions:?}") };
    let Ok(Parsed::Ip(headers)) = parse(frame) else { panic!("not IP") };
    assert_eq!((headers.src.ip(), headers.dst.ip()), (ip("2001:db8::2"), ip("ff02::1:ff00:1")));
    assert!(
        matches!(ndp::parse(frame, &headers), Ok(Some(ndp::Ndp::Solicitation { target, source_mac: Some(OURS) }))
        if IpAddr::V6(target) == ip("2001:db8::1"))
    );
    let learnt = resolver.seen(at(1), 0, ip("2001:db8::1"), ROUTER);
    assert_eq!(learnt.len(), 1);
}

#[test]
fn strangers_cannot_fill_the_table() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    for host in 1..=200 {
        assert!(resolver.seen(at(1), 0, IpAddr::from([192, 0, 2, host]), OTHER).is_empty());
    }
    assert_eq!(resolver.known().count(), 0);
    assert_eq!(resolver.due(), None);
}

#[test]
fn what_traffic_wants_is_bounded_and_the_oldest_makes_room() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    for n in 0..=u32::try_from(WANTED_MAX).unwrap() {
        resolver.wanted(Now(u64::from(n)), 0, IpAddr::from((0x0a00_0001_u32 + n).to_be_bytes()));
    }
    assert_eq!(resolver.unresolved().count(), WANTED_MAX);
    assert!(resolver.unresolved().all(|(_, address)| address != ip("10.0.0.1")), "the first one made room");
    assert!(resolver.tick(at(1)).len() <= FRAMES_PER_TICK);
}

#[test]
fn requests_back_off_and_traffic_alone_gives_up() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    resolver.wanted(at(0), 0, ip("192.0.2.7"));
    let times: Vec<u64> = run(&mut resolver, at(60_000)).iter().map(|(now, _)| now.0 / 1_000_000).collect();
    assert_eq!(times, [0, 250, 750, 1750, 3750]);
    assert_eq!(resolver.unresolved().count(), 0, "forgotten; the next packet asks anew");
}

#[test]
fn configured_next_hops_are_asked_for_before_any_packet_and_never_given_up() {
    let mut resolver = Resolver::default();
    let next_hops = [ip("192.0.2.1"), ip("198.51.100.1")].into();
    resolver.configure(at(0), Surroundings { next_hops, ..around() });
    assert_eq!(requests(&resolver.tick(at(0))).len(), 1, "only the one that is on a link");
    let sent = run(&mut resolver, at(300_000));
    let last = sent.last().unwrap().0;
    assert!(last > at(240_000), "still asked for after minutes: {last:?}");
    assert!(sent.len() < 20, "but not often: {}", sent.len());
}

#[test]
fn a_silent_neighbour_is_probed_then_broadcast_for_then_forgotten_then_found_again() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), Surroundings { next_hops: [ip("192.0.2.1")].into(), ..around() });
    resolver.tick(at(0));
    resolver.seen(at(10), 0, ip("192.0.2.1"), ROUTER);
    assert!(run(&mut resolver, at(30_000)).is_empty(), "believed for 30 s");
    let mut story = Vec::new();
    for (_, action) in run(&mut resolver, at(38_000)) {
        match &action {
            Action::Send { .. } => {
                story.push(if requests(&[action])[0].0 == ROUTER { "unicast" } else { "broadcast" });
            }
            Action::Forget { .. } => story.push("forget"),
            Action::Learn { .. } => story.push("learn"),
        }
    }
    let told =
        ["unicast", "unicast", "unicast", "broadcast", "broadcast", "broadcast", "forget", "broadcast"];
    assert_eq!(story[..8], told);
    assert_eq!(resolver.seen(at(39_000), 0, ip("192.0.2.1"), OTHER).len(), 1, "back, on another machine");
}

#[test]
fn an_answer_to_a_probe_renews_without_touching_the_table() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), Surroundings { next_hops: [ip("192.0.2.1")].into(), ..around() });
    resolver.tick(at(0));
    resolver.seen(at(10), 0, ip("192.0.2.1"), ROUTER);
    let due = resolver.due().unwrap();
    assert_eq!(requests(&resolver.tick(due)).len(), 1);
    assert!(resolver.seen(due, 0, ip("192.0.2.1"), ROUTER).is_empty());
    assert!(resolver.due().unwrap() > due.plus(REACHABLE - Duration::from_secs(1)));
}

#[test]
fn a_neighbour_that_moves_is_followed_but_never_to_a_group_or_to_ourselves() {
    let mut resolver = Resolver::default();
    resolver.configure(at(0), around());
    resolver.wanted(at(0), 0, ip("192.0.2.1"));
    resolver.seen(at(1), 0, ip("192.0.2.1"), ROUTER);
    assert!(resolver.seen(at(2), 0, ip("192.0.2.1"), MacAddr::BROADCAST).is_empty());
    assert!(resolver.seen(at(2), 0, ip("192.0.2.1"), OURS).is_empty());
    assert_eq!(resolver.seen(at(3), 0, ip("192.0.2.1"), OTHER).len(), 1);
}

#[test]
fn fixed_neighbours_are_told_at_once_and_nobody_talks_them_away() {
    let mut resolver = Resolver::default();
    let fixed = vec![(ip("192.0.2.1"), ROUTER)];
    let next_hops = [ip("192.0.2.1")].into();
    let actions = resolver.configure(at(0), Surroundings { fixed, next_hops, ..around() });
    assert_eq!(actions, [Action::Learn { interface: 0, address: ip("192.0.2.1"), mac: ROUTER, fixed: true }]);
    assert!(resolver.seen(at(1), 0, ip("192.0.2.1"), OTHER).is_empty());
    assert!(run(&mut resolver, at(100_000)).is_empty(), "never asked for");
    let actions = resolver.configure(at(2), around());
    assert_eq!(actions, [Action::Forget { interface: 0, address: ip("192.0.2.1") }]);
}

#[test]
fn removed_backends_are_forgotten_and_kept_ones_are_not_asked_again() {
    let mut resolver = Resolver::default();
    let (a, b) = (ip("192.0.2.10"), ip("192.0.2.11"));
    resolver.configure(at(0), Surroundings { next_hops: [a, b].into(), ..around() });
    resolver.tick(at(0));
    resolver.seen(at(1), 0, a, ROUTER);
    resolver.seen(at(1), 0, b, OTHER);
    let actions = resolver.configure(at(2), Surroundings { next_hops: [a].into(), ..around() });
    assert_eq!(actions, [Action::Forget { interface: 0, address: b }]);
    assert!(resolver.tick(at(3)).is_empty());
}

#[test]
fn new_vips_are_announced_a_few_times_and_old_ones_are_not() {
    let mut resolver = Resolver::default();
    let vip = ip("192.0.2.100");
    resolver.configure(at(0), Surroundings { owned: [vip].into(), ..around() });
    resolver.configure(at(1), Surroundings { owned: [vip, ip("2001:db8:1::1")].into(), ..around() });
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
fn a_link_that_comes_back_is_told_our_addresses_and_asked_for_its_neighbours() {
    let mut resolver = Resolver::default();
    let (owned, next_hops) = ([ip("192.0.2.100")].into(), [ip("192.0.2.1"), ip("192.0.2.7")].into());
    resolver.configure(at(0), Surroundings { owned, next_hops, ..around() });
    resolver.tick(at(0));
    resolver.seen(at(1), 0, ip("192.0.2.1"), ROUTER);
    run(&mut resolver, at(60_000));
    assert!(resolver.due().is_some_and(|due| due > at(60_000)));
    // The router answered meanwhile, the other one never did and is asked for every half minute by now.
    resolver.seen(at(60_000), 0, ip("192.0.2.1"), ROUTER);
    resolver.link_up(at(60_001), 0);
    let actions = resolver.tick(at(60_001));
    let asked: Vec<_> =
        requests(&actions).into_iter().map(|(to, packet)| (to, packet.target_ip.to_string())).collect();
    for wanted in
        [(MacAddr::BROADCAST, "192.0.2.100"), (ROUTER, "192.0.2.1"), (MacAddr::BROADCAST, "192.0.2.7")]
    {
        assert!(asked.contains(&(wanted.0, wanted.1.to_owned())), "{wanted:?} is not in {asked:?}");
    }
    assert!(
        resolver.known().any(|(_, address, mac)| (address, mac) == (ip("192.0.2.1"), ROUTER)),
        "it stays in use"
    );
}
