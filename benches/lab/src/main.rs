//! `tidegate-bench`, the performance lab: throughput and latency of Tidegate in each mode, of a DPDK program that does
//! nothing, and of the Linux kernel, over the same virtual wires in the same run.
//!
//! May depend on: `dpdk`, `tidegate-netlab` (namespaces), `tidegate-wire` and the packet builder (`testing` of
//! `tidegate-pipeline`). Called by developers, and by `make perf`; benches/README.md explains the figures.

mod dut;
mod generator;
mod packets;
mod report;
mod results;
mod scenario;
mod search;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, Subcommand};
use tidegate_netlab::cleanup;

use crate::dut::{Restarted, Round, Sample, Setup};
use crate::generator::{Job, Soak, Stream};
use crate::results::{Machine, Results, Row, Spread};
use crate::scenario::Scenario;
use crate::search::Trial;

/// Measures load balancers over virtual wires.
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the rows of scenario files, all rows in turn in each round (root).
    Run {
        /// TOML files, or names of files in benches/scenarios.
        #[arg(required = true)]
        scenarios: Vec<String>,
        /// Write the results to this JSON file.
        #[arg(long)]
        out: Option<PathBuf>,
        /// Number of rounds, instead of that of the files.
        #[arg(long)]
        rounds: Option<u32>,
        /// Measure only the rate under overload: `search = false` and `latency = false` for all rows.
        #[arg(long)]
        overload: bool,
        #[command(flatten)]
        placement: Placement,
    },
    /// Send at full rate for a long time, with backends that change every second (root). Fails on a leak or a drop of
    /// the rate.
    Soak {
        /// A TOML file, or a name of a file in benches/scenarios. The first row is used.
        scenario: String,
        /// Duration in seconds.
        #[arg(long, default_value_t = 3_600.0)]
        seconds: f64,
        /// Seconds between two changes of backends.
        #[arg(long, default_value_t = 1.0)]
        change_every: f64,
        #[command(flatten)]
        placement: Placement,
    },
    /// Restart a gateway in different ways while packets of established connections stream through it, and print the
    /// lost packets and broken connections (root).
    Restart {
        /// A TOML file, or a name of a file in benches/scenarios.
        #[arg(default_value = "restarts")]
        scenario: String,
        /// Packets per second.
        #[arg(long, default_value_t = 100_000.0)]
        rate: f64,
        /// Connections, instead of those of the file.
        #[arg(long)]
        connections: Option<u32>,
        /// The tidegate binary of another build; by default the same one.
        #[arg(long)]
        next: Option<PathBuf>,
        /// Number of times each action is performed.
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        #[command(flatten)]
        placement: Placement,
    },
    /// Show the scenario files that can be named.
    List,
    /// Show results as a table of Markdown.
    Table {
        /// Results of `run`.
        results: PathBuf,
    },
    /// Write results as one HTML page with charts, without other files.
    Report {
        /// Results of `run`; several are shown beside each other.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// The page.
        #[arg(long, short, default_value = "report.html")]
        out: PathBuf,
    },
    /// Report which rows of two results differ by more than noise.
    Compare {
        /// Results of `run`.
        a: PathBuf,
        /// Results of another `run`.
        b: PathBuf,
    },
    /// The generator, started by `run`.
    #[command(hide = true)]
    Generate {
        /// The job.
        job: PathBuf,
    },
}

/// Which programs run on which CPU.
#[derive(Debug, clap::Args)]
struct Placement {
    /// The tidegate binary; by default the one beside this program.
    #[arg(long)]
    tidegate: Option<PathBuf>,
    /// The CPU of the generator.
    #[arg(long, default_value_t = 0)]
    generator_cpu: usize,
    /// The CPU of the forwarder's worker.
    #[arg(long, default_value_t = 1)]
    forwarder_cpu: usize,
    /// Do not use huge pages, even if some are available.
    #[arg(long)]
    no_hugepages: bool,
}

