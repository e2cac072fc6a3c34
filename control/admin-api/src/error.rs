//! Why the daemon refuses a request, by HTTP status.

use serde::{Deserialize, Serialize};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// 400: the request is invalid.
    #[error("{0}")]
    BadRequest(String),
    /// 404: the requested object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// 405: the path requires a different method.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// 409: the state of the gateway does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// 503: the request cannot be answered now.
    #[error("{0}")]
    Unavailable(String),
}

/// The body of every answer with a status other than 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorAnswer {
    /// The error, and what would be accepted.
    pub error: String,
}
