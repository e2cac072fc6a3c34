//! `tidegate doctor`: reads the machine, runs all checks, and prints their findings.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tidegate_admin_api::{Client, Status};
use tidegate_cli::OutputArgs;
use tidegate_cli::output::print_answer;
use tidegate_model::config::{self, API_VERSION, GatewayConfig, KIND};

use crate::checks::{self, Subject};
use crate::finding::{Finding, Report};
use crate::machine::Machine;
use crate::network::Network;
use crate::target::{Target, runtime};

/// The maximum wait for the running gateway, and for the API server.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let report = runtime()?.block_on(examine(&Machine::here(), &args.target))?;
    print_answer(args.output.style(), &report)?;
    Ok(if report.faults > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs all checks.
pub(super) async fn examine(machine: &Machine, target: &Target) -> anyhow::Result<Report> {
    let path = target.config();
    let loaded = path.as_deref().map(config::load);
    let mut findings = match (&path, &loaded) {
        (Some(path), Some(loaded)) => checks::of_configuration(path, loaded),
        _ => {
            let what =
                "there is no configuration yet, so the defaults are checked: `tidegate init` writes one";
            vec![Finding::ok("configuration", what)]
        }
    };
    let config = loaded.and_then(|loaded| loaded.config.or(loaded.draft)).unwrap_or_else(defaults);
    let socket = target.socket().unwrap_or_else(|| config.admin.socket.clone());
    let gateway = status(&socket).await;
    let network = Network::read().context("cannot read the kernel's links, addresses and routes")?;
    let subject = Subject { machine, network: &network, config: &config, gateway: gateway.as_ref() };
    findings.extend(checks::of_machine(&subject));
    findings.extend(checks::of_neighbors(&subject));
    findings.extend(match tokio::time::timeout(ANSWER_MAX, checks::of_cluster(&config)).await {
        Ok(findings) => findings,
        Err(_) => {
            let what = format!("the API server does not answer within {} s", ANSWER_MAX.as_secs());
            let why = "the gateway gets no changes of Services";
            vec![Finding::fault("api", what, why, "does a firewall drop packets to it?")]
        }
    });
    Ok(Report::new(findings))
}

/// The status of the gateway, if one answers at this socket.
async fn status(socket: &Path) -> Option<Status> {
    tokio::time::timeout(ANSWER_MAX, Client::new(socket).status()).await.ok()?.ok()
}

/// A configuration with only default values.
fn defaults() -> GatewayConfig {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    config::parse(&text, "defaults", Path::new("."), cores).config.expect("the defaults are valid")
}
