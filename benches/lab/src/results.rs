//! The results of a run: a JSON file with the machine, every row and every round, and the figures computed from them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::generator::Measured;
use crate::scenario::Scenario;

/// A file of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
}

/// Where and when it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    pub(crate) dpdk: String,
    pub(crate) hugepages: bool,
    pub(crate) generator_cpu: usize,
    pub(crate) forwarder_cpu: usize,
    /// What the other CPUs run, and which programs share one.
    pub(crate) placement: String,
}

/// One scenario, with all its rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) scenario: Scenario,
    pub(crate) rounds: Vec<Measured>,
    /// The errors of rounds without a result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
}

/// The minimum, the median and the maximum of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// `None` for no figures.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let (least, most) = (*all.first()?, *all.last()?);
        let middle = all.len() / 2;
        let median = if all.len().is_multiple_of(2) {
            f64::midpoint(all[middle - 1], all[middle])
        } else {
            all[middle]
        };
        Some(Self { least, median, most })
    }

    /// Whether the two ranges do not overlap.
    pub(crate) fn is_apart_from(&self, other: &Self) -> bool {
        self.least > other.most || other.least > self.most
    }
}

impl Row {
    /// Frames per second under overload.
    pub(crate) fn overload(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(|round| round.found.overload_pps))
    }

    /// The highest rate within the bound on loss. Rounds without such a rate are left out.
    pub(crate) fn throughput(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(|round| round.found.throughput_pps))
    }

    /// Nanoseconds a frame under overload.
    pub(crate) fn nanoseconds(&self) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(|round| 1e9 / round.found.overload_pps))
    }

    /// Whether the generator was the limit in each round.
    pub(crate) fn is_limit_of_generator(&self) -> bool {
        !self.rounds.is_empty() && self.rounds.iter().all(|round| round.found.is_limit_of_generator)
    }

    /// Connections per second.
    pub(crate) fn connections(&self) -> Option<Spread> {
        Spread::of(
            self.rounds
                .iter()
                .filter_map(|round| round.connections)
                .map(|one| one.completed as f64 / one.seconds),
        )
    }

    /// A latency figure at a load, over the rounds.
    pub(crate) fn latency(
        &self,
        load: &str,
        figure: impl Fn(&crate::generator::Latency) -> f64,
    ) -> Option<Spread> {
        Spread::of(
            self.rounds.iter().flat_map(|round| &round.latency).filter(|one| one.load == load).map(figure),
        )
    }
}

impl Results {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is not a file of results.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a result of tidegate-bench run", path.display()))
    }

    /// Writes a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }
}

impl Machine {
    /// This machine.
    pub(crate) fn here(hugepages: bool, generator_cpu: usize, forwarder_cpu: usize) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let commit = std::process::Command::new("git").args(["describe", "--always", "--dirty"]).output();
        let commit =
            commit.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let placement = if cpus > 2 {
            "the generator and the worker of the forwarder each have a CPU; everything else is on the others"
        } else {
            "the worker of the forwarder has a CPU; the generator shares the other with everything else"
        };
        Self {
            date: jiff::Zoned::now().strftime("%Y-%m-%d").to_string(),
            commit: if commit.is_empty() { "unknown".to_owned() } else { commit },
            cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
            cpus,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            dpdk: dpdk::Eal::version(),
            hugepages,
            generator_cpu,
            forwarder_cpu,
            placement: placement.to_owned(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::generator::{Connections, Latency};
    use crate::search::Found;

    /// Results with one row, whose rounds forward at these rates.
    pub(crate) fn results(forwarder: &str, rates: &[f64]) -> Results {
        let text = format!("forwarders = ['{forwarder}']\nrounds = {}", rates.len().max(1));
        let rounds = rates.iter().map(|&rate| Measured {
            found: Found {
                overload_pps: rate,
                throughput_pps: Some(rate * 0.9),
                is_limit_of_generator: false,
                trials: Vec::new(),
            },
            generator_ns: 20.0,
            latency: ["half", "low"]
                .map(|load| Latency {
                    load: load.to_owned(),
                    pps: rate / 2.0,
                    frames: 1_000,
                    loss_percent: 0.0,
                    p50_us: 5.0,
                    p99_us: 20.0,
                    p999_us: 50.0,
                    worst_us: 900.0,
                })
                .to_vec(),
            connections: Some(Connections { completed: 5_000, failed: 1, seconds: 0.5 }),
            soak: Vec::new(),
        });
        let row = Row {
            scenario: Scenario::parse(&text).unwrap().remove(0),
            rounds: rounds.collect(),
            failures: Vec::new(),
        };
        Results { machine: Machine::here(false, 0, 1), rows: vec![row] }
    }

    #[test]
    fn a_file_of_results_is_read_as_it_was_written() {
        let directory = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, before) = (directory.join("a.json"), results("tidegate", &[1e6, 2e6]));
        before.write(&path).unwrap();
        assert_eq!(Results::read(&path).unwrap(), before);
        std::fs::write(&path, "{}").unwrap();
        assert!(
            format!("{:#}", Results::read(&path).unwrap_err())
                .contains("is not a result of tidegate-bench run")
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_spread_has_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0, f64::INFINITY]).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of([]), None);
        let other = Spread::of([3.5, 4.0]).unwrap();
        assert!(
            spread.is_apart_from(&other) && other.is_apart_from(&spread) && !spread.is_apart_from(&spread)
        );
        let row = &results("tidegate", &[1e6, 2e6, 4e6]).rows[0];
        assert_eq!(row.nanoseconds().unwrap().median, 500.0);
    }
}
