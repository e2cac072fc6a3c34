//! The answer of a health-check node port: `reconcile` computes it, `tidegate-health` serves it.

use crate::objects::{ObjectKey, Port};

/// A health-check node port and its answer (`docs/kubernetes.md`, section 4).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthCheckNodePort {
    /// The port to listen on.
    pub port: Port,
    /// The Service.
    pub service: ObjectKey,
    /// The number of distinct addresses of ready local endpoints.
    pub local_endpoints: usize,
}
