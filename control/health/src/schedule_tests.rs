//! Tests the schedule with simulated time and invented answers.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Check, Probe, Rules};
use super::*;

const GOOD: CheckResult = CheckResult::Success;
const BAD: CheckResult = CheckResult::Failure(Failure::Refused);

fn probe(interval_ms: u64, check: Check) -> Arc<Probe> {
    let interval = Duration::from_millis(interval_ms);
    Arc::new(Probe::new(check, Rules { interval, timeout: interval, ..Rules::default() }))
}

fn target(n: u32, probe: &Arc<Probe>) -> Target {
    Target::new((std::net::Ipv4Addr::from_bits(0x0a00_0000 + n), 80).into(), probe)
}

fn set(targets: impl IntoIterator<Item = Target>) -> Targets {
    targets.into_iter().collect()
}

/// Runs until `end`, with an immediate answer to each check. Returns the times of each target in milliseconds.
fn run(schedule: &mut Schedule, end: Duration) -> BTreeMap<Target, Vec<u128>> {
    let mut times: BTreeMap<Target, Vec<u128>> = BTreeMap::new();
    while let Some(now) = schedule.next().filter(|next| *next <= end) {
        while let Some((ticket, target)) = schedule.begin(now) {
            times.entry(target).or_default().push(now.as_millis());
            schedule.end(ticket, GOOD.into(), now);
        }
    }
    times
}

#[test]
fn the_cadence_has_jitter_and_does_not_drift() {
    let mut schedule = Schedule::new(Limits::default(), 1);
    let only = target(1, &probe(1000, Check::Tcp));
    schedule.replace(&set([only.clone()]), Duration::ZERO);
    let times = &run(&mut schedule, Duration::from_secs(1000))[&only];
    assert_eq!(times.len(), 1000);
    let gaps: BTreeSet<u128> = times.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.len() > 50 && *gaps.first().expect("some") >= 899 && *gaps.last().expect("some") <= 1101);
    let off: BTreeSet<u128> = times.iter().zip(0..).map(|(at, n)| at - n * 1000).collect();
    assert!(off.last().expect("some") - off.first().expect("some") <= 100, "within a tenth of its position");
}

#[test]
fn gateways_check_at_different_times_and_a_restart_keeps_them() {
    let targets = || set((0..100).map(|n| target(n, &probe(1000, Check::Tcp))));
    let times = |gateway: &str| {
        let mut schedule = Schedule::new(Limits::default(), seed_of(gateway));
        schedule.replace(&targets(), Duration::ZERO);
        run(&mut schedule, Duration::from_secs(2))
    };
    assert_eq!(times("edge-1"), times("edge-1"));
    let (one, two) = (times("edge-1"), times("edge-2"));
    let alike = one.iter().filter(|(target, times)| times[0].abs_diff(two[target][0]) < 10).count();
    assert!(alike < 10, "{alike} of 100 within 10 ms");
}

#[test]
fn another_interval_keeps_the_position_of_a_target() {
    let place_of = |interval_ms: u64| {
        let mut schedule = Schedule::new(Limits::default(), 1);
        let only = target(7, &probe(interval_ms, Check::Tcp));
        schedule.replace(&set([only.clone()]), Duration::ZERO);
        let first = run(&mut schedule, Duration::from_millis(3 * interval_ms))[&only][0];
        first as f64 / interval_ms as f64 % 1.0
    };
    let apart = (place_of(1000) - place_of(60_000)).abs();
    assert!(!(0.11..=0.89).contains(&apart), "{apart} of an interval, jitter included");
}

#[test]
fn a_check_as_long_as_the_interval_is_followed_by_the_next_one() {
    let mut schedule = Schedule::new(Limits::default(), 1);
    schedule.replace(&set([target(1, &probe(1000, Check::Tcp))]), Duration::ZERO);
    let mut begun = 0;
    let mut now = Duration::ZERO;
    while now < Duration::from_secs(100) {
        now = now.max(schedule.next().expect("one target"));
        let (ticket, _) = schedule.begin(now).expect("it is due");
        begun += 1;
        now += Duration::from_secs(1);
        schedule.end(ticket, BAD.into(), now);
    }
    assert!(begun >= 98, "{begun} checks in 100 s");
}

#[test]
fn memory_per_target_is_bounded_whatever_changes() {
    let mut schedule = Schedule::new(Limits::default(), 1);
    let probe = probe(3_600_000, Check::Tcp);
    for round in 0..20 {
        let all = set((0..10_000).map(|n| target(n + round * 5_000, &probe)));
        schedule.replace(&all, Duration::from_secs(u64::from(round)));
        let each = schedule.bytes() / 10_000;
        assert!(each <= BYTES_A_TARGET_MAX, "{each} bytes a target after {round} changes of half of them");
    }
    assert_eq!(schedule.len(), 10_000);
}

#[derive(Debug, Clone)]
enum Step {
    /// Advances the time by these milliseconds.
    Wait(u64),
    /// Starts all checks that may start.
    Begin,
    /// Ends the oldest check in progress.
    End(bool),
    /// Replaces the targets: (address, kind of check).
    Replace(Vec<(u32, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..700).prop_map(Step::Wait),
        4 => Just(Step::Begin),
        4 => any::<bool>().prop_map(Step::End),
        1 => prop::collection::vec((0_u32..12, 0_u8..3), 0..20).prop_map(Step::Replace),
    ]
}

