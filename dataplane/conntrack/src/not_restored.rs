//! Why a flow of an earlier process does not continue.

/// Why a stored flow is not restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRestored {
    /// Its entries are inconsistent or incomplete, or the record of its service or backend is missing.
    Damaged,
    /// It has been idle for too long.
    Expired,
    /// Its service port is unknown or no longer exists.
    ServiceGone,
    /// Its backend is unknown or no longer exists.
    BackendGone,
    /// Its service port now has another forwarding mode.
    ModeChanged,
    /// Its client is no longer admitted.
    Denied,
    /// Another worker owns it.
    Elsewhere,
    /// The table already contains it, from a newer process.
    Known,
    /// No flow can be evicted for it.
    Full,
}

impl NotRestored {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Damaged,
        Self::Expired,
        Self::ServiceGone,
        Self::BackendGone,
        Self::ModeChanged,
        Self::Denied,
        Self::Elsewhere,
        Self::Known,
        Self::Full,
    ];

    /// The name in metrics and logs (`backend_gone`).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Expired => "expired",
            Self::ServiceGone => "service_gone",
            Self::BackendGone => "backend_gone",
            Self::ModeChanged => "mode_changed",
            Self::Denied => "denied",
            Self::Elsewhere => "elsewhere",
            Self::Known => "known",
            Self::Full => "full",
        }
    }
}
