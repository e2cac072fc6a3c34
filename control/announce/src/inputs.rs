//! The inputs of the announcements: the state of the gateway, the configuration and the latest round.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_model::config::AnnounceConfig;
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::Outcome;

/// The state of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Every worker runs, every link is up, and a snapshot is applied.
    pub forwarding: bool,
    /// The gateway is drained or draining.
    pub draining: bool,
    /// It has started or was interrupted, and has not yet received the flows of its peers.
    pub catching_up: bool,
}

/// Whether this gateway serves an address.
pub type Serves = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The part of a round's result that matters for announcements.
#[derive(Clone)]
pub struct Round {
    /// The desired state.
    pub outcome: Arc<Outcome>,
    /// The Services whose latest state the workers have not applied yet.
    pub unapplied: Arc<BTreeSet<ObjectKey>>,
    /// Which VIPs this gateway serves.
    pub serves: Serves,
}

impl fmt::Debug for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round").field("unapplied", &self.unapplied).finish_non_exhaustive()
    }
}

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setup {
    /// `announce`.
    pub config: AnnounceConfig,
    /// The addresses of each of the gateway's interfaces.
    pub own: Vec<Vec<IpNet>>,
}
