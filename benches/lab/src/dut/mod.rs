//! The device under test: one round of one scenario, from the namespaces to the results of the generator.
//!
//! ```text
//!   client namespace            gateway namespace
//!   generator, one thread ====> forwarder, one worker    memif: rings in shared memory
//!        ^                         |                     veth: links gen0-dut0 and gen1-dut1
//!        +=========================+
//! ```
//! The namespaces are those of the end-to-end tests, so that whatever happens, they are removed.

mod kernel;
mod restarts;
mod testbed;
mod testpmd;
mod tidegate;

use std::io::Read as _;

use anyhow::{Context, Result, bail};

use crate::generator::{Measured, Soak};
use crate::scenario::{Forwarder, Scenario};
use testbed::{Testbed, log_end, testbed};

pub(crate) use restarts::{Restarted, restarts};
pub(crate) use testbed::Setup;
pub(crate) use tidegate::Sample;

/// One round: the figures of the generator, and in a soak what the forwarder used.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) measured: Measured,
    pub(crate) samples: Vec<Sample>,
}

/// Runs one round.
///
/// # Errors
/// The lab or a program does not start, or the generator fails; the message has the end of the forwarder's log.
pub(crate) fn round(scenario: &Scenario, setup: &Setup, soak: Option<Soak>) -> Result<Round> {
    let Testbed { lab, mut generator, forwarder_devices } = testbed(scenario, setup, soak, None)?;
    let mut forwarder = match scenario.forwarder {
        Forwarder::Tidegate => Some(tidegate::start(&lab, scenario, setup, &forwarder_devices, None)?),
        Forwarder::Testpmd => Some(testpmd::start(&lab, setup, &forwarder_devices)?),
        Forwarder::Kernel => {
            kernel::start(&lab, scenario, setup)?;
            None
        }
    };
    // The results of a long soak are larger than a pipe, so they are read while the generator writes them.
    let mut results = generator.stdout.take().context("the generator's output is a pipe")?;
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        results.read_to_end(&mut all).map(|_| all)
    });
    let mut samples = Vec::new();
    if let (Some(soak), Some(process)) = (soak, &forwarder) {
        samples = tidegate::change_backends(&lab, scenario, process, soak, || {
            generator.try_wait().ok().flatten().is_some()
        })?;
    }
    let status = generator.wait()?;
    let out = reading.join().expect("reading does not panic")?;
    match serde_json::from_slice(&out).ok() {
        Some(measured) if status.success() => Ok(Round { measured, samples }),
        _ => bail!(
            "{}: the generator failed{}",
            scenario.name(),
            forwarder.as_mut().map_or_else(String::new, log_end)
        ),
    }
}
