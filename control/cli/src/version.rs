//! `version`: what was built, from which commit, and with which DPDK.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::args::OutputArgs;
use super::output::print_answer;

/// Options of `version`.
#[derive(Debug, Clone, Copy, Args)]
pub struct VersionArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// The commit that was built: `TIDEGATE_COMMIT` of the build's environment, which `make release` sets.
pub const COMMIT: &str = match option_env!("TIDEGATE_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The answer of `version`.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
    commit: &'static str,
    /// Absent in the kubectl plugin.
    #[serde(skip_serializing_if = "Option::is_none")]
    dpdk: Option<String>,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tidegate {}, commit {}", self.version, self.commit)?;
        self.dpdk.as_ref().map_or(Ok(()), |dpdk| writeln!(f, "{dpdk}"))
    }
}

pub(super) fn run(args: VersionArgs, dpdk: Option<String>) -> anyhow::Result<ExitCode> {
    let version = Version { version: env!("CARGO_PKG_VERSION"), commit: COMMIT, dpdk };
    print_answer(args.output.style(), &version)?;
    Ok(ExitCode::SUCCESS)
}
