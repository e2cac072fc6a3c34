//! `tidegate explain`: shows the decision for one packet, from files or from the running daemon.
//!
//! The exit code is 0 whatever the decision is. With `-c`, faults of manifests go to standard error, and the answer
//! shows their effect.

use std::process::ExitCode;

use tidegate_core::neighbors::NeighborTable;
use tidegate_core::now::Now;
use tidegate_core::snapshot::Snapshot;
use tidegate_policy::explain::{Circumstances, Packet, explain, refusal};

use super::args::ExplainArgs;
use super::invocation::REFUSED;
use super::output::print_answer;
use super::{ask, load};

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let packet = Packet::new(args.proto, args.src, args.dst);
    let Some(config) = &args.config else {
        return ask::explain(args, &packet);
    };
    let files = load::offline(config);
    eprint!("{}", files.report);
    let Some(outcome) = files.outcome else { return Ok(ExitCode::from(REFUSED)) };
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&outcome.spec, None, &neighbors)?;
    let refused = refusal(&outcome.services, &packet);
    let (refused, now) = (refused.as_deref(), Now::default());
    let about = Circumstances::of_files(&neighbors, now, refused);
    print_answer(args.output.style(), &explain(&snapshot, about, &packet))?;
    Ok(ExitCode::SUCCESS)
}
