//! What goes into [`reconcile`](super::reconcile).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::health::Verdicts;
use tidegate_model::objects::Objects;

use super::drain::{DrainTarget, Drains};
use super::leaving::Leavings;
use super::settings::Settings;
use crate::pools::Allocations;

/// Everything that the desired state follows from.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The gateway's own side.
    pub settings: &'a Settings,
    /// The objects of the source.
    pub objects: &'a Objects,
    /// What the checks found out.
    pub verdicts: &'a Verdicts,
    /// The targets that operators drained.
    pub drained: &'a BTreeSet<DrainTarget>,
    /// [`Outcome::memory`](super::Outcome::memory) of the last call; the default at the start.
    pub memory: &'a Memory,
    /// Generation of the spec to make.
    pub generation: u64,
    /// Time since the daemon started.
    pub now: Duration,
}

/// What one call leaves to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Addresses given, so that they stay.
    pub allocations: Arc<Allocations>,
    /// Backends that left, so that their flows stay.
    pub drains: Drains,
    /// What was programmed, so that flows of Services that leave stay.
    pub leavings: Leavings,
}
