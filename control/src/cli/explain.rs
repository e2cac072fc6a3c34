//! `tidegate explain`: the decision for one packet, of files or of the running daemon.
//!
//! The exit code is 0 whatever becomes of the packet: the question was answered. With `-c` faults of manifests go
//! to standard error and what they cost shows in the answer.

use std::io;
use std::process::ExitCode;

use anyhow::anyhow;
use tidegate_core::neighbors::NeighborTable;
use tidegate_core::snapshot::Snapshot;

use super::output::Table;
use super::{ExplainArgs, OutputArgs, REFUSED, load};
use crate::explain::{Circumstances, Explanation, Packet, explain};

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let packet = Packet { protocol: args.proto, source: args.src, destination: args.dst };
    let Some(config) = &args.config else {
        return Err(anyhow!("-c FILE is missing"));
    };
    let files = load::offline(config);
    eprint!("{}", files.report);
    let Some(outcome) = files.outcome else { return Ok(ExitCode::from(REFUSED)) };
    let neighbors = NeighborTable::new();
    let (snapshot, _) = Snapshot::compile(&outcome.spec, None, &neighbors)?;
    let protocol = packet.protocol.to_string();
    let refused =
        load::refusal(&outcome.services, packet.destination.ip(), &protocol, packet.destination.port());
    let about = Circumstances { neighbors: &neighbors, refused: refused.as_deref(), known_flow: None };
    print(args.output, &explain(&snapshot, about, &packet))?;
    Ok(ExitCode::SUCCESS)
}

/// Steps as text or, with `-o json` and `-o yaml`, as data.
fn print(output: OutputArgs, told: &Explanation) -> io::Result<()> {
    use super::output::Format;
    use std::io::Write as _;
    let mut out = io::stdout().lock();
    match output.output {
        Format::Table | Format::Wide => write!(out, "{told}"),
        Format::Json | Format::Yaml => output.style().print(&mut out, told, || Table::new(&[])),
    }
}
