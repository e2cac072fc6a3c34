//! Compares two schemes that choose backends: seat rendezvous, and a Maglev table of 65,537 slots.
//!
//! `selection` prints tables in Markdown: balance, churn, a rolling update, build, memory and lookup by number of
//! backends; weights; 10,000 Services of 10. `selection lookups SCHEME BACKENDS WEIGHT COUNT` makes COUNT lookups and
//! repeats nothing else, so that the difference of two runs under callgrind gives the instructions of one lookup.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tidegate_pipeline_bench::sampling::summary;
use tidegate_select::maglev;
use tidegate_select::rendezvous::{Identity, Member, Rendezvous};
use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::scale;
use tidegate_wire::Addr;

const MAGLEV_SLOTS: u32 = 65_537;
const FLOWS: u64 = 1_000_000;

/// Both schemes behind the same interface.
enum Scheme {
    Rendezvous(Rendezvous),
    Maglev(std::sync::Arc<[u16]>, Vec<u32>),
}

/// The weights of backends by number.
type Set = BTreeMap<u32, u16>;

impl Scheme {
    fn build(name: &str, set: &Set) -> Self {
        if name == "rendezvous" {
            return Self::Rendezvous(Rendezvous::build(&members(set)).rendezvous);
        }
        let members: Vec<maglev::Member> =
            set.iter().map(|(&n, &weight)| maglev::Member { address: address(n), weight }).collect();
        Self::Maglev(maglev::build(&members, MAGLEV_SLOTS), set.keys().copied().collect())
    }

    #[inline(always)]
    fn owner(&self, hash: u64) -> u32 {
        match self {
            Self::Rendezvous(seats) => seats.owner(hash).map_or(u32::MAX, BackendId::raw),
            Self::Maglev(table, owners) => owners[usize::from(table[scale(hash, MAGLEV_SLOTS) as usize])],
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Rendezvous(seats) => seats.bytes(),
            Self::Maglev(table, owners) => table.len() * 2 + owners.len() * 4,
        }
    }
}

fn members(set: &Set) -> Vec<Member> {
    let member = |(&n, &weight): (&u32, &u16)| Member {
        identity: Identity::of_port(address(n), 80, 6),
        weight,
        owner: BackendId::from_raw(n),
    };
    set.iter().map(member).collect()
}

/// The address of a backend. The backends of the rolling update follow the others.
fn address(n: u32) -> Addr {
    Addr::v4((0x0a00_0001 + n).to_be_bytes())
}

fn equal(count: u32) -> Set {
    (0..count).map(|n| (n, 1)).collect()
}

