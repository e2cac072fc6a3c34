//! Decides when each target is checked, how many are checked at once, and how the results change the targets' states.
//!
//! A hash of a target's address and a seed sets its position in the interval. So thousands of targets are spread
//! evenly, and a target that is removed and added again, or whose check changes, keeps its position. Every check is
//! delayed by up to a tenth of the interval, so targets that happen to have the same position drift apart. Gateways
//! have different seeds, so they check the same backend at different times.
//!
//! Checks in progress (separately for TLS, which costs the most) and checks per second are limited, both in fair shares
//! for each namespace ([`Shares`]). Memory is limited to half a kilobyte per target. A target is always in exactly one
//! state: scheduled, waiting, or in progress. So nothing accumulates if all checks time out: each target is still
//! checked, only late.
//!
//! Invariant: nothing here reads a clock, sends a request or generates random numbers: `now` and the seed are
//! arguments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::fnv::{self, fnv1a};
use tidegate_structures::hash::mix;

use super::capacity_shares::{Class, ShareIndex, Shares};
use super::check_result::{Answer, CheckResult};
use super::{Check, Failure, HealthStatus, Limits, Probe, Rules, Tally, Target, Targets};

/// The maximum memory of a target here, including the set that contains it. Checks in progress also need tasks and
/// sockets.
#[cfg(test)]
const BYTES_A_TARGET_MAX: usize = 512;

/// Nanoseconds since the schedule was created.
type Nanos = u64;

/// The schedule of all targets.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: Limits,
    seed: u64,
    wanted: Targets,
    at: BTreeMap<Target, u32>,
    records: Vec<Record>,
    free: Vec<u32>,
    /// The number of the next target, which distinguishes it from the previous user of its record.
    epoch: u32,
    times: BinaryHeap<Reverse<Time>>,
    /// The checks that are due or in progress, and the share of each namespace.
    shares: Shares<Entry>,
    late: u64,
}

/// A check that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    entry: Entry,
    class: Class,
    share: ShareIndex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    record: u32,
    epoch: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Time {
    at: Nanos,
    entry: Entry,
}

#[derive(Debug)]
struct Record {
    /// `None` while the record is free.
    target: Option<Target>,
    epoch: u32,
    /// The share of its namespace.
    share: ShareIndex,
    /// The number of the interval whose check is next, waiting, or in progress.
    interval: u64,
    /// Whether it is scheduled. Otherwise it is waiting or in progress.
    is_timed: bool,
    tally: Tally,
    status: HealthStatus,
}

impl Record {
    /// Whether the record still belongs to the target of this entry.
    fn is(&self, entry: Entry) -> bool {
        self.target.is_some() && self.epoch == entry.epoch
    }
}

/// A target and its new state.
pub(super) type Change = (Target, HealthStatus);

