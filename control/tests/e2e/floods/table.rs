//! Each flood with each mode, at the full rate of the generator, and its effect on other traffic.
//!
//! A row shows the established connections that survived, the new connections to other Services, and the gateway's own
//! checks of its backends. In the short form, one flood attacks all modes at once.

use std::fmt::Write as _;

use tidegate_netlab::flood::{Kind, Limits, Sent, Target};

use super::setup::{Attempts, Counters, SMALL_TABLE, Setup, attacked_paths, long, seconds, target};
use crate::world::alone;

#[test]
fn no_flood_affects_other_services() {
    let _machine = alone();
    let modes: &[&str] =
        if long() { &["dsr-l2", "dsr-ipip", "nat", "fullnat"] } else { &["dsr-l2 dsr-ipip nat fullnat"] };
    let mut faults = String::new();
    println!("{}", Row::HEAD);
    for mode in modes {
        let mut setup = Setup::start(SMALL_TABLE);
        let attacked =
            attacked_paths().into_iter().filter(|path| mode.split(' ').any(|m| m == path.forwarding));
        let targets: Vec<Target> = attacked.map(target).collect();
        let name = if targets.len() > 2 { "all" } else { mode };
        for kind in Kind::ALL {
            let row = row(&mut setup, name, kind, &targets);
            println!("{row}");
            let fault = row.faults();
            if !fault.is_empty() {
                let _ = write!(faults, "\n{} of {}:{fault}", kind.name(), name);
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// The results of one flood.
struct Row {
    mode: String,
    kind: Kind,
    sent: Sent,
    before: Counters,
    after: Counters,
    others: Attempts,
    established: usize,
    broken: Vec<String>,
}

fn row(setup: &mut Setup, mode: &str, kind: Kind, targets: &[Target]) -> Row {
    let before = setup.counters();
    let others = setup.others();
    let flood = setup.attacker.flood(kind, targets, Limits::full_rate(seconds(3, 30)));
    flood.wait_until_begun().expect("the flood begins");
    // Connections of other Services are tested during the flood. Those to the attacked server are tested afterwards,
    // because that server is busy during the flood.
    let is_attacked = |service: &str| service.starts_with("attacked");
    let (mut silent, others_count) = setup.ping(|path| !is_attacked(path.service));
    let sent = flood.finish().expect("the flood is sent");
    let others = others.finish();
    let (late, attacked_count) = setup.ping(|path| is_attacked(path.service));
    silent.extend(late);
    let after = setup.counters();
    let broken = setup.ping_late(|label| silent.iter().any(|one| one.starts_with(label)));
    let established = others_count + attacked_count;
    Row { mode: mode.to_owned(), kind, sent, before, after, others, established, broken }
}

impl Row {
    const HEAD: &str = "| mode | flood | frames/s | taken by the gateway | established kept | new connections of others | own checks: good, failed | backends down |\n|---|---|---|---|---|---|---|---|";

    fn grown(&self, prefix: &str, label: &str) -> f64 {
        self.after.grown(&self.before, prefix, label)
    }

    fn faults(&self) -> String {
        let mut faults = String::new();
        if !self.broken.is_empty() {
            let _ = write!(faults, "\n  established connections broke: {:?}", self.broken);
        }
        if !self.others.are_served() {
            faults += &self.others.failures();
        }
        if self.after.down() > 0 {
            let _ = write!(faults, "\n  {} backends are down", self.after.down());
        }
        if !faults.is_empty() {
            faults += &self.after.growth(&self.before, 1.0);
        }
        faults
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.established - self.broken.len();
        let taken = self.grown("tidegate_packets_total", "direction=\"rx\"") / self.sent.frames as f64;
        let checks =
            |result: &str| self.grown("tidegate_health_checks_total", &format!("result=\"{result}\""));
        let good = checks("success");
        let failed = self.grown("tidegate_health_checks_total", "") - good;
        write!(
            f,
            "| {} | {} | {:.0} | {:.0} % | {kept} of {} | {} of {} | {good}, {failed} | {} |",
            self.mode,
            self.kind.name(),
            self.sent.rate(),
            taken * 100.0,
            self.established,
            self.others.succeeded(),
            self.others.count(),
            self.after.down(),
        )
    }
}
