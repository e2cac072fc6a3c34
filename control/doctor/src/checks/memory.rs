//! Memory for packets: hugepages, and the limit of locked memory.

use super::subject::Subject;
use crate::finding::Finding;

const HUGEPAGES: &str = "sys/kernel/mm/hugepages";
/// What a packet socket locks for each queue and direction, in MiB.
const RING_MIB: u64 = 64;
/// The bit of `CAP_IPC_LOCK` in the sets of capabilities (capabilities(7)).
const CAP_IPC_LOCK: u64 = 1 << 14;

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let locked = locked_memory(subject);
    std::iter::once(hugepages(subject)).chain(locked).collect()
}

fn hugepages(subject: &Subject<'_>) -> Finding {
    let check = "hugepages";
    let memory = subject.config.dataplane.memory;
    let needed = u64::from(memory.size_mib);
    if !memory.hugepages {
        let has_nic = subject.pci().next().is_some();
        let what = "plain pages (dataplane.memory.hugepages: false)";
        let why = "each access of the NIC and of the workers needs more entries of the TLB";
        let fix = format!(
            "dataplane.memory: {{hugepages: true}}, and sysctl vm.nr_hugepages={}",
            needed.div_ceil(2)
        );
        return if has_nic { Finding::warning(check, what, why, fix) } else { Finding::ok(check, what) };
    }
    if subject.gateway.is_some() {
        return Finding::ok(check, "the gateway runs and has its memory");
    }
    let machine = subject.machine;
    let size_kib = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let pages = machine.names(HUGEPAGES);
    let pages = pages.iter().filter_map(|name| {
        let count = |what: &str| machine.number(format!("{HUGEPAGES}/{name}/{what}")).unwrap_or(0);
        Some((size_kib(name)?, count("free_hugepages"), count("nr_hugepages")))
    });
    let pages: Vec<(u64, u64, u64)> = pages.collect();
    let free: u64 = pages.iter().map(|(kib, free, _)| kib * free / 1024).sum();
    if free >= needed {
        return Finding::ok(check, format!("{free} MiB are free, {needed} MiB are needed"));
    }
    let small = pages.iter().find(|(kib, ..)| *kib == 2048);
    let (small_free, small_all) = small.map_or((0, 0), |(_, free, all)| (*free, *all));
    let reserve = small_all - small_free.min(small_all) + needed.div_ceil(2);
    let what = format!("{free} MiB of hugepages are free, and dataplane.memory.sizeMiB is {needed}");
    let fix = format!(
        "sysctl vm.nr_hugepages={reserve} (and a line in /etc/sysctl.d/), or dataplane.memory: {{hugepages: false}}"
    );
    Finding::fault(check, what, "the gateway doesn't start", fix)
}

fn locked_memory(subject: &Subject<'_>) -> Option<Finding> {
    let check = "memlock";
    let sockets = subject.packet_sockets().count() as u64;
    let workers = subject.config.dataplane.cores.len() as u64;
    let needed = sockets * workers * 2 * RING_MIB;
    if needed == 0 {
        return None;
    }
    let process = subject.process();
    let capabilities = subject.machine.field(format!("{process}/status"), "CapEff");
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(&text, 16).ok());
    if capabilities.is_some_and(|set| set & CAP_IPC_LOCK != 0) {
        return Some(Finding::ok(check, "no limit: the process has CAP_IPC_LOCK"));
    }
    let limits = subject.machine.text(format!("{process}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let soft = line.split_whitespace().next()?;
    let Ok(bytes) = soft.parse::<u64>() else {
        return Some(Finding::ok(check, "the limit of locked memory is unlimited"));
    };
    if bytes / (1 << 20) >= needed {
        return Some(Finding::ok(
            check,
            format!("{} MiB may be locked, {needed} MiB are needed", bytes >> 20),
        ));
    }
    let what = format!(
        "memlock limit is {}, needs {needed} MiB: packet sockets lock {RING_MIB} MiB for each interface, worker and \
         direction",
        show_bytes(bytes)
    );
    let fix = "ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or the capability CAP_IPC_LOCK";
    Some(Finding::fault(check, what, "the gateway doesn't start", fix))
}

fn show_bytes(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}
