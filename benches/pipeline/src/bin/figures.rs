//! Measures the whole pipeline, one scenario after the other, against the trivial forwarder of the same round.
//!
//! `figures [--rounds N] [--runs N] [SCENARIO ...]` prints a table in Markdown: median, minimum and quartiles of ns per
//! packet over all rounds, and the ratio to the trivial forwarder. Each round runs each scenario once, so that other
//! load of the machine affects all scenarios equally.

use std::time::Instant;

use anyhow::{Context, Result};
use tidegate_pipeline_bench::lab::{ENTRIES, Lab};
use tidegate_pipeline_bench::sampling::summary;
use tidegate_pipeline_bench::scenario::Scenario;

/// The scenarios of the tables in benches/results.
const USUAL: [&str; 30] = [
    "trivial/known-1",
    "dsr-l2/known-1",
    "dsr-l2/known-1000",
    "dsr-l2/known-1000000",
    "dsr-l2/new",
    "dsr-l2/flood",
    "dsr-ipip/known-1",
    "dsr-ipip/known-1000",
    "dsr-ipip/known-1000000",
    "dsr-ipip/new",
    "nat/known-1",
    "nat/known-1000",
    "nat/known-1000000",
    "nat/new",
    "nat-reply/known-1",
    "nat-reply/known-1000",
    "nat-reply/known-1000000",
    "fullnat/known-1",
    "fullnat/known-1000",
    "fullnat/known-1000000",
    "fullnat/new",
    "fullnat-reply/known-1",
    "fullnat-reply/known-1000",
    "fullnat-reply/known-1000000",
    "dsr-l2/known-1000000/tcp",
    "dsr-l2/known-1000000/udp",
    "dsr-l2/known-1000000/v6",
    "dsr-ipip/known-1000000/v6",
    "dsr-l2/known-1000000/1x100",
    "dsr-ipip/known-1000000/1x100",
];

fn main() -> Result<()> {
    let (mut rounds, mut runs, mut names) = (9, 12, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().context("a number is missing")?.parse().context("a number");
        match argument.as_str() {
            "--rounds" => rounds = number()?,
            "--runs" => runs = number()?,
            // cargo adds this argument.
            "--bench" => {}
            _ => names.push(argument),
        }
    }
    if names.is_empty() {
        names = USUAL.map(String::from).into();
    }
    let scenarios = names.iter().map(|name| name.parse()).collect::<Result<Vec<Scenario>>>()?;
    let mut labs: Vec<Lab> = scenarios.iter().map(|&scenario| Lab::new(scenario, ENTRIES)).collect();
    let mut timings = vec![Vec::new(); labs.len()];
    for _ in 0..rounds {
        for (lab, timings) in labs.iter_mut().zip(&mut timings) {
            // Before the first run, the caches contain data of the previous scenario.
            for run in 0..=runs {
                lab.refill();
                let start = Instant::now();
                lab.run();
                let took = start.elapsed();
                if run > 0 {
                    timings.push(took.as_nanos() as f64 / lab.packets() as f64);
                }
            }
        }
    }
    println!("| scenario | median ns | least | quartiles | n | to trivial |");
    println!("|---|---|---|---|---|---|");
    let unit = summary(&timings[0]).median;
    for (scenario, timings) in scenarios.iter().zip(&timings) {
        let s = summary(timings);
        println!(
            "| {scenario} | {:.1} | {:.1} | {:.1}-{:.1} | {} | {:.1} |",
            s.median,
            s.least,
            s.lower,
            s.upper,
            s.count,
            s.median / unit
        );
    }
    Ok(())
}
