//! `tidegate check`: reports all faults of the configuration and the manifests.
//!
//! Faults go to standard output, one per line, sorted by position, in the format of compilers. A summary goes to
//! standard error. The exit code is 2 if anything is refused, and 0 if there are only warnings or no faults.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use tidegate_cli::REFUSED;
use tidegate_model::diagnostic::Report;

use super::load;

pub(super) fn run(config: &Path) -> anyhow::Result<ExitCode> {
    let checked = load::offline(config);
    let mut out = io::stdout().lock();
    write!(out, "{}", checked.report)?;
    out.flush()?;
    if checked.report.has_errors() {
        eprintln!("{}: refused: {}", config.display(), sum(&checked.report));
        return Ok(ExitCode::from(REFUSED));
    }
    let programmed = checked.outcome.map_or(0, |o| o.spec.services.len());
    let services = checked.objects.services.len();
    let sum = sum(&checked.report);
    eprintln!("{}: ok: {services} Services, {programmed} service ports on VIPs{sum}", config.display());
    Ok(ExitCode::SUCCESS)
}

fn sum(report: &Report) -> String {
    let count = |n: usize, word: &str| match n {
        1 => format!("1 {word}"),
        n => format!("{n} {word}s"),
    };
    let (errors, warnings) = (report.errors().count(), report.warnings().count());
    match (errors, warnings) {
        (0, 0) => String::new(),
        (0, _) => format!(", {}", count(warnings, "warning")),
        (_, 0) => count(errors, "error"),
        _ => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    }
}
