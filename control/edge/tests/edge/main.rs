//! Tests of the edge with the real HAProxy and real clients, each in a network namespace of its own.

mod changes;
mod faults;
mod lab;
mod requests;
