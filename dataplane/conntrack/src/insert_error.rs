//! Why a table refuses a new flow.

/// Why a flow was not inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// Another flow has the same replies. Only NAT flows have replies.
    #[error("the replies would look like those of another flow")]
    Conflict,
    /// No flow can be evicted for the new one.
    #[error("no flow can be evicted: all candidates are established and in use")]
    Full,
    /// The service has reached its share of a full table, and none of its flows near the new one can be evicted.
    #[error("the service has reached its share of a full table")]
    Share,
}
