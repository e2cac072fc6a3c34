//! The rules by which the schedulers `lc`, `sed` and `nq` compare loads.

/// How loads are compared. The cost is divided by the weight, and the lowest quotient is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadRule {
    /// `lc`: 256 * active + ended.
    LeastConnections,
    /// `sed`, shortest expected delay: active + the new connection.
    ShortestDelay,
    /// `nq`, never queue: a backend without active connections if there is one, otherwise the rule of `sed`.
    NeverQueue,
}

impl LoadRule {
    /// The name in configuration and annotations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeastConnections => "lc",
            Self::ShortestDelay => "sed",
            Self::NeverQueue => "nq",
        }
    }
}
