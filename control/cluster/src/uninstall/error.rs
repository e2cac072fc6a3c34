//! Why an uninstallation failed.

use crate::request::RequestError;

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum UninstallError {
    /// The API server could not be reached, or refused a required request.
    #[error("{what}: {why}")]
    Request {
        /// The request.
        what: String,
        /// The error.
        why: String,
    },
    /// Writes that were refused in the dry run.
    #[error("nothing was changed: the API server refuses {} of the writes: {}", .0.len(), .0.join("; "))]
    Refused(Vec<String>),
}

/// Converts a failed request to an error that names the request.
pub(super) fn failed(what: impl Into<String>) -> impl FnOnce(RequestError) -> UninstallError {
    let what = what.into();
    move |error| UninstallError::Request { what, why: error.to_string() }
}
