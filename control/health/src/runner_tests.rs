//! Tests the runner with a scripted prober and a paused clock that advances only when all tasks wait. The tests count
//! events and measure no time.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use tidegate_model::health::AtVip;
use tidegate_spec::{ForwardingMode, TunnelOptions};
use tokio::net::TcpListener;

use super::super::{Check, NetworkProber, Probe, Rules};
use super::*;

fn target_of(address: &str, interval_ms: u64, check: Check) -> Target {
    let interval = Duration::from_millis(interval_ms);
    let rules = Rules { interval, timeout: interval / 2, ..Rules::default() };
    Target::new(address.parse().expect("an address"), &Probe::new(check, rules).into())
}

fn target(address: &str, interval_ms: u64) -> Target {
    target_of(address, interval_ms, Check::Tcp)
}

fn ten_thousand() -> Targets {
    (0..10_000_u32).map(|i| target(&format!("10.{}.{}.1:80", i / 250, i % 250), 2000)).collect()
}

fn start(scripted: &Scripted, limits: Limits) -> Checker {
    Checker::start(scripted.clone(), limits, "edge-1")
}

/// Answers from a script, and records the times of the checks.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// Answers by address. Without an entry, the check succeeds.
    answers: BTreeMap<SocketAddr, Answer>,
    /// No check is answered.
    silent: bool,
    /// Addresses whose checks are never answered.
    silences: std::collections::HashSet<SocketAddr>,
    /// No address has a VIP.
    without_vip: bool,
    wanted: Vec<Target>,
    /// A check of this address panics.
    cursed: Option<SocketAddr>,
    checks: Vec<(Target, Instant)>,
    in_progress: usize,
    in_progress_max: usize,
}

/// Counts a check as under way until it ends or times out.
struct InProgress(Scripted);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.script().in_progress -= 1;
    }
}

impl Scripted {
    fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.0.lock().expect("no test panics with the lock")
    }

    fn answer(&self, target: &Target, answer: impl Into<Answer>) {
        self.script().answers.insert(target.address, answer.into());
    }

    fn wants(&self, target: Target) {
        self.script().wanted.push(target);
    }

    fn wanted(&self) -> Targets {
        self.script().wanted.iter().cloned().collect()
    }

    fn times(&self, target: &Target) -> Vec<Instant> {
        self.script().checks.iter().filter(|(checks, _)| checks == target).map(|(_, at)| *at).collect()
    }
}

impl Prober for Scripted {
    async fn run_check(&self, target: &Target) -> Answer {
        let (answer, silent) = {
            let mut script = self.script();
            script.checks.push((target.clone(), Instant::now()));
            script.in_progress += 1;
            script.in_progress_max = script.in_progress_max.max(script.in_progress);
            let lacks_vip = target.at_vip.is_some() && script.without_vip;
            let silent = script.silent || lacks_vip || script.silences.contains(&target.address);
            (script.answers.get(&target.address).copied(), silent)
        };
        let _in_progress = InProgress(self.clone());
        let is_cursed = self.script().cursed == Some(target.address);
        assert!(!is_cursed, "on purpose");
        if silent {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        answer.unwrap_or(CheckResult::Success.into())
    }
}

const REFUSED: CheckResult = CheckResult::Failure(Failure::Refused);

#[tokio::test(start_paused = true)]
async fn failures_while_the_gateway_cannot_forward_do_not_count() {
    let (scripted, target) = (Scripted::default(), target("10.0.0.1:80", 1_000));
    scripted.answer(&target, REFUSED);
    let checker = start(&scripted, Limits::default());
    let can_forward = Arc::new(AtomicBool::new(false));
    let of_checker = Arc::clone(&can_forward);
    checker.fail_only_while(move || of_checker.load(Ordering::Relaxed));
    checker.set_targets([target.clone()].into_iter().collect());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!checker.verdicts().borrow().fails(&target));
    can_forward.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(checker.verdicts().borrow().fails(&target));
}

