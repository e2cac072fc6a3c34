//! The result of [`reconcile`](super::reconcile).

use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::{HealthCheckNodePort, Targets};
use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;
use tidegate_spec::SnapshotSpec;

use super::finding::Finding;
use super::input::Memory;
use super::view::ServiceView;
use crate::pools::PoolUsage;

/// The desired state. A copy shares the contents.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The spec for the dataplane.
    pub spec: SnapshotSpec,
    /// The requests that were not granted, sorted and without duplicates. The slice is shared as long as nothing
    /// changes.
    pub findings: Arc<[Finding]>,
    /// Services that request an address, sorted by namespace and name.
    pub services: Vec<Arc<ServiceView>>,
    /// The targets of health checks.
    pub targets: Targets,
    /// The health-check node ports to listen on, sorted by port. The slice is shared as long as nothing changes.
    pub health_check_node_ports: Arc<[HealthCheckNodePort]>,
    /// The usage of the pools: first the configured pools, then AddressPools by name.
    pub pools: Vec<PoolUsage>,
    /// Services whose LoadBalancer address this gateway assigns.
    pub claimed: SharedMap<ObjectKey, ()>,
    /// The input of the next call.
    pub memory: Memory,
    /// When to call again even if nothing changes, because something expires then.
    pub reconcile_at: Option<Duration>,
}
