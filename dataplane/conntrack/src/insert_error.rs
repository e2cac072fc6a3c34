//! Why a table refuses a new flow.

/// No flow can be evicted for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no flow can be evicted: all candidates are established and in use")]
pub struct Full;

/// Why a pair was not inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// Another flow has the same replies.
    #[error("the replies would look like those of another flow")]
    Conflict,
    /// See [`Full`].
    #[error("no flow can be evicted: all candidates are established and in use")]
    Full,
    /// The service has reached its share of a full table, and none of its flows near the new one can be evicted.
    #[error("the service has reached its share of a full table")]
    Share,
}
