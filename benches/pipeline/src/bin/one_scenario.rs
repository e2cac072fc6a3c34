//! Runs one scenario for a number of packets without output, for callgrind and perf.
//!
//! `one-scenario SCENARIO PACKETS [ENTRIES]`. Called by `callgrind.sh` and `profile.sh`, which count only events inside
//! `one_burst`.

use anyhow::{Context, Result, bail};
use tidegate_pipeline_bench::lab::{ENTRIES, Lab};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (scenario, packets, entries) = match &arguments[..] {
        [scenario, packets] => (scenario, packets, ENTRIES),
        [scenario, packets, entries] => (scenario, packets, entries.parse().context("a number of entries")?),
        _ => bail!("usage: one-scenario SCENARIO PACKETS [ENTRIES]"),
    };
    let packets: usize = packets.parse().context("a number of packets")?;
    let mut lab = Lab::new(scenario.parse()?, entries);
    for _ in 0..packets.div_ceil(lab.packets()) {
        lab.refill();
        lab.run();
    }
    Ok(())
}
