//! `tidegate-demo`: real clients reach real servers through the real gateway, in every forwarding mode.
//!
//! It builds a lab of namespaces, starts `tidegate run` in the gateway's namespace, sends HTTP, UDP and SCTP over every
//! path, kills a backend under load, adds one, floods two Services with SYNs, and prints the results. This file,
//! [`steps`] and [`flood`] decide what is expected; [`report`] prints it. The demo uses only the daemon's public
//! interfaces, as a user would.
//!
//! [`fleet`] is another demonstration, `tidegate-demo --fleet`: two gateways behind a router.
//!
//! Invariant: the lab is removed in any case, including Ctrl-C. The demo succeeds only if every path behaved as its
//! mode specifies.

pub mod fleet;
mod flood;
mod report;
mod steps;

use crate::flood::routes;
use crate::gateway::manifests_of;
use crate::{Gateway, GatewayOptions, Lab, LabPlan, cleanup, modes};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;
use steps::{FIRST_SERVERS, SERVERS};

/// The options of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoOptions {
    /// Keep the lab after the last step, until Ctrl-C.
    pub keep: bool,
    /// Do not use hugepages, even if there are some.
    pub no_hugepages: bool,
    /// Run the demonstration of a fleet, with this number of connections of each Service.
    pub fleet: Option<usize>,
    /// The `tidegate` binary.
    pub tidegate: PathBuf,
}

/// Runs the demo and prints the results. The exit code is 0 only if everything worked.
pub fn run(options: &DemoOptions) -> ExitCode {
    if let Some(connections) = options.fleet {
        return fleet::show(connections, &options.tidegate);
    }
    match show(options) {
        Ok(problems) if problems.is_empty() => {
            println!("\nEverything worked.");
            ExitCode::SUCCESS
        }
        Ok(problems) => {
            println!("\n{} things did not work:", problems.len());
            problems.iter().for_each(|problem| println!("  - {problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("\ndemo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the lab, runs the steps, and removes the lab. Returns the problems.
fn show(options: &DemoOptions) -> Result<Vec<String>> {
    let begin = Instant::now();
    cleanup::on_signals()?;
    let gateway_options = GatewayOptions {
        hugepages: !options.no_hugepages && hugepages_suffice(),
        routes: routes(),
        ..GatewayOptions::default()
    };

    let mut lab = Lab::build(&LabPlan {
        servers: SERVERS,
        vips: modes::vips_on_servers(),
        tidegate: options.tidegate.clone(),
    })?;
    lab.start_servers()?;
    let _sctp = (1..=SERVERS).map(|n| lab.server(n).start_sctp()).collect::<Result<Vec<_>>>()?;
    Gateway::configure(&lab, &gateway_options)?;
    for manifest in modes::with_sctp(modes::manifests_of(&modes::demo_paths(), &FIRST_SERVERS)) {
        manifest.write(&manifests_of(&lab))?;
    }
    let mut gateway = Gateway::start(&lab)?;
    println!(
        "Lab {}: a client, a gateway (DPDK net_af_packet, {}) and {SERVERS} servers, each in its own namespace. \
         Ready after {:.1} s.\n",
        lab.id(),
        if gateway_options.hugepages { "hugepages" } else { "no hugepages" },
        begin.elapsed().as_secs_f64()
    );

    let outcome = steps::all(&mut lab, &gateway, &gateway_options);
    if !gateway.runs() {
        bail!("the gateway died; the end of its log:\n{}", gateway.log_tail(40));
    }
    let mut problems =
        outcome.with_context(|| format!("end of the gateway's log:\n{}", gateway.log_tail(20)))?;
    if !problems.is_empty() {
        println!("\nEnd of the gateway's log:\n{}", gateway.log_tail(20));
    }

    if options.keep {
        stay(&lab);
    }
    let ended = gateway.stop()?;
    if !ended.success() {
        problems.push(format!("the gateway ended with {ended} on SIGTERM"));
    }
    Ok(problems)
}

/// Prints how to inspect the lab, and waits for Ctrl-C (which cleans up and ends the process).
fn stay(lab: &Lab) -> ! {
    let (id, directory) = (lab.id(), lab.directory().display());
    println!("\nThe lab stays up until Ctrl-C. Try:");
    println!("  ip netns exec {id}-client curl http://{}/", modes::all_paths()[2].http());
    println!("  ip netns exec {id}-s1 tcpdump -ni eth0");
    println!("  tidegate status --socket {directory}/tidegate.sock");
    println!("  edit {directory}/manifests/*.yaml; the log is {directory}/gateway.log");
    loop {
        thread::park();
    }
}

/// Whether there are enough free 2-MiB hugepages for the gateway's memory.
fn hugepages_suffice() -> bool {
    let text = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    let pages: u32 = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    pages >= crate::gateway::MEMORY_MIB / 2
}
