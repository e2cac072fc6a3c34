//! The requests of one Service that were not granted.
//!
//! Users decide how many addresses and ports a Service requests, and a refused request is checked again whenever
//! addresses may have become free. So only the first problems of each kind are described, and the others are counted.

use std::collections::BTreeMap;

use tidegate_model::diagnostic::Severity;

use super::{Problem, ProblemKind};

/// The maximum number of problems of one kind that are described.
pub const DESCRIBED_MAX: usize = 32;

/// The requests of a Service that were not granted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    described: Vec<Problem>,
    counts: BTreeMap<ProblemKind, (usize, Option<Severity>)>,
}

impl Problems {
    /// Adds a problem. `describe` is called only for the first [`DESCRIBED_MAX`] problems of a kind.
    pub(super) fn add(&mut self, kind: ProblemKind, describe: impl FnOnce() -> Problem) {
        let (count, worst) = self.counts.entry(kind).or_default();
        *count += 1;
        if *count <= DESCRIBED_MAX {
            let problem = describe();
            *worst = Some(worst.map_or(problem.severity, |worst| worst.min(problem.severity)));
            self.described.push(problem);
        }
    }

    /// Adds problems that were described already.
    pub(super) fn extend(&mut self, problems: impl IntoIterator<Item = Problem>) {
        problems.into_iter().for_each(|problem| self.add(problem.kind, || problem));
    }

    /// The problems that are described.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.described
    }

    /// For each kind with problems that are not described: their number, and the worst severity of the kind.
    pub fn not_described(&self) -> impl Iterator<Item = (ProblemKind, usize, Severity)> {
        let too_many = self.counts.iter().filter(|(_, (count, _))| *count > DESCRIBED_MAX);
        too_many
            .map(|(kind, (count, worst))| (*kind, count - DESCRIBED_MAX, worst.unwrap_or(Severity::Error)))
    }
}
