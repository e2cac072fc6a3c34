//! Sysctls with which the kernel answers in place of the gateway. Those that the gateway sets itself, and restores
//! while it runs, are not checked.

use super::subject::Subject;
use crate::finding::Finding;

const CONF: &str = "proc/sys/net/ipv4/conf";

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    if subject.packet_sockets().next().is_none() {
        return Vec::new();
    }
    let findings = vec![reverse_path(subject)];
    findings.into_iter().chain(arp(subject)).collect()
}

fn reverse_path(subject: &Subject<'_>) -> Finding {
    let check = "rp_filter";
    let all = subject.machine.number(format!("{CONF}/all/rp_filter")).unwrap_or(0);
    if all != 2 {
        return Finding::ok(check, format!("net.ipv4.conf.all.rp_filter is {all}"));
    }
    let why = "the kernel also answers packets that the gateway answers: the larger value of `all` and of the interface \
               counts, and the gateway sets 1";
    let fix = "sysctl net.ipv4.conf.all.rp_filter=0 (and a line in /etc/sysctl.d/)";
    Finding::warning(check, "net.ipv4.conf.all.rp_filter is 2", why, fix)
}

/// The kernel answers ARP on each of its links for each of its addresses, those of the gateway's taps included.
fn arp(subject: &Subject<'_>) -> Option<Finding> {
    let check = "arp_ignore";
    let value = |name: &str, key: &str| subject.machine.number(format!("{CONF}/{name}/{key}")).unwrap_or(0);
    let own: Vec<&str> = subject.packet_sockets().map(|(_, device)| device).collect();
    let is_other = |name: &str| !own.contains(&name) && !name.starts_with("tg-");
    let links = subject.network.links.iter().filter(|link| link.is_up && !link.is_loopback);
    let answers = links.filter(|link| {
        let ignores = value(&link.name, "arp_ignore").max(value("all", "arp_ignore"));
        is_other(&link.name)
            && ignores == 0
            && subject.network.addresses_of(link).any(|net| net.addr().is_ipv4())
    });
    let answers: Vec<&str> = answers.map(|link| link.name.as_str()).collect();
    if answers.is_empty() {
        return Some(Finding::ok(
            check,
            "the kernel answers ARP for the gateway's addresses on no other link",
        ));
    }
    let what = format!("arp_ignore is 0 on {}", answers.join(", "));
    let why = "if this link and one of the gateway's are the same network, the kernel answers there for the gateway's \
               addresses, with the wrong link address";
    let fix: Vec<String> = answers
        .iter()
        .map(|name| format!("sysctl net.ipv4.conf.{name}.arp_ignore=1 net.ipv4.conf.{name}.arp_announce=2"))
        .collect();
    Some(Finding::warning(check, what, why, fix.join("; ")))
}