impl Schedule {
    pub(super) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            seed,
            wanted: Targets::default(),
            at: BTreeMap::new(),
            records: Vec::new(),
            free: Vec::new(),
            epoch: 0,
            times: BinaryHeap::new(),
            shares: Shares::default(),
            late: 0,
        }
    }

    /// Replaces the targets. Returns those whose state changed. Targets that stay keep their state and their schedule.
    /// A new target at an address that was already checked in a different way starts with the known state of that
    /// address: failing if all of its checks fail.
    pub(super) fn replace(&mut self, wanted: &Targets, now: Duration) -> Vec<Change> {
        let old = std::mem::replace(&mut self.wanted, wanted.clone());
        let (mut come, mut gone) = (Vec::new(), BTreeSet::new());
        for (target, is_new) in old.changes(wanted) {
            if is_new {
                come.push((target, self.known_near(target, None)));
            } else {
                gone.insert(target);
            }
        }
        for (target, known) in &mut come {
            *known = known.or_else(|| self.known_near(target, Some(&gone)));
        }
        let mut changes = Vec::new();
        for target in gone {
            changes.extend(self.remove(target));
        }
        let now = nanos(now);
        for (target, known) in come {
            let failure = known.flatten();
            changes.extend(failure.map(|_| (target.clone(), failing(failure))));
            self.insert(target.clone(), failure, now);
        }
        self.stretch_if_due(now);
        self.forget_stale_times();
        changes
    }

    /// When the next check is due, not counting waiting ones.
    pub(super) fn next(&self) -> Option<Duration> {
        self.times.peek().map(|Reverse(time)| Duration::from_nanos(time.at))
    }

    /// The next check to start now, if one is due and within the limits.
    pub(super) fn begin(&mut self, now: Duration) -> Option<(Ticket, Target)> {
        let now = nanos(now);
        while let Some(Reverse(Time { at, entry })) = self.times.peek().copied()
            && at <= now
        {
            self.times.pop();
            if let Some(record) = self.live(entry) {
                record.is_timed = false;
                let class = class(record.target.as_ref().expect("a live record has a target"));
                let share = record.share;
                self.shares.wait(share, class, entry);
            }
        }
        Class::ALL.into_iter().find_map(|class| self.start_waiting(class, now))
    }

    /// Applies the answer of a check. Returns the target's state if it changed.
    pub(super) fn end(&mut self, ticket: Ticket, answer: Answer, now: Duration) -> Option<Change> {
        self.shares.end(ticket.share, ticket.class);
        let record = self.live(ticket.entry)?;
        let target = record.target.clone().expect("a live record has a target");
        let before = record.status;
        let (success, failure) = match answer.result {
            CheckResult::Success => (Some(true), None),
            CheckResult::Failure(failure) => (Some(false), Some(failure)),
            CheckResult::Inconclusive => (None, None),
        };
        // A node that passes without reporting a weight no longer has one, for example because its proxy was
        // downgraded.
        let kept = if success == Some(true) { None } else { before.weight };
        record.status.weight = answer.weight.or(kept);
        if success.is_some_and(|success| record.tally.record(success, &target.probe.rules)) {
            record.status.damping = record.tally.damping();
            record.status.failure = if record.tally.passes() { None } else { before.failure.or(failure) };
        }
        let status = record.status;
        let done = record.interval;
        let interval = self.cadence(&target, ticket.share).interval_at(nanos(now)).max(done + 1);
        self.time(ticket.entry, &target, interval);
        (status != before).then_some((target, status))
    }

    /// The number of targets.
    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// The number of checks in progress.
    pub(super) fn in_progress(&self) -> usize {
        self.shares.in_progress()
    }

    /// The number of checks that started more than their interval late.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// The factor by which the intervals of the namespace with the most checks are stretched to stay below the limit of
    /// checks per second.
    pub(super) fn stretch(&self) -> u32 {
        self.shares.stretch_max()
    }

    fn start_waiting(&mut self, class: Class, now: Nanos) -> Option<(Ticket, Target)> {
        let max = match class {
            Class::Plain => self.limits.plain_max,
            Class::Tls => self.limits.tls_max,
        };
        let records = &self.records;
        let (share, entry) =
            self.shares.begin(class, max, |entry| records[entry.record as usize].is(*entry))?;
        let record = &records[entry.record as usize];
        let (target, interval) =
            (record.target.clone().expect("a live record has a target"), record.interval);
        let cadence = self.cadence(&target, share);
        self.late += u64::from(now > cadence.time_of(interval) + cadence.period);
        Some((Ticket { entry, class, share }, target))
    }

    fn live(&mut self, entry: Entry) -> Option<&mut Record> {
        Some(&mut self.records[entry.record as usize]).filter(|record| record.is(entry))
    }

    fn insert(&mut self, target: Target, failure: Option<Failure>, now: Nanos) {
        self.epoch = self.epoch.wrapping_add(1);
        let share = self.shares.join(target.probe.namespace.as_ref(), checks_an_hour(&target));
        let record = Record {
            target: Some(target.clone()),
            epoch: self.epoch,
            share,
            interval: 0,
            is_timed: false,
            tally: Tally::new(failure.is_none()),
            status: failing(failure),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.records[index as usize] = record;
                index
            }
            None => {
                self.records.push(record);
                u32::try_from(self.records.len() - 1).expect("fewer than 2^32 targets")
            }
        };
        let interval = self.cadence(&target, share).interval_after(now);
        self.time(Entry { record: index, epoch: self.epoch }, &target, interval);
        self.at.insert(target, index);
    }

    fn remove(&mut self, target: &Target) -> Option<Change> {
        let index = self.at.remove(target).expect("a known target has a record");
        let record = &mut self.records[index as usize];
        record.target = None;
        self.free.push(index);
        self.shares.leave(record.share, checks_an_hour(target));
        (record.status != HealthStatus::default()).then(|| (target.clone(), HealthStatus::default()))
    }

    fn time(&mut self, entry: Entry, target: &Target, interval: u64) {
        let at = self.cadence(target, self.records[entry.record as usize].share).time_of(interval);
        let record = &mut self.records[entry.record as usize];
        record.interval = interval;
        record.is_timed = true;
        self.times.push(Reverse(Time { at, entry }));
    }

    /// Stretches intervals if the sum of all checks requires it: every scheduled target whose namespace gets a
    /// different stretch is scheduled again.
    fn stretch_if_due(&mut self, now: Nanos) {
        let before: Vec<u32> = self.records.iter().map(|record| self.shares.stretch(record.share)).collect();
        if !self.shares.distribute(u64::from(self.limits.per_second_max) * 3600) {
            return;
        }
        let records = &self.records;
        let same =
            |record: u32| before[record as usize] == self.shares.stretch(records[record as usize].share);
        self.times.retain(|Reverse(time)| same(time.entry.record));
        for (index, before) in before.into_iter().enumerate() {
            let record = &self.records[index];
            if before == self.shares.stretch(record.share) {
                continue;
            }
            let Some(target) = record.target.clone() else { continue };
            let entry = Entry { record: index as u32, epoch: record.epoch };
            let is_timed = record.is_timed;
            let interval = self.cadence(&target, record.share).interval_after(now);
            if is_timed {
                self.time(entry, &target, interval);
            } else {
                // The check that is waiting or in progress counts for the previous interval.
                self.records[index].interval = interval.saturating_sub(1);
            }
        }
    }

    /// Removes times of removed targets from the heap if they outnumber the others.
    fn forget_stale_times(&mut self) {
        if self.times.len() > 2 * self.at.len() + 64 {
            let records = &self.records;
            self.times.retain(|Reverse(time)| records[time.entry.record as usize].is(time.entry));
        }
    }

    fn cadence(&self, target: &Target, share: ShareIndex) -> Cadence {
        let stretch = u64::from(self.shares.stretch(share));
        let period = nanos(target.probe.rules.interval).max(1).saturating_mul(stretch);
        Cadence::new(position(self.seed, target.address), period)
    }

    /// The known state of the targets in a new target's namespace that have its address, or if `among` is given, of the
    /// targets in `among` that have its IP. A failure if all of them fail; `None` if there are none.
    fn known_near(&self, new: &Target, among: Option<&BTreeSet<&Target>>) -> Option<Option<Failure>> {
        let (address, namespace) = (new.address, &new.probe.namespace);
        let from = if among.is_none() { address } else { SocketAddr::new(address.ip(), 0) };
        let near = self.at.range(lowest(from)..).take_while(|(target, _)| match among {
            None => target.address == address,
            Some(_) => target.address.ip() == address.ip(),
        });
        let known = near.filter(|(target, _)| {
            target.probe.namespace == *namespace && among.is_none_or(|among| among.contains(target))
        });
        let failures = known.map(|(_, index)| self.records[*index as usize].status.failure);
        failures.reduce(Option::and)
    }

    /// The memory of the targets, here and in the set that names them.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        // Nodes of the standard library's B-tree and of the shared map are at least half full.
        let in_maps = 2 * std::mem::size_of::<(Target, u32)>() * 2;
        let waiting = self.shares.capacity();
        in_maps * self.wanted.len()
            + std::mem::size_of::<Record>() * self.records.capacity()
            + std::mem::size_of::<Time>() * self.times.capacity()
            + std::mem::size_of::<Entry>() * waiting
            + std::mem::size_of::<u32>() * self.free.capacity()
    }
}

