//! The text of the configuration, and the files that it names: what `check` says about them, file modes included.

use std::path::Path;

use tidegate_model::config::Loaded;
use tidegate_model::diagnostic::{Diagnostic, Severity};

use crate::finding::Finding;

const CHECK: &str = "configuration";

pub(super) fn check(path: &Path, loaded: &Loaded) -> Vec<Finding> {
    let mut findings: Vec<Finding> = loaded.report.iter().map(finding).collect();
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("{} has no fault", path.display())));
    }
    findings
}

fn finding(diagnostic: &Diagnostic) -> Finding {
    let what = diagnostic.with_location();
    let accepted = diagnostic.accepted.as_deref();
    let fix =
        accepted.map_or_else(|| "tidegate check -c FILE".to_owned(), |text| format!("accepted: {text}"));
    match diagnostic.severity {
        Severity::Error => Finding::fault(CHECK, what, "the gateway refuses this configuration", fix),
        Severity::Warning => Finding::warning(CHECK, what, "this is probably a mistake", fix),
    }
}
