//! What tests, benches and `replay` share: frames built from words, shown, compared, and read from captures.
//!
//! Nothing here is on the packet path of a running gateway, so it may allocate, and the builder and the comparison
//! may panic, as tests do. [`pcap`] is the exception: `replay` reads users' captures with it, so it is written for
//! production: bounded, and errors with offsets.

pub mod builder;
pub mod diff;
pub mod fields;
pub mod fuzz;
pub mod lab;
pub mod pcap;
pub mod show;

pub use builder::Builder;
pub use diff::{Diff, assert_only_changed, diff};
pub use show::{hexdump, summary};
