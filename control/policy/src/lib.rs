//! Decisions on the objects, as pure functions: [`reconcile`] computes the desired state of the dataplane, [`pools`]
//! decides which Service has which address, and [`edge`] what an edge serves.
//!
//! May depend on: `tidegate-model` (the inputs), `tidegate-spec` (the outputs), `tidegate-wire` (types in the outputs),
//! `tidegate-select` (the history of seats), `tidegate-structures` (shows differences as text). May not use the packet
//! path, the dataplane, a source of objects, a clock, a file, a socket or a thread. The tests read their objects with
//! `tidegate-source`, query the real listeners of `tidegate-health`, and send packets through `tidegate-pipeline`.

pub mod cross_check;
pub mod edge;
pub mod gateway_api;
mod largest_first;
pub mod pools;
pub mod reconcile;