fn made(kinds: &[(u32, u8)]) -> Targets {
    let kind = |kind: u8| match kind {
        0 => probe(1000, Check::Tcp),
        1 => probe(500, Check::Https { path: "/".into() }),
        // A probe of another namespace.
        _ => Arc::new(Probe::clone(&probe(2000, Check::Udp)).of(&"other".into())),
    };
    set(kinds.iter().map(|(n, of)| target(*n, &kind(*of))))
}

proptest! {
    #[test]
    fn no_target_is_checked_twice_at_once_or_forgotten_within_limits(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let limits = Limits { plain_max: 3, tls_max: 1, per_second_max: 8 };
        let mut schedule = Schedule::new(limits, 9);
        let mut wanted = Targets::default();
        let mut now = Duration::ZERO;
        let mut in_progress: Vec<(Ticket, Target)> = Vec::new();
        // The state that a reader of the changes sees.
        let mut statuses: BTreeMap<Target, HealthStatus> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Wait(ms) => now += Duration::from_millis(ms),
                Step::Begin => while let Some((ticket, target)) = schedule.begin(now) {
                    prop_assert!(wanted.contains(&target));
                    in_progress.push((ticket, target));
                },
                Step::End(success) if !in_progress.is_empty() => {
                    let (ticket, _) = in_progress.remove(0);
                    statuses.extend(schedule.end(ticket, if success { GOOD } else { BAD }.into(), now));
                }
                Step::End(_) => {}
                Step::Replace(kinds) => {
                    wanted = made(&kinds);
                    statuses.extend(schedule.replace(&wanted, now));
                }
            }
            let tls = in_progress.iter().filter(|(_, target)| target.probe.check.is_tls()).count();
            prop_assert!(tls <= 1 && in_progress.len() - tls <= 3);
            prop_assert_eq!((schedule.in_progress(), schedule.len()), (in_progress.len(), wanted.len()));
            // A target that was removed and added again may still have an old check in progress, whose answer does not
            // count.
            let live: Vec<_> = in_progress.iter().filter(|(ticket, _)| schedule.live(ticket.entry).is_some()).collect();
            let distinct: BTreeSet<_> = live.iter().map(|(_, target)| target).collect();
            prop_assert_eq!(distinct.len(), live.len());
            for (target, status) in &statuses {
                let kept = wanted.contains(target) || *status == HealthStatus::default();
                prop_assert!(kept, "{target} is gone but reported as {status:?}");
            }
        }
        // From here on all checks are answered immediately: every target is checked within two stretched intervals.
        for (ticket, _) in in_progress {
            schedule.end(ticket, GOOD.into(), now);
        }
        let end = now + 3 * Duration::from_secs(2) * schedule.stretch();
        let mut checked = BTreeSet::new();
        loop {
            while let Some((ticket, target)) = schedule.begin(now) {
                schedule.end(ticket, GOOD.into(), now);
                checked.insert(target);
            }
            match schedule.next().filter(|next| *next <= end) {
                Some(next) => now = now.max(next),
                None => break,
            }
        }
        prop_assert!(checked.iter().eq(wanted.iter()), "{checked:?} of {wanted:?}");
    }
}

proptest! {
    #[test]
    fn a_new_target_starts_with_the_known_state_of_its_address(
        // (IP, port, kind, fails) of the old targets, of which the first `gone` are removed.
        were in prop::collection::btree_map((0_u8..3, 0_u16..3, 0_u8..3), any::<bool>(), 0..12),
        gone in 0_usize..12,
        ip in 0_u8..3,
        port in 0_u16..3,
    ) {
        let kinds = [probe(1000, Check::Tcp), probe(2000, Check::Tcp), probe(1000, Check::Udp)];
        let at = |ip: u8, port: u16, kind: u8| {
            Target::new(([10, 0, 0, ip], 80 + port).into(), &kinds[usize::from(kind)])
        };
        let were: Vec<(Target, bool)> = were.iter().map(|((ip, port, kind), fails)| (at(*ip, *port, *kind), *fails)).collect();
        let mut schedule = Schedule::new(Limits::default(), 1);
        schedule.replace(&set(were.iter().map(|(target, _)| target.clone())), Duration::ZERO);
        for (target, fails) in &were {
            let index = schedule.at[target] as usize;
            schedule.records[index].status = failing(fails.then_some(Failure::Refused));
        }
        let gone = gone.min(were.len());
        let new = Target::new(([10, 0, 0, ip], 80 + port).into(), &probe(1000, Check::Http { path: "/".into() }));
        let stay = were[gone..].iter().map(|(target, _)| target.clone());
        let changes = schedule.replace(&set(stay.chain([new.clone()])), Duration::ZERO);

        let here: Vec<bool> =
            were.iter().filter(|(target, _)| target.address == new.address).map(|(_, fails)| *fails).collect();
        let gone_here: Vec<bool> = were[..gone]
            .iter()
            .filter(|(target, _)| target.address.ip() == new.address.ip())
            .map(|(_, fails)| *fails)
            .collect();
        let known = if here.is_empty() { gone_here } else { here };
        let begins_failing = !known.is_empty() && known.iter().all(|fails| *fails);
        let said = changes.iter().any(|(target, status)| *target == new && status.failure.is_some());
        prop_assert_eq!(said, begins_failing);
    }
}
