//! Why a request to the API server failed, and what that means for the next one.

use std::time::Duration;

use crate::kubernetes::kinds::Kind;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::kubernetes) enum Fault {
    /// There is no client, because of the kubeconfig or the credentials.
    #[error("{0}")]
    Connect(String),
    /// The API server refused the request, with an HTTP status or in the watch.
    #[error("the API server responded with {code}: {message}")]
    Refused { code: u16, message: String, retry_after: Option<Duration> },
    /// Nothing was received for this time.
    #[error("nothing received from the API server for {0:?}")]
    TimedOut(Duration),
    /// The API server doesn't respond on the connection of a watch, which may never notice that.
    #[error("the API server stopped responding")]
    Dead,
    /// The response exceeds the limit.
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// TCP, TLS or HTTP failed, or the response was truncated.
    #[error("{0}")]
    Broken(String),
    /// The response doesn't conform to the API.
    #[error("the response is invalid: {0}")]
    InvalidResponse(String),
    /// The watch reported a version before its start.
    #[error("the API server went back in time: it sent resourceVersion {now} after {before}")]
    VersionDecreased { before: u64, now: u64 },
    /// The history lacks a change that a watch reported, even if its current version is higher.
    #[error("the API server went back in time: it lacks resourceVersion {version} of {key}")]
    MissingChange { key: String, version: u64 },
    /// The API server has the history of another cluster, so versions can't be compared.
    #[error("the API server belongs to another cluster than before")]
    OtherCluster,
    /// Objects of another kind show that the API server has another history.
    #[error(
        "objects of another kind show that the API server went back in time or belongs to another cluster"
    )]
    OtherKind,
}

impl Fault {
    /// Whether the API server responded, and only this request failed.
    pub(in crate::kubernetes) fn is_response(&self) -> bool {
        match self {
            Self::Refused { code, .. } => (400..500).contains(code),
            Self::TooLarge(_) | Self::InvalidResponse(_) => true,
            Self::VersionDecreased { .. }
            | Self::MissingChange { .. }
            | Self::OtherCluster
            | Self::OtherKind => true,
            Self::Connect(_) | Self::TimedOut(_) | Self::Dead | Self::Broken(_) => false,
        }
    }

    /// Whether the requested version is too old, so that only a list helps.
    pub(in crate::kubernetes) fn is_expired(&self) -> bool {
        matches!(self, Self::Refused { code: 410, .. }) || self.is_other_history()
    }

    /// Whether objects may be missing on the API server although they were never deleted.
    pub(in crate::kubernetes) fn is_other_history(&self) -> bool {
        matches!(
            self,
            Self::VersionDecreased { .. } | Self::MissingChange { .. } | Self::OtherCluster | Self::OtherKind
        )
    }

    /// Whether the API server doesn't allow the gateway to read the kind.
    pub(in crate::kubernetes) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403 | 406, .. })
    }

    /// Whether the API server doesn't seem to have the kind, which is optional. A list confirms that.
    pub(in crate::kubernetes) fn is_absence(&self, kind: &Kind) -> bool {
        kind.optional && matches!(self, Self::Refused { code: 404, .. })
    }

    /// Adds a hint if the missing kind is one that every supported API server has.
    pub(in crate::kubernetes) fn of_old_server(self, kind: &Kind) -> Self {
        match self {
            Self::Refused { code: 404, message, retry_after } if !kind.optional => {
                let message = format!("{message}; Kubernetes 1.21 or newer is needed");
                Self::Refused { code: 404, message, retry_after }
            }
            other => other,
        }
    }
}
