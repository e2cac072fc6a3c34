//! Why nothing was uninstalled.

use crate::request::RequestError;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The API server could not be reached, or refused what is needed first.
    #[error("{what}: {why}")]
    Request {
        /// What was asked for.
        what: String,
        /// The answer.
        why: String,
    },
    /// Writes that the dry run refused.
    #[error("nothing was changed: the API server refuses {} of the writes: {}", .0.len(), .0.join("; "))]
    Refused(Vec<String>),
}

/// Makes it of a request that failed, with what was asked for.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(RequestError) -> UninstallError {
    let what = what.into();
    move |error| UninstallError::Request { what, why: error.to_string() }
}
