//! `tidegate explain`: the decision for one packet, of files or of the running daemon.
//!
//! The exit code is 0 whatever becomes of the packet: the question was answered. With `-c` faults of manifests go
//! to standard error and what they cost shows in the answer.

use std::io::{self, Write as _};
use std::process::ExitCode;

use tidegate_core::neighbors::NeighborTable;
use tidegate_core::now::Now;
use tidegate_core::snapshot::Snapshot;
use tidegate_policy::explain::{Circumstances, Explanation, Packet, explain, refusal};

use super::{ExplainArgs, OutputArgs, REFUSED, load};

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let packet = Packet { protocol: args.proto, source: args.src, destination: args.dst };
    let Some(config) = &args.config else {
        return super::ask::explain(args, &packet);
    };
    let files = load::offline(config);
    eprint!("{}", files.report);
    let Some(outcome) = files.outcome else { return Ok(ExitCode::from(REFUSED)) };
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&outcome.spec, None, &neighbors)?;
    let refused = refusal(&outcome.services, &packet);
    let (refused, now) = (refused.as_deref(), Now::default());
    let about = Circumstances::of_files(&neighbors, now, refused);
    print(args.output, &explain(&snapshot, about, &packet))?;
    Ok(ExitCode::SUCCESS)
}

/// Steps as text or, with `-o json` and `-o yaml`, as data.
pub(super) fn print(output: OutputArgs, told: &Explanation) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let style = output.style();
    if style.is_data() { style.print_data(&mut out, told) } else { write!(out, "{told}") }
}
