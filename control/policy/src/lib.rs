//! What follows from the objects, as pure functions: [`reconcile`] makes the desired state of the dataplane, [`pools`]
//! says which Service has which address, [`explain`] says what happens to one packet and why.
//!
//! May depend on: `tidegate-model` (what goes in) and `tidegate-core` (what comes out, and the functions that decide about
//! packets). May not: a clock, a file, a socket, a thread, where the objects come from, the dataplane. The tests read
//! their objects by `tidegate-source`, and ask the real listeners of `tidegate-health`.

pub mod explain;
pub mod pools;
pub mod reconcile;
