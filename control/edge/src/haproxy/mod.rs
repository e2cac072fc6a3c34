//! HAProxy as a program: [`program`] finds and validates, [`process`] starts and stops it, [`master`] sends commands to
//! its socket, and [`servers`] changes servers and certificates without a reload. Nothing here knows Services.

pub mod master;
pub mod process;
pub mod program;
pub mod servers;
