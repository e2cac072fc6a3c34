//! The checks. Each file has those of one part of the machine: pure functions of what was read ([`Subject`]), which
//! return findings.
//!
//! A check that doesn't apply to the configuration returns nothing.

mod cluster;
mod configuration;
mod cpu;
mod devices;
mod files;
mod gateway;
mod memory;
mod neighbors;
mod ports;
mod programs;
mod subject;
mod sysctls;
#[cfg(test)]
mod tests;
mod time;

use std::path::Path;

use tidegate_model::config::Loaded;

use crate::finding::Finding;

/// The findings of all checks that wait for nothing.
pub(crate) fn of_machine(subject: &Subject<'_>) -> Vec<Finding> {
    let checks: [fn(&Subject<'_>) -> Vec<Finding>; 9] = [
        cpu::check,
        memory::check,
        devices::check,
        sysctls::check,
        files::check,
        ports::check,
        programs::check,
        time::check,
        gateway::check,
    ];
    checks.iter().flat_map(|check| check(subject)).collect()
}

/// The findings about the text of the configuration and the files that it names.
pub(crate) fn of_configuration(path: &Path, loaded: &Loaded) -> Vec<Finding> {
    configuration::check(path, loaded)
}

pub(crate) use cluster::check as of_cluster;
pub(crate) use neighbors::check as of_neighbors;
pub(crate) use subject::Subject;
