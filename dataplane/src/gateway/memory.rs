//! Whether missing memory is why DPDK or a port did not start: hugepages, and the limit on locked memory.
//!
//! DPDK's own errors don't say so. Nothing here is read unless a start has failed.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::config::{DataplaneConfig, StartError};

/// The directory with a subdirectory for each size of hugepages.
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
/// What a packet socket locks for each queue and direction, in MiB.
const RING_MIB: u64 = 64;

/// The error of a start of DPDK that failed: missing hugepages, if that explains it.
pub(super) fn why_not_started(error: dpdk::EalError, memory: dpdk::Memory) -> StartError {
    match (memory, free_hugepages_mib()) {
        (dpdk::Memory::Hugepages { mib }, free) if free < u64::from(mib) => {
            StartError::Hugepages { free, mib }
        }
        _ => error.into(),
    }
}

/// The free hugepages of all sizes, in MiB.
fn free_hugepages_mib() -> u64 {
    let sizes = std::fs::read_dir(HUGEPAGES).into_iter().flatten().flatten();
    let free = sizes.filter_map(|size| {
        let name = size.file_name();
        let kib: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?;
        Some(pages.trim().parse::<u64>().ok()? * kib / 1024)
    });
    free.sum()
}

/// The limit on locked memory in bytes, and what the packet sockets of the gateway lock in MiB, if the limit is too small.
/// The kernel refuses such a ring (`MAP_LOCKED`) with "not permitted" or "unavailable".
pub(super) fn locked_too_little(config: &DataplaneConfig) -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::Memlock).current?;
    if capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK)) {
        return None;
    }
    let needed = socket_ring_mib(config);
    (limit < needed << 20).then_some((limit, needed))
}

/// What the packet sockets of the gateway lock, in MiB.
pub(super) fn socket_ring_mib(config: &DataplaneConfig) -> u64 {
    let sockets = config.interfaces.iter().filter(|one| one.device.starts_with("net_af_packet")).count();
    (sockets * config.cores.len()) as u64 * 2 * RING_MIB
}
