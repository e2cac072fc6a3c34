//! What a check found: what, why it matters, and what to type. And the report that prints all findings.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// The gateway works, but slower or less safely than it could.
    Warning,
    /// The gateway doesn't start, or doesn't do what is configured.
    Fault,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Fault => "fault",
        })
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, such as `hugepages`.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub what: String,
    /// Why it matters; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What to type or to change; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// Nothing is wrong.
    pub(crate) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, what: what.into(), why: None, fix: None }
    }

    /// A warning.
    pub(crate) fn warning(
        check: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (why, fix) = (Some(why.into()), Some(fix.into()));
        Self { check, level: Level::Warning, what: what.into(), why, fix }
    }

    /// A fault.
    pub(crate) fn fault(
        check: &'static str,
        what: impl Into<String>,
        why: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fault, ..Self::warning(check, what, why, fix) }
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The number of faults.
    pub faults: usize,
    /// The number of warnings.
    pub warnings: usize,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The report of these findings.
    #[must_use]
    pub fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self { faults: count(Level::Fault), warnings: count(Level::Warning), findings }
    }
}

impl fmt::Display for Report {
    /// One line for each finding, followed by why it matters and what to type. Control characters are escaped: some
    /// of the text comes from other programs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for Finding { check, level, what, why, fix } in &self.findings {
            writeln!(f, "{level:<9}{check:<width$}  {}", printable(what))?;
            for (name, text) in [("why", why), ("do", fix)] {
                if let Some(text) = text {
                    writeln!(f, "{:9}{:width$}  {name:>4}: {}", "", "", printable(text))?;
                }
            }
        }
        let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let (faults, warnings) = (plural(self.faults, "fault"), plural(self.warnings, "warning"));
        writeln!(f, "{faults}, {warnings}, {} ok", self.findings.len() - self.faults - self.warnings)
    }
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_why_and_what_to_type() {
        let report = Report::new(vec![
            Finding::ok("cores", "core 1 exists"),
            Finding::fault("hugepages", "none\u{1b}", "it does not start", "sysctl vm.nr_hugepages=512"),
        ]);
        let text = "ok       cores      core 1 exists\nfault    hugepages  none\\u{1b}\n                     why: it does not start\n                      do: sysctl vm.nr_hugepages=512\n1 fault, 0 warnings, 1 ok\n";
        assert_eq!(report.to_string(), text);
    }
}
