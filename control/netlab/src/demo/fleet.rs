//! `tidegate-demo --fleet`: a rolling update of all backends under live connections, with two gateways behind a router.
//!
//! Halfway, gateway 1 is killed and started again. After the update both gateways are upgraded one after the other
//! (SIGTERM, which drains, and a start of the same binary), and at the end a backend dies. Connections that open during
//! the update count too. [`run`] returns what broke in each step, and [`print`] shows it. The tests call the same
//! function.

use super::report::print_table;
use crate::fleet::addresses::{FleetService, SERVICES};
use crate::fleet::client_processes::ClientProcesses;
use crate::fleet::connections::Tally;
use crate::fleet::{Fleet, FleetPlan, RouterKind, missing_for_bgp};
use crate::{cleanup, server};
use anyhow::{Context, Result, bail, ensure};
use procfs::Current as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of servers of the Services before the update. The update replaces them by as many others.
const BACKENDS: u8 = 4;

/// The maximum number of connections of one client process. It pings them round by round.
const PER_PROCESS_MAX: usize = 12_000;
/// Open files of a process beside its connections.
const OTHER_FILES: usize = 1024;
/// The memory for a connection: its two sockets, and its state in the two programs and the gateways.
const CONNECTION_BYTES: u64 = 32 << 10;
/// The memory for the lab without connections.
const LAB_BYTES: u64 = 1 << 30;

/// Changes of the routes: a gateway leaves and returns, three times.
const ROUTE_CHANGES: u64 = 6;

/// The options of the demonstration.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Connections of each Service that are open before the update.
    pub connections: usize,
    /// The gateways announce by BGP to FRR. Otherwise the lab sets the routes.
    pub bgp: bool,
    /// The gateways share flows (`flowSharing: {mode: nat}`).
    pub sharing: bool,
    /// The `tidegate` binary.
    pub tidegate: PathBuf,
}

/// One step, and the connections of each Service that broke in it.
#[derive(Clone, Debug)]
pub struct Step {
    /// What happened.
    pub name: String,
    /// By the index of the Service in [`SERVICES`].
    pub broken: Vec<usize>,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The tally of the connections of each Service in [`SERVICES`].
    pub tallies: Vec<Tally>,
    /// How long each gateway took from SIGTERM to its end.
    pub stops: Vec<Duration>,
    /// How often the router changed its routes, and how often the steps should have made it do so.
    pub route_changes: (u64, u64),
    /// The total duration.
    pub took: Duration,
}

/// Runs the demonstration with and without flow sharing, and prints both. The exit code is 0 if no connection broke
/// with it.
pub(super) fn show(connections: usize, tidegate: &Path) -> ExitCode {
    match both(connections, tidegate) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\ndemo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs both variants. Returns the number of connections that broke although the gateways shared flows.
fn both(connections: usize, tidegate: &Path) -> Result<usize> {
    cleanup::on_signals()?;
    let missing = missing_for_bgp();
    match &missing[..] {
        [] => println!("Router: FRR, to which the gateways announce the VIPs by BGP, with BFD."),
        missing => println!("Router: the lab sets its routes, without BGP: {}.", missing.join("; ")),
    }
    let mut outcomes = Vec::new();
    for sharing in [true, false] {
        println!("\nThe gateways {}:\n", if sharing { "share flows" } else { "share no flows" });
        let tidegate = tidegate.to_owned();
        let options = FleetOptions { connections, bgp: missing.is_empty(), sharing, tidegate };
        let outcome = run(&options)?;
        print(&outcome);
        outcomes.push(outcome);
    }
    println!("\nBroken connections to live or draining backends, in total:\n");
    let rows: Vec<Vec<String>> = SERVICES
        .iter()
        .enumerate()
        .map(|(place, service)| {
            let counts = outcomes.iter().map(|outcome| outcome.tallies[place].broken.to_string());
            let opened = outcomes[0].tallies[place].opened.to_string();
            [service.name.to_owned(), opened].into_iter().chain(counts).collect()
        })
        .collect();
    print_table(&["Service", "connections", "broken with sharing", "without"], &rows);
    Ok(outcomes[0].tallies.iter().map(|tally| tally.broken).sum())
}

/// Builds the lab, runs the steps and removes the lab.
///
/// # Errors
/// When the lab cannot be built, or a gateway does not reach an expected state.
pub fn run(options: &FleetOptions) -> Result<Outcome> {
    let begin = Instant::now();
    let too_many = || format!("{} connections to each Service are too many", options.connections);
    let entries = options.connections.checked_mul(8).and_then(usize::checked_next_power_of_two);
    let entries = entries.with_context(too_many)?.max(65_536);
    let plan = FleetPlan {
        gateways: 2,
        servers: 2 * BACKENDS,
        flow_files: false,
        tidegate: options.tidegate.clone(),
        flow_entries: u32::try_from(entries).with_context(too_many)?,
        router: if options.bgp { RouterKind::Frr } else { RouterKind::Lab },
        sharing: options.sharing.then_some(['a', 'a']),
    };
    // Each replaced backend adds a twentieth.
    let of_service = options.connections + options.connections / 20 * usize::from(BACKENDS);
    let all = SERVICES.len() * of_service;
    let processes = client_processes(options.connections, all, allow_files(all)?)?;
    check_memory(all)?;
    let mut fleet = Fleet::start(plan, BACKENDS)?;
    let outcome = steps(&mut fleet, options, processes);
    let mut outcome = outcome.with_context(|| fleet.log_tails(15))?;
    outcome.took = begin.elapsed();
    Ok(outcome)
}

/// The state of a run.
struct Run<'a> {
    fleet: &'a mut Fleet,
    connections: ClientProcesses,
    /// Whether the gateways share flows, so that no connection should break.
    shares: bool,
    /// Broken connections by Service, at the end of the last step.
    broken: Vec<usize>,
    /// The value of [`kernel_drops`] at that time.
    dropped: u64,
    steps: Vec<Step>,
}

