//! The whole chain: an endpoint changes in an API server, and a worker forwards accordingly.
//!
//! `control-chain [--services N] [--endpoints N] [--changes N] [--rate N] [--packets N] [--core N]` starts the test API
//! server in its own process with the cluster of [`world`]. The gateway runs in this process: the source `kubernetes`
//! (HTTPS, watches, the objects kept on disk), and rounds like those of the daemon. A round starts immediately if
//! nothing is pending, otherwise after a pause of 10 ms. The API server then replaces one Pod after the other at the
//! given rate. For each change, the program measures the time from the write until the worker applies it. Meanwhile
//! packets go to all Services and are counted.
//!
//! Both processes share the machine, so the figures include the load of the API server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use test_apiserver::{Options, TestApiServer};
use tidegate_control_bench::cluster::{self, Variant};
use tidegate_control_bench::gateway::{Gateway, Stages, worker_pool};
use tidegate_control_bench::traffic::Traffic;
use tidegate_control_bench::{weight, world};
use tidegate_model::config::{KubernetesConfig, LOAD_BALANCER_CLASS};
use tidegate_model::objects::Objects;
use tidegate_model::shared_map::differences;
use tidegate_source::SourceUpdate;
use tidegate_source::kubernetes::KubernetesSource;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use world::Size;

/// As in the daemon, to measure with its allocator.
#[global_allocator]
static HEAP: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The pauses of the daemon.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
struct Plan {
    size: Size,
    changes: usize,
    rate: usize,
    packets: u64,
    core: usize,
}

fn main() -> Result<()> {
    let size = Size { services: 10_000, endpoints: 10 };
    let mut plan = Plan { size, changes: 2_000, rate: 100, packets: 20_000, core: 1 };
    let mut serve = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().context("a value is missing")?;
        match argument.as_str() {
            "--services" => plan.size.services = value.parse()?,
            "--endpoints" => plan.size.endpoints = value.parse()?,
            "--changes" => plan.changes = value.parse()?,
            "--rate" => plan.rate = value.parse()?,
            "--packets" => plan.packets = value.parse()?,
            "--core" => plan.core = value.parse()?,
            "--serve" => serve = Some(value),
            _ => bail!("{argument:?} is not known"),
        }
    }
    match serve {
        Some(directory) => server(&plan, Path::new(&directory)),
        None => gateway(&plan),
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970")
}

/// The API server's process. It prints `ready`, waits for a line, makes the changes, and prints the time of each write.
fn server(plan: &Plan, directory: &Path) -> Result<()> {
    let server = TestApiServer::start(Options::default())?;
    let variant = Variant { has_status: false, checked: 0, has_pods: false };
    server.load(cluster::objects(plan.size, 0, variant).collect()).map_err(anyhow::Error::msg)?;
    server.kubeconfig(directory)?;
    println!("ready");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go)?;
    let (began, mut written) = (Instant::now(), Vec::with_capacity(plan.changes));
    for n in 0..plan.changes {
        let due = Duration::from_secs_f64(n as f64 / plan.rate as f64);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        let of = n.wrapping_mul(0x9e37_79b1) % plan.size.services;
        let mut slice = world::slices(plan.size, of).next().context("a Service has a slice")?;
        slice.endpoints[0] = world::endpoint(of, replacement(plan.size, n));
        let slice = cluster::slice(of, &slice);
        written.push(now());
        server.put(slice).map_err(anyhow::Error::msg)?;
    }
    for (n, at) in written.iter().enumerate() {
        println!("{n} {}", at.as_nanos());
    }
    std::io::stdin().read_line(&mut go)?;
    Ok(())
}

/// The number of the Pod that replaces another one in change n.
fn replacement(size: Size, n: usize) -> usize {
    size.all() + n
}

