//! `tidegate explain`: shows the decision for one packet, from files or from the running daemon.
//!
//! The exit code is 0 whatever the decision is. With `-c`, faults of manifests go to standard error, and the answer
//! reflects them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidegate_cli::output::print_answer;
use tidegate_cli::{ExplainArgs, REFUSED};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_spec::now::Now;

use super::load;
use crate::explain::{Circumstances, explain, pool_of, refusal};

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(super) struct ExplainCommand {
    /// Use this configuration and its manifests instead of a running gateway; all backends count as healthy
    #[arg(short, long, value_name = "FILE", num_args = 0..=1, default_missing_value = tidegate_cli::CONFIG,
        conflicts_with = "socket")]
    config: Option<PathBuf>,
    #[command(flatten)]
    of_gateway: ExplainArgs,
}

pub(super) fn run(args: &ExplainCommand) -> anyhow::Result<ExitCode> {
    let ExplainCommand { config: Some(config), of_gateway } = args else {
        return args.of_gateway.run();
    };
    let packet = of_gateway.packet();
    let files = load::offline(config);
    eprint!("{}", files.report);
    let Some(outcome) = files.outcome else { return Ok(ExitCode::from(REFUSED)) };
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&outcome.spec, None, &neighbors)?;
    let refused = refusal(&outcome.services, &packet);
    let (refused, now) = (refused.as_deref(), Now::default());
    let pool = pool_of(&outcome.pools, &packet);
    let about = Circumstances { pool, ..Circumstances::of_files(&neighbors, now, refused) };
    print_answer(of_gateway.output.style(), &explain(&snapshot, about, &packet))?;
    Ok(ExitCode::SUCCESS)
}
