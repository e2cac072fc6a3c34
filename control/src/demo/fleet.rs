//! `tidegate demo --fleet`: a rolling update of all backends under live connections, with two gateways behind a router.
//!
//! Half way gateway 1 is killed and started again; after the update both gateways are upgraded one after the other
//! (SIGTERM, which drains, and a start of the same binary), and at the end a backend dies. Connections that begin
//! during the update count too. [`run`] returns what broke in each step, and [`print`] shows it. The tests call the
//! same function.

use super::report::print_table;
use crate::netlab::fleet::addresses::{FleetService, SERVICES};
use crate::netlab::fleet::connections::{Connections, Tally};
use crate::netlab::fleet::{Fleet, FleetPlan, missing_for_bgp};
use crate::netlab::{cleanup, server};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Servers of the Services before the update. As many others replace them.
const BACKENDS: u8 = 4;

/// Changes of the routes: a gateway goes and comes back, three times.
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
    /// By the place of the Service in [`SERVICES`].
    pub broken: Vec<usize>,
}

/// The result.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What became of the connections of each Service of [`SERVICES`].
    pub tallies: Vec<Tally>,
    /// How long each gateway took from SIGTERM to its end.
    pub stops: Vec<Duration>,
    /// How often the router changed its routes, and how often the steps made it do so.
    pub route_changes: (u64, u64),
    /// How long it all took.
    pub took: Duration,
}

/// Runs the demonstration, first with flows that the gateways share and then without, and prints both. The exit code is 0
/// if no connection broke with them.
pub(super) fn show(connections: usize) -> ExitCode {
    match both(connections) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("\ndemo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs it in both ways. Returns the number of connections that broke although the gateways shared flows.
fn both(connections: usize) -> Result<usize> {
    cleanup::on_signals()?;
    let tidegate = std::env::current_exe().context("the path of this binary")?;
    let missing = missing_for_bgp();
    match &missing[..] {
        [] => println!("Router: FRR, to which the gateways announce the VIPs by BGP, with BFD."),
        missing => println!("Router: the lab sets its routes, without BGP: {}.", missing.join("; ")),
    }
    let mut outcomes = Vec::new();
    for sharing in [true, false] {
        println!("\nThe gateways {}:\n", if sharing { "share flows" } else { "share no flows" });
        let options =
            FleetOptions { connections, bgp: missing.is_empty(), sharing, tidegate: tidegate.clone() };
        let outcome = run(&options)?;
        print(&outcome);
        outcomes.push(outcome);
    }
    println!("\nConnections to live or draining backends that broke in all:\n");
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
/// When the lab does not stand, or a gateway does not do what a step waits for.
pub fn run(options: &FleetOptions) -> Result<Outcome> {
    let begin = Instant::now();
    let entries = (options.connections * 4).next_power_of_two().max(65_536);
    let plan = FleetPlan {
        servers: 2 * BACKENDS,
        tidegate: options.tidegate.clone(),
        flow_entries: u32::try_from(entries).context("too many connections")?,
        bgp: options.bgp,
        sharing: options.sharing.then_some(['a', 'a']),
    };
    // Each replaced backend adds a twentieth.
    let connections = options.connections + options.connections / 20 * usize::from(BACKENDS);
    allow_files(SERVICES.len() * connections)?;
    let mut fleet = Fleet::start(plan, BACKENDS)?;
    let outcome = steps(&mut fleet, options.connections);
    let mut outcome = outcome.with_context(|| fleet.log_tails(15))?;
    outcome.took = begin.elapsed();
    Ok(outcome)
}

/// The state of a run.
struct Run<'a> {
    fleet: &'a mut Fleet,
    connections: Connections,
    /// Whether the gateways share flows, so that no connection should break.
    shares: bool,
    /// Broken connections by Service, at the end of the last step.
    broken: Vec<usize>,
    steps: Vec<Step>,
}

fn steps(fleet: &mut Fleet, count: usize) -> Result<Outcome> {
    let changed_before = fleet.router().changes();
    let (connections, broken) = (Connections::start(), vec![0; SERVICES.len()]);
    let mut run = Run { shares: fleet.shares(), fleet, connections, broken, steps: Vec::new() };
    run.open(count)?;
    run.end_step(format!("{count} connections of each Service open"))?;
    let half = BACKENDS / 2;
    for n in 1..=half {
        run.replace(n, count)?;
    }

    run.fleet.take_gateway(1).kill();
    run.fleet.router().wait_until_used(&[2])?;
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
        run.fleet.router().wait_until_used(&[3 - n])?;
        run.end_step(format!("gateway {n} is drained and stopped"))?;
        run.start_again(n)?;
        run.end_step(format!("gateway {n} is back, upgraded"))?;
    }

    let dies = 2 * BACKENDS;
    run.connections.give_up(&server::name(dies));
    run.fleet.kill_server(dies);
    run.end_step("a backend dies (its own connections do not count)")?;

    let tallies = run.connections.tally(SERVICES.len());
    let route_changes = (run.fleet.router().changes() - changed_before, ROUTE_CHANGES);
    Ok(Outcome { steps: run.steps, tallies, stops, route_changes, took: Duration::ZERO })
}

impl Run<'_> {
    /// Opens this number of connections of each Service.
    fn open(&self, count: usize) -> Result<()> {
        let vips = SERVICES.map(|service| service.vip());
        self.connections.open(self.fleet.client(), &vips, count)
    }

    /// Replaces one backend, and opens some connections in the window of the change.
    fn replace(&mut self, n: u8, count: usize) -> Result<()> {
        self.fleet.replace(n, n + BACKENDS)?;
        self.open(count / 20)?;
        self.end_step(format!("backend {n} of {BACKENDS} is replaced"))
    }

    fn start_again(&mut self, n: usize) -> Result<()> {
        self.fleet.launch(n)?;
        self.fleet.gateway_mut(n).wait_until_ready()?;
        self.fleet.router().wait_until_used(&[1, 2])
    }

    /// Pings every connection, and records those that broke since the last step.
    fn end_step(&mut self, name: impl Into<String>) -> Result<()> {
        self.connections.settle()?;
        let now: Vec<usize> =
            self.connections.tally(SERVICES.len()).iter().map(|tally| tally.broken).collect();
        let broken = now.iter().zip(&self.broken).map(|(now, before)| now.saturating_sub(*before)).collect();
        self.broken = now;
        let step = Step { name: name.into(), broken };
        if self.shares && step.broken.iter().any(|&count| count > 0) {
            eprintln!("Connections broke: {}.\n{}", step.name, self.fleet.condition());
        }
        self.steps.push(step);
        Ok(())
    }
}

/// Prints the table.
pub fn print(outcome: &Outcome) {
    println!(
        "Two gateways behind a router with equal-cost routes; all {BACKENDS} backends are replaced. Connections to live or \
         draining backends that broke:\n"
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

/// Raises the limit of open files of this process and of those that it starts.
fn allow_files(wanted: usize) -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::try_from(wanted).context("too many connections")? + 1024;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum })
            .with_context(|| {
                let most = limit.maximum.unwrap_or(wanted);
                format!(
                    "cannot raise the limit of open files to {wanted}: accepted: fewer --connections, or a higher hard limit (`ulimit -Hn` \
                     shows {most})"
                )
            })?;
    }
    Ok(())
}