/// The API server's process.
struct Server {
    child: Child,
    stdin: ChildStdin,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Server {
    fn start(plan: &Plan, directory: &Path) -> Result<Self> {
        let size = plan.size;
        let mut command = Command::new(std::env::current_exe()?);
        for (key, value) in [
            ("--services", size.services),
            ("--endpoints", size.endpoints),
            ("--changes", plan.changes),
            ("--rate", plan.rate),
        ] {
            command.arg(key).arg(value.to_string());
        }
        command.arg("--serve").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().context("a pipe")?;
        let lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let mut server = Self { child, stdin, lines };
        let first = server.lines.next().context("the API server ended")??;
        if first != "ready" {
            bail!("the API server sent {first:?}");
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn gateway(plan: &Plan) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut server = Server::start(plan, directory.path())?;
    let (worker_pool, wire) = worker_pool(plan.core)?;
    let began = weight::anonymous()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut gateway = Gateway::new(Objects::default(), &worker_pool);
    let started = Instant::now();
    let source = {
        let _inside = runtime.enter();
        KubernetesSource::start(&config(directory.path()), "bench")
    };
    let mut updates = source.updates();
    while updates.borrow().revision == 0 {
        if !wait(&runtime, &mut updates, Duration::from_secs(60)) {
            bail!("no first list within a minute: {:?}", source.state().borrow());
        }
    }
    let listed = Instant::now();
    gateway.objects = Objects::clone(&updates.borrow_and_update().objects);
    gateway.round()?;
    println!(
        "{} Services, {} endpoints, {} changes a second\n",
        plan.size.services,
        plan.size.all(),
        plan.rate
    );
    println!("lists arrived after {:.2} s", (listed - started).as_secs_f64());
    println!("applied by the worker {:.2} s after that", listed.elapsed().as_secs_f64());
    println!("memory of the process: {:.1} MB", (weight::anonymous()? - began) as f64 / 1e6);

    let traffic = Traffic::start(wire, gateway.vips(), plan.packets);
    // Wait until the API server's watches are quiet.
    while wait(&runtime, &mut updates, Duration::from_secs(3)) {
        gateway.objects = Objects::clone(&updates.borrow_and_update().objects);
        gateway.round()?;
    }
    let (applied, rounds) = follow(plan, &runtime, &mut server, &mut updates, &mut gateway)?;
    let counts = traffic.stop();
    print_latencies(plan, &mut server, &applied)?;
    print_rounds(&rounds);
    let stats = worker_pool.stats();
    let drops: Vec<_> = stats.drops.iter().filter(|(_, count)| *count > 0).collect();
    println!("packets meanwhile: {counts:?}, dropped by the worker: {drops:?}");
    println!("memory of the process at the end: {:.1} MB", (weight::anonymous()? - began) as f64 / 1e6);
    println!("resident in all, flow tables included: {:.1} MB", weight::resident()? as f64 / 1e6);
    Ok(())
}

/// The configuration; this directory contains the API server's kubeconfig.
fn config(directory: &Path) -> KubernetesConfig {
    KubernetesConfig {
        kubeconfig: Some(directory.join("kubeconfig")),
        load_balancer_class: LOAD_BALANCER_CLASS.to_owned(),
        default: true,
        api_loss_grace: Duration::from_secs(300),
        pod_weights: false,
        state_directory: Some(directory.to_owned()),
        lease_namespace: "tidegate-system".to_owned(),
        endpoint_slices_mib: tidegate_model::config::ENDPOINT_SLICES_MIB,
        gateway_api: tidegate_model::config::GatewayApi::Auto,
    }
}

/// Waits for the next update, at most for `most`. Returns whether there is one.
fn wait(runtime: &Runtime, updates: &mut watch::Receiver<SourceUpdate>, most: Duration) -> bool {
    runtime.block_on(async { tokio::time::timeout(most, updates.changed()).await }).is_ok()
}

/// Lets the API server make the changes, and runs a round for each update, as the daemon does. Returns when the worker
/// applied each change, and the stages of the rounds.
fn follow(
    plan: &Plan,
    runtime: &Runtime,
    server: &mut Server,
    updates: &mut watch::Receiver<SourceUpdate>,
    gateway: &mut Gateway<'_>,
) -> Result<(BTreeMap<usize, Duration>, Vec<Stages>)> {
    let numbers: BTreeMap<IpAddr, usize> =
        (0..plan.changes).map(|n| (world::pod_ip(replacement(plan.size, n)), n)).collect();
    let (mut applied, mut rounds) = (BTreeMap::new(), Vec::new());
    writeln!(server.stdin, "go")?;
    let mut next = Instant::now();
    while applied.len() < plan.changes {
        if !wait(runtime, updates, Duration::from_secs(20)) {
            bail!("{} of {} changes arrived", applied.len(), plan.changes);
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let objects = Objects::clone(&updates.borrow_and_update().objects);
        let before = std::mem::replace(&mut gateway.objects, objects);
        let began = Instant::now();
        let stages = gateway.round()?;
        let let_go = stages.all - stages.reconcile - stages.publish - stages.applied;
        let at = now().saturating_sub(let_go);
        rounds.push(stages);
        let changed = differences(&before.endpoint_slices, &gateway.objects.endpoint_slices);
        for endpoint in changed.filter_map(|change| change.after).flat_map(|slice| &slice.endpoints) {
            if let Some(n) = endpoint.address.and_then(|ip| numbers.get(&ip)) {
                applied.entry(*n).or_insert(at);
            }
        }
        next = Instant::now() + began.elapsed().clamp(PAUSE_MIN, PAUSE_MAX);
    }
    Ok((applied, rounds))
}

/// Prints latencies, from the times at which the API server wrote each change.
fn print_latencies(plan: &Plan, server: &mut Server, applied: &BTreeMap<usize, Duration>) -> Result<()> {
    let mut latencies = Vec::with_capacity(plan.changes);
    for _ in 0..plan.changes {
        let line = server.lines.next().context("the API server ended")??;
        let (n, at) = line.split_once(' ').context("a number and a time")?;
        latencies.push(applied[&n.parse()?].saturating_sub(Duration::from_nanos(at.parse()?)));
    }
    latencies.sort_unstable();
    let at = |per_mille: usize| latencies[(latencies.len() - 1) * per_mille / 1000].as_secs_f64() * 1e3;
    println!("\n| from the write to the worker, ms | median | p90 | p99 | most |\n|---|---|---|---|---|");
    println!(
        "| {} changes | {:.1} | {:.1} | {:.1} | {:.1} |",
        plan.changes,
        at(500),
        at(900),
        at(990),
        at(1000)
    );
    Ok(())
}

fn print_rounds(rounds: &[Stages]) {
    let mut times: Vec<Duration> = rounds.iter().map(|s| s.reconcile + s.publish + s.applied).collect();
    times.sort_unstable();
    let round = |per_mille: usize| times[(times.len() - 1) * per_mille / 1000].as_secs_f64() * 1e3;
    println!("\n{} rounds, {:.1} ms at the median, {:.1} at p99", times.len(), round(500), round(990));
}
