//! One round of the control loop, in four phases: gather, decide, publish, report.
//!
//! Each phase takes the value that the phase before it returns: `Gathered`, `Decided`, `Published`. Each of these has a
//! private field, so only its phase can make one.
//!
//! Invariant: the order of the phases is checked by the compiler. No worker gets a state before its addresses are saved. A
//! state is reported only after it was given to the workers, or that has failed; only changes of backends are left for
//! other gateways earlier.

mod decide;
mod gather;
mod publish;
mod report;

pub(super) use decide::Decider;
pub(super) use gather::Gatherer;
pub(super) use publish::Publication;
pub(super) use report::{Receivers, Reporter};
