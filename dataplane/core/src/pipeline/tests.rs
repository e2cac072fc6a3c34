//! Tests of the pipeline from outside: frames in, verdicts and frames out, one property per test.

mod lab;

mod answer_limits;
mod answers;
mod associations;
mod choice;
mod dsr;
mod endings;
mod faults;
mod fragments;
mod hairpin;
mod leavings;
mod nat;
mod on_change;
mod openings;
mod oversized;
mod path_mtu;
mod ports;
mod pressure;
mod protection;
mod proxy_protocol;
mod proxy_stream;
mod same_choice;
mod schedulers;
mod segment_size;
mod service_limits;
mod source_ranges;
mod sources;
mod talk;
mod transit;
mod tunnel_source;
mod tunnels;
mod tunnels_path_mtu;
mod unknown;
mod ways;
mod workers;
