//! The pipeline from outside: frames in, verdicts and frames out, one claim a test.

mod lab;
mod talk;

mod answer_limits;
mod answers;
mod choice;
mod dsr;
mod endings;
mod faults;
mod fragments;
mod hairpin;
mod leavings;
mod nat;
mod ports;
mod pressure;
mod same_choice;
mod source_ranges;
mod sources;
mod unknown;
mod ways;
mod workers;
