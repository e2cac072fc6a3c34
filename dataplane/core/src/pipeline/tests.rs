//! The pipeline from outside: frames in, verdicts and frames out, one claim a test.

mod lab;

mod answer_limits;
mod answers;
mod choice;
mod dsr;
mod faults;
mod fragments;
mod hairpin;
mod leavings;
mod nat;
mod same_choice;
mod source_ranges;
mod sources;
mod unknown;
mod ways;
mod workers;