#[tokio::test(start_paused = true)]
async fn a_target_fails_after_three_failures_and_recovers_after_two_successes() {
    let scripted = Scripted::default();
    let target = target("192.0.2.1:80", 2000);
    scripted.answer(&target, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([target.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(verdicts.borrow_and_update().of(&target).failure, Some(Failure::Refused));
    assert_eq!(scripted.script().checks.len(), 3);

    scripted.script().answers.clear();
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(*verdicts.borrow_and_update(), Verdicts::default());
    assert_eq!(scripted.script().checks.len(), 5);
    assert_eq!(checker.counts().read(), [("success", 2), ("failure", 3), ("inconclusive", 0)]);
}

#[tokio::test(start_paused = true)]
async fn silence_is_a_failure_after_the_timeout_except_for_udp() {
    let scripted = Scripted::default();
    scripted.script().silent = true;
    let (tcp, udp) = (target("192.0.2.1:80", 2000), target_of("192.0.2.1:53", 2000, Check::Udp));
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([tcp.clone(), udp.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(verdicts.borrow().of(&tcp).failure, Some(Failure::Timeout));
    assert!(scripted.times(&udp).len() >= 2 && !verdicts.borrow().fails(&udp));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_lacks_the_vip_and_one_that_is_down_differ_in_reason() {
    let vip = Arc::new(AtVip {
        vip: "203.0.113.5".parse().expect("an address"),
        mode: ForwardingMode::DsrL2,
        tunnel: TunnelOptions::default(),
    });
    let scripted = Scripted::default();
    let [lacks, refuses, silent] =
        ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"].map(|address| target(address, 1000).at(Some(&vip)));
    scripted.answer(&refuses, REFUSED);
    scripted.script().silences.insert(silent.address);
    let checker = start(&scripted, Limits::default());
    let verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([lacks.clone(), refuses.clone(), silent.clone()]));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let failures =
        |verdicts: &Verdicts| [&lacks, &refuses, &silent].map(|target| verdicts.of(target).failure);
    assert_eq!(failures(&verdicts.borrow()), [None, Some(Failure::Refused), Some(Failure::Timeout)]);
    scripted.script().without_vip = true;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let reported = failures(&verdicts.borrow());
    assert_eq!(reported, [Some(Failure::NotOnVip), Some(Failure::Refused), Some(Failure::Timeout)]);
    assert_eq!(reported[0].expect("it fails").to_string(), "answers on its own address, not on the VIP");
    scripted.script().without_vip = false;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(failures(&verdicts.borrow())[0], None);
    // No check exceeded its time limit, so none was late.
    assert_eq!(checker.counts().load().late, 0);
}

#[tokio::test(start_paused = true)]
async fn a_fault_of_the_gateway_does_not_count_against_the_target() {
    let scripted = Scripted::default();
    let target = target("192.0.2.1:80", 1000);
    scripted.answer(&target, CheckResult::Inconclusive);
    let checker = start(&scripted, Limits::default());
    checker.set_targets(Targets::from_iter([target]));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(*checker.verdicts().borrow(), Verdicts::default());
    assert!(checker.counts().read()[2].1 >= 19);
}

#[tokio::test(start_paused = true)]
async fn a_check_that_panics_does_not_stop_other_checks() {
    let scripted = Scripted::default();
    let (cursed, other) = (target("192.0.2.1:80", 1000), target("192.0.2.2:80", 1000));
    scripted.script().cursed = Some(cursed.address);
    scripted.answer(&other, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([cursed.clone(), other.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(verdicts.borrow_and_update().failing().collect::<Vec<_>>(), [&other]);
    scripted.script().cursed = None;
    scripted.answer(&cursed, REFUSED);
    verdicts.changed().await.expect("the runner lives");
    assert!(verdicts.borrow().fails(&cursed), "it is checked again");
    assert!(checker.counts().read()[2].1 >= 2);
}

#[tokio::test(start_paused = true)]
async fn a_weight_that_a_node_reports_is_applied_at_once_and_kept() {
    let scripted = Scripted::default();
    let node = target_of("192.0.2.1:30500", 1000, Check::NodeHealthPort);
    scripted.answer(&node, Answer { result: CheckResult::Success, weight: Some(3) });
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([node.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!((verdicts.borrow_and_update().weight(&node), scripted.script().checks.len()), (Some(3), 1));
    // The last endpoint is gone: the weight is 0 immediately, but the verdict waits for its threshold.
    scripted.answer(&node, Answer { result: CheckResult::Failure(Failure::Status(503)), weight: Some(0) });
    verdicts.changed().await.expect("the runner lives");
    let now = verdicts.borrow_and_update().of(&node);
    assert_eq!((now.weight, now.failure), (Some(0), None));
    scripted.answer(&node, REFUSED);
    verdicts.changed().await.expect("the runner lives");
    let now = verdicts.borrow().of(&node);
    assert_eq!((now.weight, now.failure), (Some(0), Some(Failure::Refused)), "the last weight known");
    // An older version, which reports no weight, replaces it.
    scripted.answer(&node, CheckResult::Success);
    let updated = verdicts.wait_for(|verdicts| verdicts.weight(&node).is_none()).await;
    assert!(updated.expect("the runner lives").fails(&node), "it needs two successes");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_targets_are_spread_over_the_interval_without_a_burst() {
    let scripted = Scripted::default();
    let checker = start(&scripted, Limits::default());
    checker.set_targets(ten_thousand());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let script = scripted.script();
    let began = script.checks[0].1;
    let mut in_10_ms: BTreeMap<u128, usize> = BTreeMap::new();
    let mut by_target: HashMap<&Target, usize> = HashMap::new();
    for (target, at) in &script.checks {
        *in_10_ms.entry((*at - began).as_millis() / 10).or_default() += 1;
        *by_target.entry(target).or_default() += 1;
    }
    // The mean is 50. A Poisson count exceeds its mean by five deviations once in millions.
    let most = in_10_ms.values().max().expect("some");
    assert!(*most <= 50 + 5 * 8, "{most} checks in 10 ms");
    let (least, most) = (by_target.values().min(), by_target.values().max());
    assert!(
        least >= Some(&9) && most <= Some(&10),
        "{least:?} to {most:?} checks of one target in 10 intervals"
    );
    assert_eq!(by_target.len(), 10_000);
    // A check takes one or two milliseconds here, because tokio's clock has that resolution.
    assert!(script.in_progress_max <= 50, "{}", script.in_progress_max);
    assert_eq!((checker.counts().load().late, checker.counts().load().stretch), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn when_all_checks_time_out_every_target_is_still_checked() {
    let scripted = Scripted::default();
    scripted.script().silent = true;
    let limits = Limits { plain_max: 1000, ..Limits::default() };
    let checker = start(&scripted, limits);
    checker.set_targets(ten_thousand());
    // A check takes a second. The limit is 750 a second, the part of 1000 that one namespace alone may use, so each
    // target is checked every 13 seconds instead of every two.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let load = checker.counts().load();
    assert_eq!(load.failing, 10_000);
    assert!(load.late > 10_000 && load.in_progress <= 751);
    let checks = {
        let mut script = scripted.script();
        assert_eq!(script.in_progress_max, 751);
        script.silent = false;
        std::mem::take(&mut script.checks)
    };
    let mut by_target: HashMap<&Target, usize> = HashMap::new();
    checks.iter().for_each(|(target, _)| *by_target.entry(target).or_default() += 1);
    let (least, most) = (by_target.values().min(), by_target.values().max());
    assert!(least >= Some(&4) && most <= Some(&6), "{least:?} to {most:?} checks of one target");

    // After they answer again, the previous state returns within a few intervals.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(*checker.verdicts().borrow(), Verdicts::default());
    let late = checker.counts().load().late;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(checker.counts().load().late, late, "no check is late any more");
}

#[tokio::test(start_paused = true)]
async fn too_many_checks_stretch_all_intervals_by_one_factor() {
    let scripted = Scripted::default();
    let checker = start(&scripted, Limits { per_second_max: 100, ..Limits::default() });
    checker.set_targets(ten_thousand().into_iter().take(1000).collect());
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(checker.counts().load().stretch, 5);
    let checks = scripted.script().checks.len();
    assert!((9_500..=10_100).contains(&checks), "{checks} checks in 100 s");
    checker.set_targets(ten_thousand().into_iter().take(100).collect());
    scripted.script().checks.clear();
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(checker.counts().load().stretch, 1);
    let checks = scripted.script().checks.len();
    assert!((4_800..=5_100).contains(&checks), "{checks} checks in 100 s");
}

fn of_namespace(namespace: &str, target: &Target) -> Target {
    let probe = Probe::clone(&target.probe).of(&namespace.into());
    Target::new(target.address, &probe.into())
}

/// The time from a target's failure until it is marked as failing, while the targets of other namespaces are checked
/// too.
async fn detection_beside(others: impl IntoIterator<Item = Target>, limits: Limits) -> Duration {
    let scripted = Scripted::default();
    let victim = of_namespace("victim", &target("192.0.2.1:80", 1000));
    for other in others {
        scripted.script().silences.insert(other.address);
        scripted.wants(other);
    }
    let checker = start(&scripted, limits);
    let mut verdicts = checker.verdicts();
    // The slow targets are first, and use their maximum share.
    checker.set_targets(scripted.wanted());
    tokio::time::sleep(Duration::from_secs(60)).await;
    scripted.wants(victim.clone());
    checker.set_targets(scripted.wanted());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!verdicts.borrow_and_update().fails(&victim));
    scripted.script().silences.insert(victim.address);
    let died = Instant::now();
    let bound = Duration::from_secs(1000);
    let turned = verdicts.wait_for(|verdicts| verdicts.fails(&victim));
    timeout(bound, turned).await.expect("it is detected").expect("the runner lives");
    died.elapsed()
}

/// Three intervals of a second and a timeout of half a second: the settings of [`detection_beside`], without the tenth
/// of an interval that each check may be late.
const DETECTION: Duration = Duration::from_millis(3_500);

#[tokio::test(start_paused = true)]
async fn slow_udp_checks_of_one_namespace_do_not_delay_those_of_another() {
    let interval = Duration::from_secs(2);
    let rules = Rules { interval, timeout: interval, ..Rules::default() };
    let probe = Arc::new(Probe::new(Check::Udp, rules).of(&"hostile".into()));
    let hostile = (0..6_200_u32)
        .map(|n| Target::new((std::net::Ipv4Addr::from_bits(0x0a00_0000 + n), 53).into(), &probe));
    let took = detection_beside(hostile, Limits::default()).await;
    assert!(took <= 2 * DETECTION, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_frequent_checks_of_many_namespaces_do_not_delay_those_of_another() {
    let hostile = (0..20_000_u32).map(|n| {
        // These connections hang. Each is requested ten times a second, and a fifth of them use TLS.
        let check = if n % 5 == 0 { Check::Https { path: "/".into() } } else { Check::Tcp };
        let rules =
            Rules { interval: Duration::from_secs(60), timeout: Duration::from_secs(60), ..Rules::default() };
        let rules = if n % 3 == 0 { Rules { interval: Duration::from_millis(100), ..rules } } else { rules };
        let probe = Probe::new(check, rules).of(&format!("hostile-{}", n % 50).into());
        Target::new((std::net::Ipv4Addr::from_bits(0x0a00_0000 + n), 80).into(), &probe.into())
    });
    let took = detection_beside(hostile, Limits::default()).await;
    assert!(took <= 2 * DETECTION, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_udp_check_waits_at_most_five_seconds_whatever_its_timeout() {
    let scripted = Scripted::default();
    scripted.script().silent = true;
    let interval = Duration::from_secs(3600);
    let rules = Rules { interval, timeout: interval, ..Rules::default() };
    let target =
        Target::new("192.0.2.1:53".parse().expect("an address"), &Probe::new(Check::Udp, rules).into());
    let checker = start(&scripted, Limits::default());
    checker.set_targets(Targets::from_iter([target]));
    while scripted.script().checks.is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(UDP_SILENCE_MAX).await;
    assert_eq!((checker.counts().read()[0], checker.counts().load().in_progress), (("success", 1), 0));
}

#[tokio::test(start_paused = true)]
async fn namespaces_do_not_share_the_first_verdict_on_an_address() {
    let scripted = Scripted::default();
    let hostile =
        of_namespace("hostile", &target_of("192.0.2.1:80", 1000, Check::Http { path: "/none".into() }));
    scripted.answer(&hostile, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([hostile.clone()]));
    verdicts.changed().await.expect("the runner lives");
    scripted.script().answers.clear();
    let victim = of_namespace("victim", &target("192.0.2.1:80", 1000));
    checker.set_targets(Targets::from_iter([hostile.clone(), victim.clone()]));
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!verdicts.borrow_and_update().fails(&victim));
    }
    assert!(scripted.times(&victim).len() >= 2);
}

#[tokio::test(start_paused = true)]
async fn tls_checks_have_a_separate_limit_and_delay_no_others() {
    let scripted = Scripted::default();
    scripted.script().silent = true;
    let checker = start(&scripted, Limits { tls_max: 2, ..Limits::default() });
    let tls = |i: u32| target_of(&format!("10.0.{i}.1:443"), 2000, Check::Https { path: "/".into() });
    let plain: Vec<Target> = (0..50).map(|i| target(&format!("10.1.{i}.1:80"), 2000)).collect();
    checker.set_targets((0..50).map(tls).chain(plain.clone()).collect::<Targets>());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let all: usize = (0..50).map(|i| scripted.times(&tls(i)).len()).sum();
    assert!((110..=122).contains(&all), "{all} TLS checks: two a second");
    assert!(plain.iter().all(|target| scripted.times(target).len() >= 29));
}

#[tokio::test(start_paused = true)]
async fn targets_that_stay_keep_their_verdict_and_position_over_a_reload() {
    let scripted = Scripted::default();
    let stays = target("192.0.2.1:80", 1000);
    scripted.answer(&stays, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([stays.clone()]));
    verdicts.changed().await.expect("the runner lives");
    for round in 0..200 {
        let other = target(&format!("198.51.100.{round}:80"), 1000);
        checker.set_targets(Targets::from_iter([stays.clone(), other]));
        tokio::time::sleep(Duration::from_millis(70)).await;
        assert!(verdicts.borrow_and_update().fails(&stays));
    }
    let gaps: Vec<Duration> = scripted.times(&stays).windows(2).map(|w| w[1] - w[0]).collect();
    let cadence = Duration::from_millis(899)..=Duration::from_millis(1101);
    assert!(gaps.len() >= 14 && gaps.iter().all(|gap| cadence.contains(gap)), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_probe_keeps_the_verdict_until_it_has_decided() {
    let scripted = Scripted::default();
    let old = target("192.0.2.1:80", 1000);
    scripted.answer(&old, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([old.clone()]));
    verdicts.changed().await.expect("the runner lives");
    let other_rules = target("192.0.2.1:80", 500);
    checker.set_targets(Targets::from_iter([other_rules.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(verdicts.borrow_and_update().failing().collect::<Vec<_>>(), [&other_rules]);
    // The check uses another port, but the state of the endpoint is kept.
    let other_port = target_of("192.0.2.1:9000", 500, Check::Http { path: "/".into() });
    checker.set_targets(Targets::from_iter([other_port.clone()]));
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(verdicts.borrow_and_update().failing().collect::<Vec<_>>(), [&other_port]);
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(*verdicts.borrow_and_update(), Verdicts::default());
    assert_eq!(scripted.times(&other_port).len(), 2, "two successes have decided");
}

#[tokio::test(start_paused = true)]
async fn removed_targets_are_not_checked() {
    let scripted = Scripted::default();
    let gone = target("192.0.2.1:80", 100);
    scripted.answer(&gone, REFUSED);
    let checker = start(&scripted, Limits::default());
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([gone.clone()]));
    verdicts.changed().await.expect("the runner lives");
    checker.set_targets(Targets::default());
    verdicts.changed().await.expect("the runner lives");
    assert_eq!(*verdicts.borrow_and_update(), Verdicts::default());
    let checks = scripted.script().checks.len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(scripted.script().checks.len(), checks);
    assert_eq!(checker.counts().load(), CheckLoad { stretch: 1, ..CheckLoad::default() });
}

#[tokio::test]
async fn a_real_listener_passes_and_fails_when_it_is_gone() {
    let bound = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (stays, goes) = (bound().await, bound().await);
    let of = |l: &TcpListener| target(&l.local_addr().expect("it is bound").to_string(), 100);
    let (stays_target, goes_target) = (of(&stays), of(&goes));
    let checker = Checker::start(NetworkProber::new(), Limits::default(), "edge-1");
    let mut verdicts = checker.verdicts();
    checker.set_targets(Targets::from_iter([stays_target, goes_target.clone()]));
    for _ in 0..2 {
        goes.accept().await.expect("a check comes");
    }
    assert_eq!(*verdicts.borrow_and_update(), Verdicts::default());
    drop(goes);
    let bound = Duration::from_secs(20);
    timeout(bound, verdicts.changed()).await.expect("within bounds").expect("the runner lives");
    assert_eq!(verdicts.borrow().failing().collect::<Vec<_>>(), [&goes_target]);
    assert!(checker.counts().read()[0].1 >= 2);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_each_check_is_recorded_and_silence_counts_as_the_timeout() {
    let scripted = Scripted::default();
    let (up, silent, refusing) =
        (target("10.0.0.1:80", 1000), target("10.0.0.2:80", 1000), target("10.0.0.3:80", 1000));
    scripted.answer(&refusing, REFUSED);
    scripted.script().silences.insert(silent.address);
    let checker = start(&scripted, Limits::default());
    checker.set_targets(Targets::from_iter([up, silent, refusing]));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let counts = checker.counts();
    let [(_, success), (_, failure), (_, inconclusive)] = counts.read();
    assert!(success > 5 && failure > 5, "{success} {failure}");
    let round_trips = counts.round_trips();
    assert_eq!((round_trips.count(), inconclusive), (success + failure, 0));
    // The prober answers after 1 ms, and the timeout is 500 ms. tokio's timer has a resolution of milliseconds.
    let millis = |&(nanos, count): &(u64, u64)| (nanos as f64 / 1e6, count);
    let (quick, late): (Vec<_>, Vec<_>) =
        round_trips.buckets().iter().map(millis).partition(|(millis, _)| *millis < 100.0);
    assert!(quick.iter().all(|(millis, _)| (1.0..=3.2).contains(millis)), "{quick:?}");
    assert!(late.iter().all(|(millis, _)| (500.0..=520.0).contains(millis)), "{late:?}");
    let timeouts: u64 = late.iter().map(|(_, count)| count).sum();
    assert!(timeouts > 2 && timeouts < round_trips.count(), "{round_trips:?}");
}
