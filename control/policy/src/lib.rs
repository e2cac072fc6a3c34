//! Decisions on the objects, as pure functions: [`reconcile`] computes the desired state of the dataplane, [`pools`]
//! decides which Service has which address.
//!
//! May depend on: `tidegate-model` (the inputs), `tidegate-spec` (the outputs), `tidegate-wire` (values in them),
//! `tidegate-select` (the history of seats), `tidegate-structures` (the text of a difference). May not: the packet
//! path, a clock, a file, a socket, a thread, a source of objects, the dataplane. The tests read their objects with
//! `tidegate-source`, query the real listeners of `tidegate-health`, and send packets through `tidegate-pipeline`.

mod largest_first;
pub mod pools;
pub mod reconcile;
