//! The Linux kernel with the rules that kube-proxy writes for nftables: a map from (VIP, protocol, port) to a chain for
//! each service, a random endpoint there, and a chain with the translation for each endpoint.
//!
//! Replies return through the kernel, so this is what Tidegate does in mode `nat`. The client's address is kept
//! (`externalTrafficPolicy: Local`), which is the least that the kernel can do.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};
use tidegate_netlab::Lab;

use super::testbed::{Setup, shell};
use crate::packets::{GENERATOR_MAC, PORT, backend, client_side, prefix, vip};
use crate::scenario::{Family, Protocol, Scenario};

/// The kernel's limits of connections. They apply to the whole machine, and are raised if they are too low for the
/// flows.
const NEW_FLOWS: u64 = 4_000_000;
const LIMIT: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const HASH_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Gives the namespace addresses, routes and rules.
///
/// # Errors
/// nftables is not installed, or refuses the rules.
pub(super) fn start(lab: &Lab, scenario: &Scenario, setup: &Setup) -> Result<()> {
    // The kernel would handle a frame on the CPU that has sent it, which is the generator's. Programs that read packet
    // sockets must not be started this way: a flood would take their own CPU from them.
    for device in ["dut0", "dut1"] {
        let mask = format!("{:x}", 1_u64 << setup.forwarder_cpu);
        shell(lab, &format!("echo {mask} > /sys/class/net/{device}/queues/rx-0/rps_cpus"))?;
    }
    let family = scenario.family;
    let [own, router] = client_side(family);
    // The backends are behind one next hop, so that the kernel needs one neighbor.
    let length = if family == Family::V4 { 16 } else { 64 };
    let forward = match family {
        Family::V4 => "ipv4/ip_forward",
        Family::V6 => "ipv6/conf/all/forwarding",
    };
    lab.gateway().sysctls(&[(forward, "1")])?;
    if family == Family::V4 {
        for device in ["all", "dut0", "dut1"] {
            lab.gateway().sysctls(&[(&format!("ipv4/conf/{device}/rp_filter"), "0")])?;
        }
    }
    let next = match family {
        Family::V4 => "10.21.0.1",
        Family::V6 => "fd00:21::1",
    };
    lab.gateway().ip_batch(&format!(
        "address add {own}/{length} dev dut0\n\
         address add {next_own} dev dut1\n\
         neighbor replace {router} lladdr {GENERATOR_MAC} dev dut0 nud permanent\n\
         neighbor replace {next} lladdr {GENERATOR_MAC} dev dut1 nud permanent\n\
         route add default via {router} dev dut0\n\
         route add {backends} via {next} dev dut1",
        next_own = if family == Family::V4 { "10.21.0.2/24" } else { "fd00:21::2/64" },
        backends = prefix(family, 20),
    ))?;
    let rules = lab.directory().join("rules.nft");
    fs::write(&rules, ruleset(scenario))?;
    shell(lab, &format!("nft -f {}", rules.display())).context("nftables")?;
    let connections = if scenario.flows == 0 { NEW_FLOWS } else { u64::from(scenario.flows) * 2 };
    for (path, least) in [(LIMIT, connections), (HASH_BUCKETS, connections / 4)] {
        let present: u64 = fs::read_to_string(path)?.trim().parse().context(path)?;
        if present < least {
            fs::write(path, least.to_string()).context(path)?;
        }
        ensure!(
            fs::read_to_string(path)?.trim().parse::<u64>().is_ok_and(|now| now >= least),
            "{path} stays at {present}"
        );
    }
    Ok(())
}

/// The rules.
fn ruleset(scenario: &Scenario) -> String {
    let (family, kind) = match scenario.family {
        Family::V4 => ("ip", "ipv4_addr"),
        Family::V6 => ("ip6", "ipv6_addr"),
    };
    let protocol = match scenario.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    let mut text = format!("table {family} bench {{\n");
    for n in 0..scenario.services * scenario.backends {
        let address = backend(scenario.family, n);
        let target = match scenario.family {
            Family::V4 => format!("{address}:{PORT}"),
            Family::V6 => format!("[{address}]:{PORT}"),
        };
        let _ = writeln!(text, "chain endpoint-{n} {{ meta l4proto {protocol} dnat to {target}; }}");
    }
    for service in 0..scenario.services {
        let choices: Vec<String> = (0..scenario.backends)
            .map(|n| format!("{n} : goto endpoint-{}", service * scenario.backends + n))
            .collect();
        let _ = writeln!(
            text,
            "chain service-{service} {{ numgen random mod {} vmap {{ {} }}; }}",
            scenario.backends,
            choices.join(", ")
        );
    }
    let elements: Vec<String> = (0..scenario.services)
        .map(|n| format!("{} . {protocol} . {PORT} : goto service-{n}", vip(scenario.family, n)))
        .collect();
    let _ = write!(
        text,
        "map services {{ type {kind} . inet_proto . inet_service : verdict; elements = {{ {} }}; }}\n\
         chain prerouting {{ type nat hook prerouting priority dstnat; \
         {family} daddr . meta l4proto . th dport vmap @services; }}\n}}\n",
        elements.join(", ")
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_chain_with_all_its_endpoints() {
        let scenario = Scenario::parse("forwarders = ['kernel']\nwire = 'veth'\nservices = 2\nbackends = 3")
            .unwrap()
            .remove(0);
        let text = ruleset(&scenario);
        assert_eq!(text.matches("chain endpoint-").count(), 6);
        assert!(text.contains(
            "chain service-1 { numgen random mod 3 vmap { 0 : goto endpoint-3, 1 : goto endpoint-4"
        ));
        assert!(text.contains("10.30.0.1 . udp . 8080 : goto service-1"));
        assert!(text.contains("dnat to 10.20.0.6:8080"));
    }
}
