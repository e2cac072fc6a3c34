//! From objects to workers, stage by stage: the first state of a cluster, and then one endpoint's change at a time.
//!
//! `control-scale [--services N] [--endpoints N] [--changes N] [--core N] [--rate N]` makes the cluster of [`world`],
//! starts the threads of a gateway over ports in memory with one worker on that core, and does what a round of the
//! daemon does: reconcile, compile, publish, wait for the worker. A change is a Pod that turns not ready, or ready
//! again, or takes the place of another, in turn. Meanwhile so many packets a second go to all Services, and each is
//! counted out again. Prints tables in Markdown: milliseconds, and memory in MB and per Service and endpoint.
//!
//! What a source costs (decoding, watching) and how long changes wait for each other is not in here.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tidegate::model::EndpointSlice;
use tidegate_control_bench::gateway::{Gateway, Stages, crew};
use tidegate_control_bench::traffic::Traffic;
use tidegate_control_bench::{weight, world};
use world::Size;

fn main() -> Result<()> {
    let mut size = Size { services: 10_000, endpoints: 10 };
    let (mut changes, mut core, mut rate) = (1_000, 1, 50_000_u64);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().context("a number is missing")?.parse().context("a number");
        match argument.as_str() {
            "--services" => size.services = number()?,
            "--endpoints" => size.endpoints = number()?,
            "--changes" => changes = number()?,
            "--core" => core = number()?,
            "--rate" => rate = u64::try_from(number()?)?,
            _ => bail!(
                "{argument:?} is not known; accepted: --services, --endpoints, --changes, --core, --rate"
            ),
        }
    }
    let (crew, wire) = crew(core)?;
    let began = weight::anonymous()?;
    let objects = world::objects(size);
    let with_objects = weight::anonymous()?;
    let mut gateway = Gateway::new(objects, &crew);

    println!("{} Services, {} endpoints\n", size.services, size.all());
    println!("| stage | first state | one change: median | p99 | most |\n|---|---|---|---|---|");
    let first = gateway.round()?;
    let with_state = weight::anonymous()?;
    let traffic = Traffic::start(wire, gateway.vips(), rate);
    let rounds = (0..changes)
        .map(|n| {
            change(&mut gateway, size, n);
            gateway.round()
        })
        .collect::<Result<Vec<Stages>>>()?;
    let counts = traffic.stop();
    for (stage, pick) in STAGES {
        let mut times: Vec<Duration> = rounds.iter().map(pick).collect();
        times.sort_unstable();
        let at = |per_mille: usize| millis(times[(times.len() - 1) * per_mille / 1000]);
        println!(
            "| {stage} | {:.1} | {:.2} | {:.2} | {:.2} |",
            millis(pick(&first)),
            at(500),
            at(990),
            at(1000)
        );
    }
    let after = weight::anonymous()?;
    println!("\n| memory | MB | bytes an endpoint | bytes a Service |\n|---|---|---|---|");
    for (what, from, to) in [
        ("objects", began, with_objects),
        ("state and tables", with_objects, with_state),
        ("more after all changes", with_state, after),
    ] {
        let bytes = to.saturating_sub(from);
        let (mb, endpoints, services) =
            (bytes as f64 / 1e6, bytes / size.all() as u64, bytes / size.services as u64);
        println!("| {what} | {mb:.1} | {endpoints} | {services} |");
    }
    let stats = crew.stats();
    let drops: Vec<_> = stats.drops.iter().filter(|(_, count)| *count > 0).collect();
    println!("\npackets meanwhile: {counts:?}, dropped by the worker: {drops:?}");
    println!("resident in all, flow tables included: {:.1} MB", weight::resident()? as f64 / 1e6);
    Ok(())
}

type Pick = fn(&Stages) -> Duration;

const STAGES: [(&str, Pick); 5] = [
    ("reconcile", |s| s.reconcile),
    ("compile and publish", |s| s.publish),
    ("taken up by the worker", |s| s.applied),
    ("from objects to the worker", |s| s.reconcile + s.publish + s.applied),
    ("letting go of the state before", |s| s.all - s.reconcile - s.publish - s.applied),
];

/// One endpoint of one slice, by a source's way: a new state that shares what did not change.
fn change(gateway: &mut Gateway<'_>, size: Size, n: usize) {
    let of = n.wrapping_mul(0x9e37_79b1) % size.services;
    let slice = world::slices(size, of).next().expect("a Service has a slice");
    let mut slice = EndpointSlice::clone(&gateway.objects.endpoint_slices[&slice.meta.key]);
    let at = n % slice.endpoints.len();
    let endpoint = &mut slice.endpoints[at];
    if n.is_multiple_of(2) {
        let is_ready = endpoint.conditions.is_ready();
        (endpoint.conditions.ready, endpoint.conditions.serving) = (Some(!is_ready), Some(!is_ready));
    } else {
        *endpoint = world::endpoint(of, size.all() + n);
    }
    let mut objects = gateway.objects.clone();
    objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
    gateway.objects = objects;
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
