//! The CPUs of the workers: do they exist, and does anything else use or slow them?

use std::collections::BTreeSet;

use tidegate_model::config::Idle;

use super::subject::{Device, Subject};
use crate::finding::Finding;
use crate::machine::{cpu_list, show_cpus};

const CPUS: &str = "sys/devices/system/cpu";

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let workers: BTreeSet<u16> = subject.config.dataplane.cores.iter().copied().collect();
    let mut findings = vec![cores(subject, &workers)];
    findings.push(isolation(subject, &workers));
    findings.push(governor(subject, &workers));
    findings.extend(siblings(subject, &workers));
    findings.extend(numa(subject, &workers));
    findings
}

fn cores(subject: &Subject<'_>, workers: &BTreeSet<u16>) -> Finding {
    let check = "cores";
    let machine = subject.machine;
    let allowed = machine.field(format!("{}/status", subject.process()), "Cpus_allowed_list");
    // A running gateway keeps its control plane off the workers' cores.
    let allowed = allowed.filter(|_| subject.gateway.is_none()).map(|text| cpu_list(&text));
    let online = machine.cpus(format!("{CPUS}/online")).unwrap_or_default();
    let usable: BTreeSet<u16> =
        allowed.map_or_else(|| online.clone(), |allowed| allowed.intersection(&online).copied().collect());
    let missing: Vec<&u16> = workers.difference(&usable).collect();
    let others: Vec<&u16> = usable.difference(workers).collect();
    let own = show_cpus(workers);
    if !missing.is_empty() {
        let what = format!(
            "dataplane.cores: core {} doesn't exist, or this process may not use it",
            show_cpus(missing)
        );
        let fix = format!("dataplane.cores: a list of some of {}", show_cpus(&usable));
        return Finding::fault(check, what, "the gateway doesn't start", fix);
    }
    if !others.is_empty() {
        return Finding::ok(check, format!("workers on core {own}; {} for all else", show_cpus(others)));
    }
    let what = format!("dataplane.cores has every core of this machine ({own})");
    let fix = "dataplane.cores: a list that leaves out at least one core";
    match subject.config.dataplane.idle {
        Idle::Poll => {
            let why = "the gateway doesn't start: with idle: poll, its other threads would never run";
            Finding::fault(check, what, why, format!("{fix}, or dataplane.idle: adaptive"))
        }
        Idle::Adaptive => {
            Finding::warning(check, what, "under load, packets wait for other programs and threads", fix)
        }
    }
}

fn isolation(subject: &Subject<'_>, workers: &BTreeSet<u16>) -> Finding {
    let check = "isolcpus";
    let isolated = subject.machine.cpus(format!("{CPUS}/isolated")).unwrap_or_default();
    let tickless = subject.machine.cpus(format!("{CPUS}/nohz_full")).unwrap_or_default();
    let own = show_cpus(workers);
    let missing = [(&isolated, "isolcpus"), (&tickless, "nohz_full")];
    let missing: Vec<String> = missing
        .into_iter()
        .filter(|(cpus, _)| !cpus.is_superset(workers))
        .map(|(cpus, name)| format!("{name} lacks {}", show_cpus(workers.difference(cpus))))
        .collect();
    if missing.is_empty() {
        return Finding::ok(check, format!("the kernel schedules nothing else on core {own}"));
    }
    let fix = format!(
        "add isolcpus={own} nohz_full={own} rcu_nocbs={own} to the kernel's command line (GRUB_CMDLINE_LINUX in \
         /etc/default/grub, then update-grub), and reboot"
    );
    let why =
        "other programs and timer ticks on a worker's core delay packets, by milliseconds in the worst case";
    Finding::warning(check, missing.join("; "), why, fix)
}

fn governor(subject: &Subject<'_>, workers: &BTreeSet<u16>) -> Finding {
    let check = "governor";
    let of = |cpu: &u16| subject.machine.text(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = workers.iter().filter_map(of).collect();
    let slow: Vec<&str> =
        governors.iter().map(String::as_str).filter(|name| *name != "performance").collect();
    if governors.is_empty() {
        return Finding::ok(check, "the kernel doesn't control the frequency of the workers' cores");
    }
    if slow.is_empty() {
        return Finding::ok(check, "performance");
    }
    let what = format!("the workers' cores use the governor {}", slow.join(", "));
    let why = "a worker that slept starts slowly, until the governor raises the frequency";
    Finding::warning(check, what, why, "cpupower frequency-set -g performance (package linux-cpupower)")
}

fn siblings(subject: &Subject<'_>, workers: &BTreeSet<u16>) -> Option<Finding> {
    let check = "smt";
    let of = |cpu: u16| {
        let path = format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list");
        let mut all = subject.machine.cpus(path)?;
        all.remove(&cpu);
        Some((cpu, all))
    };
    let known: Vec<(u16, BTreeSet<u16>)> = workers.iter().copied().filter_map(of).collect();
    let pairs: Vec<String> = known
        .iter()
        .filter(|(_, siblings)| !siblings.is_empty())
        .map(|(cpu, siblings)| format!("{} is a sibling of worker core {cpu}", show_cpus(siblings)))
        .collect();
    if known.is_empty() {
        return None;
    }
    if pairs.is_empty() {
        return Some(Finding::ok(check, "the workers' cores have no sibling that is online"));
    }
    let all: BTreeSet<u16> = known.into_iter().flat_map(|(_, siblings)| siblings).collect();
    let mut shared = all.intersection(workers).peekable();
    let fix = if shared.peek().is_some() {
        "dataplane.cores: one of each pair of siblings".to_owned()
    } else {
        let off = |cpu: &u16| format!("echo 0 > /{CPUS}/cpu{cpu}/online");
        let off: Vec<String> = all.iter().map(off).collect();
        format!("{} (lost at a reboot), or disable SMT in the firmware", off.join("; "))
    };
    let why = "two siblings share one core, so a program on one takes about half of the other's speed";
    Some(Finding::warning(check, format!("core {}", pairs.join("; core ")), why, fix))
}

fn numa(subject: &Subject<'_>, workers: &BTreeSet<u16>) -> Vec<Finding> {
    let machine = subject.machine;
    let mut findings = Vec::new();
    for interface in subject.interfaces() {
        let path = match Device::of(interface) {
            Device::Kernel(name) => format!("sys/class/net/{name}/device/numa_node"),
            Device::Pci(address) => format!("sys/bus/pci/devices/{address}/numa_node"),
            Device::Virtual => continue,
        };
        // The kernel writes -1 on a machine with one node.
        let Some(node) = machine.number(path) else { continue };
        let local = machine.cpus(format!("sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
        let far: Vec<&u16> = workers.difference(&local).collect();
        let name = &interface.name;
        findings.push(if far.is_empty() {
            Finding::ok("numa", format!("interface {name} and the workers are on NUMA node {node}"))
        } else {
            let far = show_cpus(far);
            let what = format!("interface {name} is on NUMA node {node}, but core {far} is not");
            let why = "each packet crosses the link between the sockets twice";
            Finding::warning("numa", what, why, format!("dataplane.cores: some of {}", show_cpus(&local)))
        });
    }
    findings
}
