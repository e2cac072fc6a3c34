//! The whole process at scale: the real `tidegate run` behind an API server, measured from outside.
//!
//! ```text
//!   gateway's namespace                             client's namespace
//!   API server <-HTTPS- tidegate run [DPDK] == veth, bridge, veth == packets, probes, backends (any address)
//! ```
//! `control-run` starts the test API server in its own process, with Services, EndpointSlices, Nodes, Pods and
//! Namespaces. It starts the release binary `tidegate` from its own directory, on DPDK's af_packet driver and with the
//! rights of `deploy/`: the lease, the status and events are written. It measures the first sync, and then 100 writes a
//! second over HTTPS. Each write replaces one endpoint; packets show when the workers apply the change. It counts the
//! packets sent and received meanwhile. It measures memory as the difference between clusters of several sizes.
//!
//! Everything shares the machine with the gateway, so the figures include that load. It needs root and a release build
//! of the binary. `benches/README.md` describes the options; results are in `benches/results/`.

mod changes;
mod daemon;
mod figures;
mod packets;
mod plan;
mod probes;
mod scrapes;
mod serve;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use daemon::{Daemon, Memory};
use plan::Plan;
use tidegate_control_bench::cluster::Variant;
use tidegate_control_bench::world::Size;
use tidegate_netlab::{Lab, LabPlan, cleanup};

fn main() -> Result<()> {
    let mut plan = Plan {
        size: Size { services: 10_000, endpoints: 10 },
        variant: Variant { has_status: true, checked: 0, has_pods: true },
        rate: 100,
        time: Duration::from_secs(60),
        packets: 10_000,
        scrape: Duration::ZERO,
        scrapes: 0,
        measures_sizes: false,
    };
    let mut serve = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--services" => plan.size.services = value()?.parse()?,
            "--endpoints" => plan.size.endpoints = value()?.parse()?,
            "--rate" => plan.rate = value()?.parse()?,
            "--seconds" => plan.time = Duration::from_secs(value()?.parse()?),
            "--packets" => plan.packets = value()?.parse()?,
            "--checked" => plan.variant.checked = value()?.parse()?,
            "--scrape" => plan.scrape = Duration::from_secs(value()?.parse()?),
            "--scrapes" => plan.scrapes = value()?.parse()?,
            "--fresh" => plan.variant.has_status = false,
            "--without-pods" => plan.variant.has_pods = false,
            "--sizes" => plan.measures_sizes = true,
            "--serve" => serve = Some(value()?),
            _ => bail!(
                "{argument:?} is not known; accepted: --services, --endpoints, --rate, --seconds, --packets, \
                 --checked, --scrape, --scrapes, --fresh, --without-pods, --sizes"
            ),
        }
    }
    match serve {
        Some(directory) => serve::run(&plan, Path::new(&directory)),
        None => measure(&plan),
    }
}

fn measure(plan: &Plan) -> Result<()> {
    cleanup::on_signals()?;
    let services = plan.size.services;
    println!("{services} Services, {} endpoints, {:?}\n", plan.size.all(), plan.variant);
    let mut sizes = Vec::new();
    if plan.measures_sizes {
        for size in [Size { services: 2, endpoints: 1 }, Size { services, endpoints: 1 }] {
            let (lab, daemon) = start(plan, size)?;
            sizes.push((size, daemon.memory()?));
            drop((daemon, lab));
        }
    }
    let (lab, mut daemon) = start(plan, plan.size)?;
    println!("{}", daemon.first_sync()?);
    sizes.push((plan.size, daemon.memory()?));
    daemon.wait_until_idle()?;
    if plan.scrapes > 0 {
        println!("{}", scrapes::measure(&mut daemon, plan.scrapes)?);
        return Ok(());
    }
    let idle = daemon.memory()?;

    let vip = daemon.vip()?;
    let before = daemon.metrics()?;
    let (cpu, began) = (daemon.cpu()?, std::time::Instant::now());
    let traffic = packets::Traffic::start(&lab, plan, &vip)?;
    let probes = probes::Probes::start(&lab, plan.size, &vip)?;
    let scraped = daemon.scrape_each(plan.scrape);
    let written = changes::write(&lab, plan, &probes)?;
    let scraped = scraped.stop()?;
    let seen = probes.stop();
    let counts = traffic.stop()?;
    let (cpu, took) = (daemon.cpu()? - cpu, began.elapsed());
    let after = daemon.metrics()?;

    print!("{written}");
    print!("{seen}");
    print!("{}", figures::Programming::between(&before, &after));
    print!("{counts}");
    print!("{}", figures::lost(&before, &after));
    println!("the gateway had {:.2} CPUs, its worker included", cpu.as_secs_f64() / took.as_secs_f64());
    if let Some(scraped) = scraped {
        println!("{scraped}");
    }
    let end = daemon.memory()?;
    println!("\n{}", Memory::HEAD);
    for (size, memory) in &sizes {
        println!("{}", memory.row(&format!("{} x {} after the first sync", size.services, size.endpoints)));
    }
    println!("{}", idle.row("before the changes"));
    println!("{}", end.row("after the changes"));
    if let [(small, least), (_, services), (large, most)] = &*sizes {
        let a_service = per(services.own() - least.own(), large.services - small.services);
        let an_endpoint = per(most.own() - services.own(), large.all() - large.services);
        println!(
            "\na Service with its slice and one endpoint: {a_service} bytes; an endpoint more: {an_endpoint}"
        );
    }
    Ok(())
}

fn per(bytes: u64, count: usize) -> u64 {
    bytes / u64::try_from(count.max(1)).expect("a count")
}

/// Starts a lab with an API server that has a cluster of this size, and a gateway that has synced with it.
fn start(plan: &Plan, size: Size) -> Result<(Lab, Daemon)> {
    let binary = std::env::current_exe()?.with_file_name("tidegate");
    if !binary.is_file() {
        bail!("no {}: cargo build --release -p tidegate", binary.display());
    }
    let lab = Lab::build(&LabPlan { servers: 0, vips: Vec::new(), tidegate: binary })?;
    packets::prepare(&lab)?;
    let daemon = Daemon::start(&lab, &Plan { size, ..plan.clone() })?;
    Ok((lab, daemon))
}
