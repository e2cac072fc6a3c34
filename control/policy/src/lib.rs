//! Decisions on the objects, as pure functions: [`reconcile`] computes the desired state of the dataplane, [`pools`]
//! decides which Service has which address, [`explain`] shows the decision for one packet.
//!
//! May depend on: `tidegate-model` (the inputs) and `tidegate-pipeline` (the outputs, and the functions that decide on
//! packets). May not: a clock, a file, a socket, a thread, a source of objects, the dataplane. The tests read their
//! objects with `tidegate-source`, and query the real listeners of `tidegate-health`.

pub mod explain;
mod largest_first;
pub mod pools;
pub mod reconcile;
