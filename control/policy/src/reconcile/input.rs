//! The inputs of [`reconcile`](super::reconcile).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::Verdicts;
use tidegate_model::objects::Objects;

use super::drain::{DrainTarget, Drains};
use super::removed_ports::RemovedPorts;
use super::settings::Settings;
use crate::pools::Allocations;

/// All inputs of the desired state.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The settings of the gateway.
    pub settings: &'a Settings,
    /// The objects of the source.
    pub objects: &'a Objects,
    /// The results of the checks.
    pub verdicts: &'a Verdicts,
    /// The targets that operators drained.
    pub drained: &'a BTreeSet<DrainTarget>,
    /// [`Outcome::memory`](super::Outcome::memory) of the last call; the default at the start.
    pub memory: &'a Memory,
    /// The generation of the resulting spec.
    pub generation: u64,
    /// Time since the daemon started.
    pub now: Duration,
}

/// The state that one call passes to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// The assigned addresses, so that Services keep them.
    pub allocations: Arc<Allocations>,
    /// Removed backends, so that their flows continue.
    pub drains: Drains,
    /// The programmed service ports, so that flows of removed Services continue.
    pub removed_ports: RemovedPorts,
}
