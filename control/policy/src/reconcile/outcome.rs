//! What comes out of [`reconcile`](super::reconcile).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::snapshot::SnapshotSpec;
use tidegate_model::health::{HealthCheckNodePort, Targets};
use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;

use super::finding::Finding;
use super::input::Memory;
use super::view::ServiceView;
use crate::pools::PoolUsage;

/// The desired state. A copy shares what it is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// For the dataplane.
    pub spec: SnapshotSpec,
    /// What was not granted, sorted, each once. The same slice as long as nothing changes there.
    pub findings: Arc<[Finding]>,
    /// Services that ask for an address, sorted by namespace and name.
    pub services: Vec<Arc<ServiceView>>,
    /// What to check.
    pub targets: Targets,
    /// What to listen on for upstream load balancers, sorted by port. The same slice as long as nothing changes there.
    pub health_check_node_ports: Arc<[HealthCheckNodePort]>,
    /// How full the pools are: those of the configuration, then AddressPools by name.
    pub pools: Vec<PoolUsage>,
    /// Services whose LoadBalancer address is ours to give.
    pub claimed: SharedMap<ObjectKey, ()>,
    /// For the next call.
    pub memory: Memory,
    /// When to call again though nothing changes: the next drain ends then.
    pub reconcile_at: Option<Duration>,
}
