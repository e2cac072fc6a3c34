//! One round of the control loop, in four phases: gather, decide, publish, report.
//!
//! Each phase takes the value that the previous phase returns: `Gathered`, `Decided`, `Published`. Each of these has a
//! private field, so only its phase can create one.
//!
//! Invariant: the compiler checks the order of the phases. No worker gets a state before its addresses are saved. A
//! state is reported only after it was published to the workers, or publishing it failed. Only changes of backends are
//! available to other gateways earlier.

mod decide;
mod gather;
mod publish;
mod report;

pub(super) use decide::Decider;
pub(super) use gather::Gatherer;
pub(super) use publish::Publication;
pub(super) use report::{Receivers, Reporter};