/// The smallest possible target at this address, as the start of a range.
fn lowest(address: SocketAddr) -> Target {
    let rules = Rules {
        interval: Duration::ZERO,
        timeout: Duration::ZERO,
        healthy_threshold: 0,
        unhealthy_threshold: 0,
        damping: false,
    };
    Target::new(address, &Arc::new(Probe::new(Check::Tcp, rules)))
}

/// The times of one target: interval n starts at `phase + n * period`, and its check follows shortly after.
#[derive(Debug, Clone, Copy)]
struct Cadence {
    position: u64,
    phase: Nanos,
    period: Nanos,
}

impl Cadence {
    fn new(position: u64, period: Nanos) -> Self {
        Self { position, phase: share(position, period), period }
    }

    /// The interval that contains `now`; 0 also before the first one.
    fn interval_at(&self, now: Nanos) -> u64 {
        now.saturating_sub(self.phase) / self.period
    }

    /// The first interval that starts after `now`.
    fn interval_after(&self, now: Nanos) -> u64 {
        if now < self.phase { 0 } else { self.interval_at(now) + 1 }
    }

    /// When the check of an interval is due.
    fn time_of(&self, interval: u64) -> Nanos {
        let jitter = share(mix(self.position ^ interval.wrapping_mul(GOLDEN)), self.period / 10);
        let begins = self.period.saturating_mul(interval).saturating_add(self.phase);
        begins.saturating_add(jitter)
    }
}

fn class(target: &Target) -> Class {
    if target.probe.check.is_tls() { Class::Tls } else { Class::Plain }
}

fn failing(failure: Option<Failure>) -> HealthStatus {
    HealthStatus { failure, ..HealthStatus::default() }
}

fn checks_an_hour(target: &Target) -> u64 {
    (nanos(Duration::from_secs(3600)) / nanos(target.probe.rules.interval).max(1)).max(1)
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// `whole` times `position` / 2^64.
fn share(position: u64, whole: u64) -> u64 {
    ((u128::from(position) * u128::from(whole)) >> 64) as u64
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The position of an address in its interval: FNV-1a, then mixed. All versions, machines and runs agree on it.
fn position(seed: u64, address: SocketAddr) -> u64 {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    mix(seed ^ fnv1a(fnv::START, ip.octets().into_iter().chain(address.port().to_be_bytes())))
}

/// The seed derived from a gateway's name.
pub(super) fn seed_of(name: &str) -> u64 {
    fnv1a(fnv::START, name.bytes())
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
