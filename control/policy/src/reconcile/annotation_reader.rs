//! Reads the annotations of one Service and collects findings about them.

use std::sync::Arc;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::Metadata;
use tidegate_model::yaml::text;

use super::annotations::annotation_field;
use super::finding::{Finding, Reason};

/// The annotations of one Service, and the list for findings.
pub(super) struct Reader<'a> {
    pub(super) meta: &'a Metadata,
    pub(super) findings: &'a mut Vec<Finding>,
    /// While an alias is applied: its value as written.
    pub(super) written: Option<String>,
}

impl Reader<'_> {
    /// Reports an invalid value. The default is used.
    pub(super) fn invalid(&mut self, annotation: &str, value: &str, accepted: &str) {
        let written = self.written.clone();
        let value = text::shown(written.as_deref().unwrap_or(value));
        let what = format!("annotation {annotation}: {value:?} is invalid: the default is used");
        self.invalid_at(&annotation_field(annotation), what, accepted);
    }

    /// Like [`Self::invalid`], with a different text.
    pub(super) fn invalid_at(&mut self, field: &str, what: String, accepted: &str) {
        self.push(field, Reason::InvalidValue, error(what, accepted));
    }

    pub(super) fn ignored(&mut self, annotation: &str, why: &str, accepted: &str) {
        let what = format!("annotation {annotation} has no effect: {why}");
        let finding = Diagnostic::warning(what).accepting(accepted);
        let is_ours = annotation.starts_with("tidegate.dev/");
        let reason = if is_ours { Reason::InvalidValue } else { Reason::AliasIgnored };
        self.push(&annotation_field(annotation), reason, finding);
    }

    /// Reports a valid request that is not supported yet; an alternative is used instead.
    pub(super) fn not_supported(&mut self, annotation: &str, what: String, accepted: &str) {
        self.push(&annotation_field(annotation), Reason::NotSupported, error(what, accepted));
    }

    pub(super) fn namespace(&self) -> Arc<str> {
        self.meta.key.namespace.as_str().into()
    }

    pub(super) fn has(&self, annotation: &str) -> bool {
        self.meta.annotations.contains_key(annotation)
    }

    /// Adds a finding about the value at `field`.
    pub(super) fn push(&mut self, field: &str, reason: Reason, diagnostic: Diagnostic) {
        self.findings.push(Finding::at(self.meta, field, reason, diagnostic));
    }
}

pub(super) fn error(what: String, accepted: &str) -> Diagnostic {
    Diagnostic::error(what).accepting(accepted)
}