/// A 64-bit mixing function, for flows.
fn flow(n: u64) -> u64 {
    let x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

fn owners(scheme: &Scheme) -> Vec<u32> {
    (0..FLOWS).map(|n| scheme.owner(flow(n))).collect()
}

/// The largest ratio of a backend's share to its fair share by weight.
fn balance(owners: &[u32], set: &Set) -> f64 {
    let mut counts = BTreeMap::<u32, u64>::new();
    owners.iter().for_each(|&owner| *counts.entry(owner).or_default() += 1);
    let sum: f64 = set.values().map(|&w| f64::from(w)).sum();
    let share =
        |(owner, &count): (&u32, &u64)| count as f64 * sum / (owners.len() as f64 * f64::from(set[owner]));
    counts.iter().map(share).fold(0.0, f64::max)
}

/// The percentage of flows that moved, and of flows that moved between two backends that are in both sets.
fn moved(before: &[u32], after: &[u32], old: &Set, new: &Set) -> (f64, f64) {
    let (mut all, mut live) = (0_u64, 0_u64);
    for (from, to) in before.iter().zip(after).filter(|(from, to)| from != to) {
        all += 1;
        live += u64::from(new.contains_key(from) && old.contains_key(to));
    }
    let percent = |n: u64| 100.0 * n as f64 / before.len() as f64;
    (percent(all), percent(live))
}

/// Replaces one backend after the other. Returns the percentage of flows that ever moved between two backends that were
/// in the set before and after the step.
fn rolling_update(name: &str, count: u32) -> f64 {
    let mut set = equal(count);
    let mut now = owners(&Scheme::build(name, &set));
    let mut hit = vec![false; now.len()];
    let mut step = |set: &Set, before: &Set, now: &mut Vec<u32>| {
        let next = owners(&Scheme::build(name, set));
        for (n, (from, to)) in now.iter().zip(&next).enumerate() {
            hit[n] |= from != to && set.contains_key(from) && before.contains_key(to);
        }
        *now = next;
    };
    for n in 0..count {
        let before = set.clone();
        set.insert(count + n, 1);
        step(&set, &before, &mut now);
        let before = set.clone();
        set.remove(&n);
        step(&set, &before, &mut now);
    }
    100.0 * hit.iter().filter(|&&hit| hit).count() as f64 / hit.len() as f64
}

/// The minimum and median duration of a build in microseconds.
fn build_time(name: &str, set: &Set) -> (f64, f64) {
    let time = || {
        let started = Instant::now();
        black_box(Scheme::build(name, set));
        started.elapsed().as_secs_f64() * 1e6
    };
    let times: Vec<f64> = (0..15).map(|_| time()).collect();
    let times = summary(&times);
    (times.least, times.median)
}

/// The minimum duration of a lookup in nanoseconds: for independent flows, and for flows that depend on the previous
/// lookup.
fn look_up_time(scheme: &Scheme) -> (f64, f64) {
    const COUNT: u64 = 20_000;
    let (mut free, mut chained) = (Vec::new(), Vec::new());
    for round in 0..25 {
        let started = Instant::now();
        black_box((0..COUNT).fold(0, |sum, n| sum ^ scheme.owner(flow(n ^ round << 32))));
        free.push(started.elapsed().as_secs_f64() * 1e9 / COUNT as f64);
        let started = Instant::now();
        black_box((0..COUNT).fold(round as u32, |last, n| scheme.owner(flow(n ^ u64::from(last)))));
        chained.push(started.elapsed().as_secs_f64() * 1e9 / COUNT as f64);
    }
    (summary(&free).least, summary(&chained).least)
}

fn line(name: &str, label: &str, set: &Set, roll: Option<u32>) {
    let scheme = Scheme::build(name, set);
    let now = owners(&scheme);
    let last = *set.keys().last().expect("a set has a backend");
    let (mut more, mut less) = (set.clone(), set.clone());
    more.insert(last + 1, set[&last]);
    less.remove(&last);
    let (up, up_live) = moved(&now, &owners(&Scheme::build(name, &more)), set, &more);
    let (down, down_live) = moved(&now, &owners(&Scheme::build(name, &less)), set, &less);
    let rolled = roll.map_or("-".to_owned(), |count| format!("{:.2}", rolling_update(name, count)));
    let (least, median) = build_time(name, set);
    let (free, chained) = look_up_time(&scheme);
    println!(
        "| {label} | {name} | {:.4} | {up:.3} / {up_live:.3} | {down:.3} / {down_live:.3} | {rolled} | {least:.1} \
         ({median:.1}) | {} | {free:.1} / {chained:.1} |",
        balance(&now, set),
        scheme.bytes(),
    );
}

fn report() {
    println!(
        "| backends | scheduler | max / due | +1: moved / live to live, % | -1, % | rolling update: ever live to \
         live, % | build, us: least (median) | bytes | look-up, ns: free / chained |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for count in [10, 100, 1000] {
        for name in ["rendezvous", "maglev"] {
            line(name, &count.to_string(), &equal(count), (count <= 100).then_some(count));
        }
    }
    for (label, count, weights) in [
        ("30 of weights 1, 2, 3", 30, [1, 2, 3]),
        ("20 of weight 100", 20, [100, 100, 100]),
        ("21 of weights 256, 512, 768", 21, [256, 512, 768]),
        ("1000 of weight 100", 1000, [100, 100, 100]),
    ] {
        let set = (0..count).map(|n| (n, weights[n as usize % 3])).collect();
        for name in ["rendezvous", "maglev"] {
            line(name, label, &set, None);
        }
    }
    println!("\n| backends | look-up by rendezvous, ns: free / chained |\n|---|---|");
    for count in [1, 16, 32, 64, 96, 128, 160, 192, 224, 256, 300, 350, 400, 512, 2_000, 5_000, 20_000] {
        let (free, chained) = look_up_time(&Scheme::build("rendezvous", &equal(count)));
        println!("| {count} | {free:.1} / {chained:.1} |");
    }
    let sets: Vec<Set> = (0..10_000).map(|n| (n * 10..n * 10 + 10).map(|n| (n, 1)).collect()).collect();
    println!(
        "\n| 10,000 Services of 10 | build, ms: least (median) | MB | look-up, ns: free / chained |\n|---|---|---|---|"
    );
    for (name, count) in [("rendezvous", 10_000), ("maglev", 500)] {
        let mut times = Vec::new();
        let mut schemes = Vec::new();
        for _ in 0..7 {
            drop(std::mem::take(&mut schemes));
            let started = Instant::now();
            schemes.extend(sets[..count].iter().map(|set| Scheme::build(name, set)));
            times.push(started.elapsed().as_secs_f64() * 1e3 * 10_000.0 / count as f64);
        }
        let bytes = schemes.iter().map(Scheme::bytes).sum::<usize>() * (10_000 / count);
        let any = |hash: u64| schemes[scale(hash.rotate_left(32), count as u32) as usize].owner(hash);
        let started = Instant::now();
        black_box((0..200_000).fold(0, |sum, n| sum ^ any(flow(n))));
        let free = started.elapsed().as_secs_f64() * 1e9 / 200_000.0;
        let started = Instant::now();
        black_box((0..200_000).fold(0, |last, n| any(flow(n ^ u64::from(last)))));
        let chained = started.elapsed().as_secs_f64() * 1e9 / 200_000.0;
        let times = summary(&times);
        println!(
            "| {name}{} | {:.1} ({:.1}) | {:.2} | {free:.1} / {chained:.1} |",
            if count < 10_000 { ", from 500 of them" } else { "" },
            times.least,
            times.median,
            bytes as f64 / 1e6
        );
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => report(),
        ["lookups", scheme, backends, weight, count] => {
            let (backends, weight) =
                (backends.parse().context("BACKENDS")?, weight.parse().context("WEIGHT")?);
            let set: Set = (0..backends).map(|n: u32| (n, weight)).collect();
            let (scheme, count) = (Scheme::build(scheme, &set), count.parse().context("COUNT")?);
            black_box((0..count).fold(0, |sum, n: u64| sum ^ scheme.owner(flow(n))));
        }
        _ => bail!("usage: selection [lookups rendezvous|maglev BACKENDS WEIGHT COUNT]"),
    }
    Ok(())
}