fn main() -> ExitCode {
    match do_command(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn do_command(command: Command) -> Result<()> {
    match command {
        Command::Run { scenarios, out, rounds, overload, placement } => {
            run(&scenarios, out.as_deref(), rounds, overload, &placement)
        }
        Command::Soak { scenario, seconds, change_every, placement } => {
            soak(&scenario, Soak { seconds, change_every }, &placement)
        }
        Command::Restart { scenario, rate, connections, next, rounds, placement } => {
            restart(&scenario, rate, connections, next.as_deref(), rounds, &placement)
        }
        Command::List => list(),
        Command::Table { results } => {
            print!("{}", table::table(&Results::read(&results)?));
            Ok(())
        }
        Command::Report { results, out } => {
            let all = results
                .iter()
                .map(|path| {
                    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
                    Ok((name.unwrap_or_default(), Results::read(path)?))
                })
                .collect::<Result<Vec<_>>>()?;
            std::fs::write(&out, report::page(&all)).with_context(|| out.display().to_string())
        }
        Command::Compare { a, b } => {
            print!("{}", table::compare(&Results::read(&a)?, &Results::read(&b)?));
            Ok(())
        }
        Command::Generate { job } => {
            let job: Job = serde_json::from_str(&std::fs::read_to_string(&job)?)?;
            if let Some(of) = job.stream {
                return generator::stream(&job, of);
            }
            println!("{}", serde_json::to_string(&generator::run(&job)?)?);
            Ok(())
        }
    }
}

fn run(
    names: &[String],
    out: Option<&Path>,
    rounds: Option<u32>,
    overload: bool,
    placement: &Placement,
) -> Result<()> {
    cleanup::on_signals()?;
    let mut scenarios = Vec::new();
    for name in names {
        scenarios.extend(Scenario::read(&file_of(name)?)?);
    }
    if overload {
        scenarios.iter_mut().for_each(Scenario::only_overload);
    }
    let setup = placement.setup()?;
    let machine = Machine::here(setup.hugepages, setup.generator_cpu, setup.forwarder_cpu);
    let rows = scenarios.iter().map(|scenario| Row {
        scenario: scenario.clone(),
        rounds: Vec::new(),
        failures: Vec::new(),
    });
    let mut results = Results { machine, rows: rows.collect() };
    let most = rounds.unwrap_or_else(|| scenarios.iter().map(|one| one.rounds).max().unwrap_or(1));
    for round in 0..most {
        for (n, row) in results.rows.iter_mut().enumerate() {
            if round >= rounds.unwrap_or(row.scenario.rounds) {
                continue;
            }
            eprintln!(
                "round {} of {most}, row {} of {}: {}",
                round + 1,
                n + 1,
                scenarios.len(),
                row.scenario.name()
            );
            match dut::round(&row.scenario, &setup, None) {
                Ok(Round { measured, .. }) => row.rounds.push(measured),
                Err(error) => {
                    eprintln!("{error:#}");
                    row.failures.push(format!("{error:#}").lines().next().unwrap_or_default().to_owned());
                }
            }
        }
        // A run that is stopped keeps its finished rounds.
        if let Some(out) = out {
            results.write(out)?;
        }
    }
    print!("{}", table::table(&results));
    ensure!(results.rows.iter().all(|row| row.failures.is_empty()), "some rounds failed");
    Ok(())
}

/// The maximum growth of memory and open files between the first third of a soak and the last: medians of their
/// samples.
const GROWTH_MAX: f64 = 1.05;
/// The minimum ratio of free packet buffers in the last third to those in the first.
const BUFFERS_MIN: f64 = 0.98;
/// The minimum ratio of the rate in the last third to that in the first.
const RATE_MIN: f64 = 0.9;
/// The minimum ratio to the rate of a gateway that has just started, if the rate has dropped: the machine may have
/// become slower.
const FRESH_MIN: f64 = 0.95;
/// Parts of a soak whose rates are shown.
const PARTS: usize = 12;
/// The quantile of the rates that is compared. Other programs, and other guests of a virtual machine's host, take time
/// from most seconds of a soak, but a gateway that became slower would be slower in its best seconds too.
const UNDISTURBED: f64 = 0.99;

fn soak(name: &str, of: Soak, placement: &Placement) -> Result<()> {
    cleanup::on_signals()?;
    let pause = of.change_every;
    ensure!((0.01..=60.0).contains(&pause), "--change-every {pause}; accepted: 0.01 to 60");
    let scenario = Scenario::read(&file_of(name)?)?.swap_remove(0);
    let setup = placement.setup()?;
    let Round { measured, samples } = dut::round(&scenario, &setup, Some(of))?;
    let thirds = measured.soak.len() / 3;
    ensure!(
        thirds > 0 && samples.len() >= 3,
        "too short: {} intervals, {} samples",
        measured.soak.len(),
        samples.len()
    );
    let (first, last) = (&measured.soak[..thirds], &measured.soak[2 * thirds..]);
    println!("{}, Mpps second by second:", scenario.name());
    println!("| | median | 99th percentile |\n|---|---|---|");
    let show = |part: &str, trials: &[Trial]| {
        let [median, best] = [0.5, UNDISTURBED].map(|quantile| search::rate_at(trials, quantile) / 1e6);
        println!("| {part} | {median:.3} | {best:.3} |");
    };
    show("first third", first);
    show("last third", last);
    for (n, part) in measured.soak.chunks(measured.soak.len().div_ceil(PARTS)).enumerate() {
        show(&format!("part {} of {PARTS}", n + 1), part);
    }
    println!();
    let (first, last) = (search::rate_at(first, UNDISTURBED), search::rate_at(last, UNDISTURBED));
    println!(
        "| seconds | resident, MiB | open files | free packet buffers | generation |\n|---|---|---|---|---|"
    );
    for sample in &samples {
        let buffers = sample.buffers_free.map_or_else(String::new, |free| free.to_string());
        println!(
            "| {:.0} | {:.1} | {} | {buffers} | {} |",
            sample.at, sample.resident_mib, sample.files, sample.generation
        );
    }
    let third = samples.len() / 3;
    let (early, late) = (&samples[..third], &samples[samples.len() - third..]);
    for part in [early, late] {
        let is_changed = part[part.len() - 1].generation > part[0].generation;
        ensure!(
            is_changed || part.len() < 3,
            "the gateway has applied no change of backends in a third of the time"
        );
    }
    // Resource usage at one moment varies, for example while a snapshot is compiled.
    let median = |part: &[Sample], of: fn(&Sample) -> f64| {
        Spread::of(part.iter().map(of)).map_or(0.0, |spread| spread.median)
    };
    let both = |of: fn(&Sample) -> f64| [median(early, of), median(late, of)];
    let [before, after] = both(|sample| sample.resident_mib);
    ensure!(after <= before * GROWTH_MAX, "memory grew from {before:.1} to {after:.1} MiB");
    let [before, after] = both(|sample| sample.files as f64);
    ensure!(after <= before * GROWTH_MAX, "open files grew from {before} to {after}");
    let [before, after] = both(|sample| sample.buffers_free.unwrap_or(0) as f64);
    ensure!(
        after > 0.0 && after >= before * BUFFERS_MIN,
        "free packet buffers fell from {before} to {after}"
    );
    if last >= first * RATE_MIN {
        println!("no leak, and no fall of the rate");
        return Ok(());
    }
    let again = Soak { seconds: (of.seconds / 20.0).max(10.0), ..of };
    let fresh = dut::round(&scenario, &setup, Some(again))?.measured.soak;
    show("a gateway that has just started", &fresh);
    let fresh = search::rate_at(&fresh, UNDISTURBED);
    ensure!(
        last >= fresh * FRESH_MIN,
        "the rate fell from {first:.0} to {last:.0} frames a second; that of a gateway that has just started is {fresh:.0}"
    );
    println!("no leak, and the gateway is as fast as one that has just started: the machine became slower");
    Ok(())
}

fn restart(
    name: &str,
    rate: f64,
    connections: Option<u32>,
    next: Option<&Path>,
    rounds: u32,
    placement: &Placement,
) -> Result<()> {
    cleanup::on_signals()?;
    ensure!((1.0..=10e6).contains(&rate), "--rate {rate}; accepted: 1 to 10000000");
    let setup = placement.setup()?;
    let next = next.map(Path::canonicalize).transpose().context("--next")?;
    let next = next.as_ref().unwrap_or(&setup.tidegate);
    println!(
        "| mode | action | packets sent | lost | longest gap | connections | broken | ready again | restored |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut broken = 0;
    for mut scenario in Scenario::read(&file_of(name)?)? {
        scenario.flows = connections.unwrap_or(scenario.flows);
        ensure!(scenario.flows > 0, "{}: flows = 0; accepted: established connections", scenario.name());
        let mode = scenario.mode.context("a scenario of Tidegate is needed; accepted: modes")?.as_str();
        dut::restarts(
            &scenario,
            &setup,
            next,
            Stream { rate },
            rounds,
            |action, Restarted { window, ready_ms, restored }| {
                broken += window.broken;
                let lost = window.offered.saturating_sub(window.received);
                let ready = if ready_ms == 0.0 { String::new() } else { format!("{ready_ms:.0} ms") };
                let restored =
                    restored.map(|(flows, ms)| format!("{flows} in {ms:.0} ms")).unwrap_or_default();
                println!(
                    "| `{mode}` | {} | {} | {lost} | {:.1} ms | {} | {} | {ready} | {restored} |",
                    action.as_str(),
                    window.offered,
                    window.gap_ms,
                    window.connections,
                    window.broken,
                );
            },
        )?;
    }
    ensure!(broken == 0, "{broken} connections broke");
    Ok(())
}

/// The directory of scenario files in the repository.
fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("scenarios")
}

fn file_of(name: &str) -> Result<PathBuf> {
    let (path, named) = (PathBuf::from(name), scenarios().join(format!("{name}.toml")));
    if path.is_file() {
        return Ok(path);
    }
    if named.is_file() {
        return Ok(named);
    }
    bail!(
        "there is no file {name} and no scenario of this name; accepted: a TOML file, or one of {}",
        names()?.join(", ")
    )
}

fn names() -> Result<Vec<String>> {
    let directory = scenarios();
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .with_context(|| directory.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".toml")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn list() -> Result<()> {
    for name in names()? {
        println!("{name}");
        for row in Scenario::read(&file_of(&name)?)? {
            println!("  {}", row.name());
        }
    }
    Ok(())
}

impl Placement {
    fn setup(&self) -> Result<Setup> {
        let beside = std::env::current_exe()?.with_file_name("tidegate");
        let tidegate = self.tidegate.clone().unwrap_or(beside);
        ensure!(tidegate.is_file(), "no {}: cargo build --release -p tidegate", tidegate.display());
        ensure!(
            self.generator_cpu != self.forwarder_cpu,
            "the generator and the forwarder need a CPU each; accepted: different --generator-cpu and --forwarder-cpu"
        );
        let usable = dpdk::lcore::usable_cpus();
        for cpu in [self.generator_cpu, self.forwarder_cpu] {
            ensure!(
                usable.contains(&cpu),
                "there is no CPU {cpu} for this process; accepted: any of {usable:?}"
            );
        }
        Ok(Setup {
            tidegate: tidegate.canonicalize()?,
            hugepages: !self.no_hugepages && hugepages_suffice(),
            generator_cpu: self.generator_cpu,
            forwarder_cpu: self.forwarder_cpu,
        })
    }
}

/// MiB of huge pages for the generator and the forwarder.
const HUGEPAGES_MIB: u64 = 512;

/// Whether there are enough free 2-MiB huge pages.
fn hugepages_suffice() -> bool {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let free = text.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    if free * 2 < HUGEPAGES_MIB {
        eprintln!(
            "{} MiB of huge pages are free, {HUGEPAGES_MIB} are needed: small pages are used",
            free * 2
        );
    }
    free * 2 >= HUGEPAGES_MIB
}
