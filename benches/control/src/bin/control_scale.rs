//! From objects to workers, stage by stage: the first state of a cluster, then changes of one endpoint at a time.
//!
//! `control-scale [--services N] [--endpoints N] [--changes N] [--others N] [--core N] [--rate N] [--gateways]` creates the cluster
//! of [`world`], with `--gateways` with a Gateway for each ten Services. It starts the threads of a gateway over ports in memory with one worker on that core, and performs the
//! steps of a daemon's round: reconcile, compile, publish, wait for the worker. A change makes a Pod not ready, makes
//! it ready again, or replaces it, in turn. Meanwhile packets go to all Services at the given rate, and each is counted
//! when it leaves. Then other objects change, `--others` times each: a node, a namespace, a Service. The program prints
//! tables in Markdown: milliseconds, and memory in MB and per Service and endpoint.
//!
//! The figures do not include the cost of a source (decoding, watching) or the time that changes wait for each other.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tidegate_control_bench::gateway::{Gateway, Stages, worker_pool};
use tidegate_control_bench::traffic::Traffic;
use tidegate_control_bench::{weight, world};
use tidegate_model::objects::{EndpointSlice, Node};
use world::Size;

/// As in the daemon, to measure with its allocator.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let mut size = Size { services: 10_000, endpoints: 10 };
    let (mut changes, mut others, mut core, mut rate) = (1_000, 100, 1, 50_000_u64);
    let mut arguments = std::env::args().skip(1);
    let mut has_gateways = false;
    while let Some(argument) = arguments.next() {
        if argument == "--gateways" {
            has_gateways = true;
            continue;
        }
        let mut number = || arguments.next().context("a number is missing")?.parse().context("a number");
        match argument.as_str() {
            "--services" => size.services = number()?,
            "--endpoints" => size.endpoints = number()?,
            "--changes" => changes = number()?,
            "--others" => others = number()?,
            "--core" => core = number()?,
            "--rate" => rate = u64::try_from(number()?)?,
            _ => bail!(
                "{argument:?} is not known; accepted: --services, --endpoints, --changes, --others, --core, --rate, --gateways"
            ),
        }
    }
    let (worker_pool, wire) = worker_pool(core)?;
    let began = weight::anonymous()?;
    let objects = match world::objects(size) {
        services if has_gateways => world::behind_gateways(services, size),
        services => services,
    };
    let with_objects = weight::anonymous()?;
    let mut gateway = Gateway::new(objects, &worker_pool);

    let gateways = if has_gateways { size.services.div_ceil(world::ROUTES_PER_GATEWAY) } else { 0 };
    println!("{} Services, {} endpoints, {gateways} Gateways\n", size.services, size.all());
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
    let stats = worker_pool.stats();
    let drops: Vec<_> = stats.drops.iter().filter(|(_, count)| *count > 0).collect();
    println!("\npackets meanwhile: {counts:?}, dropped by the worker: {drops:?}");
    println!("resident in all, flow tables included: {:.1} MB", weight::resident()? as f64 / 1e6);
    if others > 0 {
        other_changes(&mut gateway, size, others)?;
    }
    Ok(())
}

/// Makes each of the other changes this many times, in turn, and measures a reconcile from scratch for comparison.
fn other_changes(gateway: &mut Gateway<'_>, size: Size, times: usize) -> Result<()> {
    let mut rounds: Vec<Vec<Stages>> = OTHERS.iter().map(|_| Vec::new()).collect();
    let mut scratch = Vec::new();
    for n in 0..times {
        for ((_, change), rounds) in OTHERS.iter().zip(&mut rounds) {
            change(gateway, size, n);
            rounds.push(gateway.round()?);
        }
        if n % 10 == 0 {
            scratch.push(gateway.from_scratch());
        }
    }
    println!("\n| {times} times each | Services | reconcile: median | p99 | publish: median | p99 |");
    println!("|---|---|---|---|---|---|");
    let spread = |mut times: Vec<Duration>| {
        times.sort_unstable();
        let at = |per_mille: usize| millis(times[(times.len() - 1) * per_mille / 1000]);
        format!("{:.2} | {:.2}", at(500), at(990))
    };
    for ((what, _), rounds) in OTHERS.iter().zip(rounds) {
        let recomputed = rounds.iter().map(|r| r.recomputed).max().unwrap_or_default();
        let reconcile = spread(rounds.iter().map(|r| r.reconcile).collect());
        let publish = spread(rounds.iter().map(|r| r.publish).collect());
        println!("| {what} | {recomputed} | {reconcile} | {publish} |");
    }
    println!("| anything, from scratch | {} | {} | | |", size.services, spread(scratch));
    Ok(())
}

/// A change, given the number of its repetition.
type Change = fn(&mut Gateway<'_>, Size, usize);

const OTHERS: [(&str, Change); 7] = [
    ("a node reports the same again", |gateway, size, n| node(gateway, size, n, |_| ())),
    ("a node has another label", |gateway, size, n| {
        node(gateway, size, n, |node| drop(node.meta.labels.insert("change".into(), n.to_string())));
    }),
    ("a node is in another zone", |gateway, size, n| {
        let zone = format!("zone-{}", n % 7 + 3);
        node(gateway, size, n, |node| {
            node.meta.labels.insert("topology.kubernetes.io/zone".into(), zone);
        });
    }),
    ("a node has another weight", |gateway, size, n| {
        node(gateway, size, n, |node| {
            node.meta.annotations.insert("tidegate.dev/weight".into(), (n % 9 + 2).to_string());
        });
    }),
    ("a namespace has another label", |gateway, size, n| {
        let mut objects = gateway.objects.clone();
        let mut namespace = world::namespace(n % size.services.div_ceil(100));
        namespace.meta.labels.insert("change".into(), n.to_string());
        objects.namespaces.insert(namespace.meta.key.name.clone(), Arc::new(namespace));
        gateway.objects = objects;
    }),
    ("a Service is added, with its slice", |gateway, size, n| {
        let mut objects = gateway.objects.clone();
        let service = world::service(size.services + n);
        objects.services.insert(service.meta.key.clone(), Arc::new(service));
        for slice in world::slices(size, size.services + n) {
            objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
        }
        gateway.objects = objects;
    }),
    ("it goes", |gateway, size, n| {
        let mut objects = gateway.objects.clone();
        objects.services.remove(&world::key(size.services + n));
        for slice in world::slices(size, size.services + n) {
            objects.endpoint_slices.remove(&slice.meta.key);
        }
        gateway.objects = objects;
    }),
];

/// Replaces a node by an edited copy.
fn node(gateway: &mut Gateway<'_>, size: Size, n: usize, edit: impl FnOnce(&mut Node)) {
    let mut objects = gateway.objects.clone();
    let name = world::node(n.wrapping_mul(0x9e37_79b1) % size.nodes()).meta.key.name;
    let mut node = Node::clone(&objects.nodes[&name]);
    edit(&mut node);
    objects.nodes.insert(name, Arc::new(node));
    gateway.objects = objects;
}

type Pick = fn(&Stages) -> Duration;

const STAGES: [(&str, Pick); 5] = [
    ("reconcile", |s| s.reconcile),
    ("compile and publish", |s| s.publish),
    ("applied by the worker", |s| s.applied),
    ("from objects to the worker", |s| s.reconcile + s.publish + s.applied),
    ("release of the previous state", |s| s.all - s.reconcile - s.publish - s.applied),
];

/// Changes one endpoint of one slice as a source does: the new state shares everything that did not change.
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