fn steps(fleet: &mut Fleet, options: &FleetOptions, processes: usize) -> Result<Outcome> {
    let count = options.connections;
    let changed_before = fleet.router().changes();
    let connections = ClientProcesses::start(fleet.client(), &options.tidegate, processes)?;
    let broken = vec![0; SERVICES.len()];
    let dropped = kernel_drops();
    let mut run = Run { shares: fleet.shares(), fleet, connections, broken, dropped, steps: Vec::new() };
    run.open(count)?;
    run.end_step(format!("{count} connections to each Service are open"))?;
    let half = BACKENDS / 2;
    for n in 1..=half {
        run.replace(n, count)?;
    }

    run.fleet.take_gateway(1).kill();
    run.fleet.wait_until_used(&[2])?;
    run.end_step("gateway 1 is killed (kill -9)")?;
    run.start_again(1)?;
    run.end_step("gateway 1 is back")?;

    for n in half + 1..=BACKENDS {
        run.replace(n, count)?;
    }

    let mut stops = Vec::new();
    for n in 1..=2 {
        let begin = Instant::now();
        let ended = run.fleet.take_gateway(n).stop()?;
        ensure!(ended.success(), "gateway {n} ended with {ended}");
        stops.push(begin.elapsed());
        run.fleet.wait_until_used(&[3 - n])?;
        run.end_step(format!("gateway {n} is drained and stopped"))?;
        run.start_again(n)?;
        run.end_step(format!("gateway {n} is back, upgraded"))?;
    }

    let dies = 2 * BACKENDS;
    run.connections.expect_loss(&server::name(dies))?;
    run.fleet.kill_server(dies);
    run.end_step("a backend dies (its own connections do not count)")?;

    let tallies = run.connections.tally(SERVICES.len())?;
    let route_changes = (run.fleet.router().changes() - changed_before, ROUTE_CHANGES);
    Ok(Outcome { steps: run.steps, tallies, stops, route_changes, took: Duration::ZERO })
}

impl Run<'_> {
    /// Opens this number of connections of each Service.
    fn open(&mut self, count: usize) -> Result<()> {
        self.connections.open(&SERVICES.map(|service| service.vip()), count)
    }

    /// Replaces one backend, and opens some connections during the change.
    fn replace(&mut self, n: u8, count: usize) -> Result<()> {
        self.fleet.replace(n, n + BACKENDS)?;
        self.open(count / 20)?;
        self.end_step(format!("backend {n} of {BACKENDS} is replaced"))
    }

    fn start_again(&mut self, n: usize) -> Result<()> {
        self.fleet.launch(n)?;
        self.fleet.gateway_mut(n).wait_until_ready()?;
        self.fleet.wait_until_used(&[1, 2])
    }

    /// Pings every connection, and records those that broke since the last step.
    fn end_step(&mut self, name: impl Into<String>) -> Result<()> {
        self.connections.ping_round()?;
        let now: Vec<usize> =
            self.connections.tally(SERVICES.len())?.iter().map(|tally| tally.broken).collect();
        let broken = now.iter().zip(&self.broken).map(|(now, before)| now.saturating_sub(*before)).collect();
        self.broken = now;
        let step = Step { name: name.into(), broken };
        if self.shares && step.broken.iter().any(|&count| count > 0) {
            eprintln!(
                "Connections broke: {}. The kernel dropped {} packets in this step because a queue was full.\n{}",
                step.name,
                kernel_drops().saturating_sub(self.dropped),
                self.fleet.condition()
            );
        }
        self.dropped = kernel_drops();
        self.steps.push(step);
        Ok(())
    }
}

