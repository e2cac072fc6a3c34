//! What the tables answer: to a first look-up, and where a flow is not taken in.

/// The result of searching one bucket of a key. The first one is nearly always sufficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First<T> {
    /// The flow is established and in use, and the packet is plain. The packet has been recorded.
    Steady(T),
    /// The flow is there. The packet changes its state, or is the first one for a while. Nothing has been recorded.
    There,
    /// The flow is not in this bucket.
    Absent,
}

impl<T> First<T> {
    #[inline(always)]
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> First<U> {
        match self {
            Self::Steady(found) => First::Steady(to(found)),
            Self::There => First::There,
            Self::Absent => First::Absent,
        }
    }
}

/// No flow can be evicted for a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("every flow that could be evicted is established and in use")]
pub struct Full;

/// Why a pair was not inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// Another flow has the same replies.
    #[error("another flow has the same replies")]
    Conflict,
    /// See [`Full`].
    #[error("every flow that could be evicted is established and in use")]
    Full,
    /// The service has reached its share of a full table, and none of its flows near the new one can be evicted.
    #[error("the service has its share of a full table")]
    Share,
}
