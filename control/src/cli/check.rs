//! `tidegate check`: reports all faults of the configuration and the manifests.
//!
//! Faults go to standard output, one per line, sorted by position, in the format of compilers; or as one object with
//! `-o json` and `-o yaml`. A summary goes to standard error. The exit code is 2 if anything is refused, and 0 if there
//! are only warnings or no faults.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_cli::REFUSED;
use tidegate_cli::output::{Format, Style};
use tidegate_model::diagnostic::{Diagnostic, Report};

use super::load;

/// `-o` of `check`, whose text is no table.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct CheckOutput {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = CheckFormat::Text)]
    output: CheckFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CheckFormat {
    /// A line for each fault
    Text,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
}

/// The result as data.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Checked {
    /// The configuration file.
    config: String,
    /// Whether anything is refused.
    refused: bool,
    services: usize,
    /// Service ports on VIPs.
    service_ports: usize,
    faults: Vec<Fault>,
}

#[derive(Serialize)]
struct Fault {
    /// `error` or `warning`.
    severity: String,
    /// The file, or the object that is not in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<u32>,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted: Option<String>,
}

impl From<&Diagnostic> for Fault {
    fn from(fault: &Diagnostic) -> Self {
        let location = fault.location.as_ref();
        let in_file = location.filter(|location| location.line > 0);
        Self {
            severity: fault.severity.to_string(),
            path: location.map(|location| location.path.to_string()),
            line: in_file.map(|location| location.line),
            column: in_file.map(|location| location.column),
            what: fault.what.clone(),
            accepted: fault.accepted.clone(),
        }
    }
}

pub(super) fn run(config: &Path, output: CheckOutput) -> anyhow::Result<ExitCode> {
    let checked = load::offline(config);
    let refused = checked.report.has_errors();
    let services = checked.objects.services.len();
    let service_ports = checked.outcome.map_or(0, |outcome| outcome.spec.services.len());
    let mut out = io::stdout().lock();
    let format = match output.output {
        CheckFormat::Text => None,
        CheckFormat::Json => Some(Format::Json),
        CheckFormat::Yaml => Some(Format::Yaml),
    };
    match format {
        None => write!(out, "{}", checked.report)?,
        Some(format) => {
            let faults = checked.report.iter().map(Into::into).collect();
            let config = config.display().to_string();
            let checked = Checked { config, refused, services, service_ports, faults };
            Style { format, no_headers: false }.print_data(&mut out, &checked)?;
        }
    }
    out.flush()?;
    let sum = sum(&checked.report);
    if refused {
        eprintln!("{}: refused: {sum}", config.display());
        return Ok(ExitCode::from(REFUSED));
    }
    eprintln!("{}: ok: {services} Services, {service_ports} service ports on VIPs{sum}", config.display());
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
