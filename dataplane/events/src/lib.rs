//! What happened to the gateway, and when: changes of state as [`Event`]s.
//!
//! [`record`] is the only way to report a change of state. It writes one log line, and the [`Recorder`] of the process
//! keeps the event in memory and on disk. `tidegate events` shows what is kept. `docs/events.md` lists all reasons.
//!
//! May depend on: `tidegate-wire` (names), `tidegate-spec` (token buckets), `tidegate-host` (files that are replaced atomically). May not:
//! anything that knows Services, packets or an API server.
//!
//! Invariant: [`record`] never waits for a disk. Neither memory nor the file grows without bound, and no namespace can
//! remove the events of others or fill the log.
#![deny(unsafe_code)]

mod disk;
mod event;
mod kept;
mod log;
mod reason;
mod recorder;

pub use event::{Event, Field, Object, ObjectKind, Value};
pub use kept::Selection;
pub use reason::{Level, Reason};
pub use recorder::{Recorder, install, record};