/// Prints the table.
pub fn print(outcome: &Outcome) {
    println!(
        "Two gateways behind a router with equal-cost routes; all {BACKENDS} backends are replaced. Broken connections \
         to live or draining backends:\n"
    );
    let names: Vec<&str> = SERVICES.iter().map(|service: &FleetService| service.name).collect();
    let header: Vec<&str> = ["step"].into_iter().chain(names).collect();
    let mut rows: Vec<Vec<String>> = outcome
        .steps
        .iter()
        .map(|step| {
            [step.name.clone()].into_iter().chain(step.broken.iter().map(ToString::to_string)).collect()
        })
        .collect();
    let row = |name: &str, of: &dyn Fn(&Tally) -> usize| -> Vec<String> {
        let cells = outcome.tallies.iter().map(|tally| of(tally).to_string());
        [name.to_owned()].into_iter().chain(cells).collect()
    };
    rows.push(row("all connections", &|tally| tally.opened));
    rows.push(row("  broken", &|tally| tally.broken));
    rows.push(row("  lost with their backend", &|tally| tally.lost_with_backend));
    print_table(&header, &rows);
    for (service, tally) in SERVICES.iter().zip(&outcome.tallies).filter(|(_, tally)| tally.broken > 0) {
        let reasons: Vec<String> =
            tally.reasons.iter().map(|(why, count)| format!("{count} {why}")).collect();
        println!("  {}: {}", service.name, reasons.join(", "));
    }
    let (changes, expected) = outcome.route_changes;
    if changes != expected {
        println!(
            "The router changed its routes {changes} times instead of {expected}: a gateway did not answer in time. Each change moves \
             flows."
        );
    }
    let stops: Vec<String> =
        outcome.stops.iter().map(|stop| format!("{:.1} s", stop.as_secs_f64())).collect();
    println!(
        "\nFrom SIGTERM to the end of a gateway, with its drain: {}. All steps: {:.0} s.",
        stops.join(", "),
        outcome.took.as_secs_f64()
    );
}

/// The packets that this machine's kernel has dropped since its start because the queue of a processor was full
/// (`netdev_max_backlog`), for example between the lab's namespaces when many connections send at once.
fn kernel_drops() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(dropped).sum()
}

/// The number of client processes for `all` connections, if each process may have this many open files.
fn client_processes(connections: usize, all: usize, files: usize) -> Result<usize> {
    // Servers have about as many connections each.
    let of_server = |all: usize| all / usize::from(BACKENDS) * 5 / 4 + OTHER_FILES;
    let needed = of_server(all);
    if needed > files {
        // The largest multiple of a hundred that a server can accept.
        let most = connections * files.saturating_sub(OTHER_FILES) / (needed - OTHER_FILES) / 100 * 100;
        bail!(
            "--connections {connections}: a server of the lab needs {needed} open files, and a process may have \
             {files} here; accepted: at most {most} connections, or a higher hard limit (`ulimit -Hn`)"
        );
    }
    Ok(all.div_ceil(PER_PROCESS_MAX.min(files.saturating_sub(OTHER_FILES)).max(1)))
}

/// Fails if the machine has too little memory for this many connections.
fn check_memory(all: usize) -> Result<()> {
    let needed = LAB_BYTES + CONNECTION_BYTES * u64::try_from(all).context("too many connections")?;
    let memory = procfs::Meminfo::current().context("cannot read the memory size of this machine")?;
    let free = memory.mem_available.unwrap_or(memory.mem_free);
    ensure!(
        free >= needed,
        "{all} connections in all need {} MiB of memory, and {} MiB are available; accepted: a smaller number for \
         --connections",
        needed >> 20,
        free >> 20
    );
    Ok(())
}

/// Raises the limit of open files of this process and its children to `wanted`, or to the maximum. Returns the limit.
fn allow_files(wanted: usize) -> Result<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::try_from(wanted + OTHER_FILES).context("too many connections")?;
    let limit = getrlimit(Resource::Nofile);
    let raise = |current: u64, maximum: Option<u64>| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
    };
    if limit.current.is_some_and(|current| current < wanted) {
        let as_far_as_it_goes = || {
            let hard = limit.maximum.unwrap_or(wanted).min(wanted);
            raise(hard, limit.maximum)
        };
        raise(wanted, limit.maximum.map(|hard| hard.max(wanted)))
            .or_else(|_| as_far_as_it_goes())
            .context("cannot raise the limit of open files")?;
    }
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_split_over_processes_with_20_000_files_each() {
        assert_eq!(client_processes(10_000, SERVICES.len() * 12_000, 20_000).unwrap(), 5);
        assert_eq!(client_processes(100, SERVICES.len() * 120, 20_000).unwrap(), 1);
    }

    #[test]
    fn too_many_connections_are_refused_with_the_accepted_number() {
        let all = |connections: usize| SERVICES.len() * (connections + connections / 20 * 4);
        let error = client_processes(50_000, all(50_000), 20_000).unwrap_err().to_string();
        assert!(
            error.contains("a process may have 20000 here; accepted: at most 10100 connections"),
            "{error}"
        );
        client_processes(10_100, all(10_100), 20_000).expect("the number in the message is accepted");
    }
}
