//! Raw bindings of the system's libdpdk (22.11 or newer), written by bindgen at build time.
//!
//! What lives here: the functions, types and constants that the `dpdk` crate uses, on the lists in `build.rs`, and
//! the offsets of `rte_mbuf`'s fields, which `wrapper.h` takes with `offsetof` so that every release fits.
//! What may not: logic. Only the `dpdk` crate calls this one.
#![no_std]
#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "written by bindgen in C's names; DPDK's own reference documents them"
)]
#![allow(
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    reason = "written by bindgen: no safe code here"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
