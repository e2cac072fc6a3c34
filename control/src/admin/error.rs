//! Why the daemon does not answer a request as asked, by HTTP status.

/// Why a request is not answered as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// 400: the request is faulty.
    #[error("{0}")]
    BadRequest(String),
    /// 404: what it is about does not exist.
    #[error("{0}")]
    NotFound(String),
    /// 405: the path takes another method.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// 503: not now.
    #[error("{0}")]
    Unavailable(String),
}
