//! From objects to workers, stage by stage: the first state of a cluster, and then one endpoint's change at a time.
//!
//! `control-scale [--services N] [--endpoints N] [--changes N] [--core N]` makes the cluster of [`world`], starts a
//! dataplane on a null device with one worker on that core, and does what a round of the daemon does: reconcile,
//! compile, publish, wait for the worker. A change is a Pod that turns not ready, or ready again, or takes the place of
//! another, in turn. Prints a table in Markdown, times in milliseconds; memory in MB and per Service and endpoint.
//!
//! What a source costs (decoding, watching) and how long changes wait for each other is not in here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate::health::Verdicts;
use tidegate::model::{EndpointSlice, Objects};
use tidegate::reconcile::{Input, Memory, Outcome, Reconciler, Settings};
use tidegate_control_bench::{weight, world};
use tidegate_core::wire::MacAddr;
use tidegate_dataplane::gateway::{Dataplane, DataplaneConfig, InterfaceConfig};
use tidegate_dataplane::topology::Idle;
use world::Size;

fn main() -> Result<()> {
    let mut size = Size { services: 10_000, endpoints: 10 };
    let (mut changes, mut core) = (1_000, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().context("a number is missing")?.parse().context("a number");
        match argument.as_str() {
            "--services" => size.services = number()?,
            "--endpoints" => size.endpoints = number()?,
            "--changes" => changes = number()?,
            "--core" => core = number()?,
            _ => bail!("unknown argument {argument:?}; accepted: --services, --endpoints, --changes, --core"),
        }
    }
    let dataplane = dataplane(core)?;
    let began = weight::anonymous()?;
    let objects = world::objects(size);
    let with_objects = weight::anonymous()?;
    let mut gateway = Gateway::new(objects, &dataplane);

    println!("{} Services, {} endpoints\n", size.services, size.all());
    println!("| stage | first state | one change: median | p99 | most |\n|---|---|---|---|---|");
    let first = gateway.round()?;
    let with_state = weight::anonymous()?;
    let rounds = (0..changes)
        .map(|n| {
            gateway.change(size, n);
            gateway.round()
        })
        .collect::<Result<Vec<Stages>>>()?;
    for (stage, pick) in Stages::NAMES {
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
    println!(
        "\nresident in all: {:.1} MB, packet buffers and flow tables included",
        weight::resident()? as f64 / 1e6
    );
    Ok(())
}

/// A null device, one worker.
fn dataplane(core: usize) -> Result<Dataplane> {
    let config = DataplaneConfig {
        cores: vec![core],
        idle: Idle::Adaptive,
        interfaces: vec![InterfaceConfig {
            name: "uplink".into(),
            device: "net_null0".into(),
            mac: None,
            mtu: Some(1500),
            vlan: None,
            addresses: vec!["10.0.0.1/16".parse()?],
        }],
        taps: false,
        announce: false,
        ..DataplaneConfig::default()
    };
    Dataplane::start(&config).context("the dataplane does not start")
}

/// What the daemon's controller holds.
struct Gateway<'a> {
    settings: Settings,
    objects: Objects,
    memory: Memory,
    reconciler: Reconciler,
    dataplane: &'a Dataplane,
    last: Option<Outcome>,
    generation: u64,
    began: Instant,
}

/// How long the stages of a round took.
#[derive(Debug, Clone, Copy)]
struct Stages {
    reconcile: Duration,
    publish: Duration,
    applied: Duration,
    all: Duration,
}

impl Stages {
    const NAMES: [(&str, fn(&Stages) -> Duration); 4] = [
        ("reconcile", |s| s.reconcile),
        ("compile and publish", |s| s.publish),
        ("taken up by the worker", |s| s.applied),
        ("all", |s| s.all),
    ];
}

impl<'a> Gateway<'a> {
    fn new(objects: Objects, dataplane: &'a Dataplane) -> Self {
        let mac: MacAddr = dataplane.interfaces()[0].mac;
        Self {
            settings: world::settings(mac),
            objects,
            memory: Memory::default(),
            reconciler: Reconciler::default(),
            dataplane,
            last: None,
            generation: 0,
            began: Instant::now(),
        }
    }

    fn round(&mut self) -> Result<Stages> {
        let start = Instant::now();
        self.generation += 1;
        let outcome = self.reconciler.reconcile(&Input {
            settings: &self.settings,
            objects: &self.objects,
            verdicts: &Verdicts::default(),
            drained: &BTreeSet::new(),
            memory: &self.memory,
            generation: self.generation,
            now: self.began.elapsed(),
        });
        self.memory = outcome.memory.clone();
        let reconciled = Instant::now();
        let published = self.dataplane.publish(&outcome.spec).context("not published")?;
        if let Some(problem) = published.problems.first() {
            bail!("not all is programmed: {problem}");
        }
        let given = Instant::now();
        while self.dataplane.applied_generation() < self.generation {
            std::thread::sleep(Duration::from_micros(50));
        }
        let applied = Instant::now();
        // The round before is let go here, as in the daemon.
        self.last = Some(outcome);
        Ok(Stages {
            reconcile: reconciled - start,
            publish: given - reconciled,
            applied: applied - given,
            all: start.elapsed(),
        })
    }

    /// One endpoint of one slice, by a source's way: a new state that shares what did not change.
    fn change(&mut self, size: Size, n: usize) {
        let of = n.wrapping_mul(0x9e37_79b1) % size.services;
        let slice = world::slices(size, of).next().expect("a Service has a slice");
        let mut slice = EndpointSlice::clone(&self.objects.endpoint_slices[&slice.meta.key]);
        let at = n % slice.endpoints.len();
        let endpoint = &mut slice.endpoints[at];
        if n.is_multiple_of(2) {
            let is_ready = endpoint.conditions.is_ready();
            (endpoint.conditions.ready, endpoint.conditions.serving) = (Some(!is_ready), Some(!is_ready));
        } else {
            *endpoint = world::endpoint(of, size.all() + n);
        }
        let mut objects = self.objects.clone();
        objects.endpoint_slices.insert(slice.meta.key.clone(), Arc::new(slice));
        self.objects = objects;
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
