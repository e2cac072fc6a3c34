//! The result of the first look-up of a key, which searches one of its two hash buckets.

/// The result of searching one hash bucket of a key. The first one is nearly always sufficient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First<T> {
    /// The flow is established and in use, and the packet is plain. The packet has been recorded.
    Steady(T),
    /// The flow was found, but the packet changes its state, or is the first one for a while. Nothing has been
    /// recorded.
    Present,
    /// The flow is not in this hash bucket.
    Absent,
}

impl<T> First<T> {
    #[inline(always)]
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> First<U> {
        match self {
            Self::Steady(found) => First::Steady(to(found)),
            Self::Present => First::Present,
            Self::Absent => First::Absent,
        }
    }
}
