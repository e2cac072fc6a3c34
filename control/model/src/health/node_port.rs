//! The answer of a health-check node port: `reconcile` computes it, `tidegate-health` serves it.

use crate::objects::{ObjectKey, Port};

/// A health-check node port and what it answers (`docs/kubernetes.md`, section 4).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthCheckNodePort {
    /// Where to listen.
    pub port: Port,
    /// Whose.
    pub service: ObjectKey,
    /// Distinct addresses of ready local endpoints.
    pub local_endpoints: usize,
}
