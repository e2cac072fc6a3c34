//! The backend's side of `dsr-dscp`: rules of nftables that set the VIP again, by the DSCP of a packet to the server's
//! own address. [docs/tunnels.md](../../../docs/tunnels.md#without-another-header-dsr-dscp) has the same rules.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::addresses::{self as plan, Family};
use super::modes::{DSCP, dscp_paths};
use super::namespace::Namespace;

/// Sets the rules on server number `n`, if it has a VIP of `dsr-dscp`.
pub(super) fn set_vip_by_mark(server: &Namespace, n: u8, vips: &[IpAddr]) -> Result<()> {
    let rules = rules(n, vips);
    if rules.is_empty() {
        return Ok(());
    }
    let mut nft =
        server.command("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().context("cannot start nft")?;
    nft.stdin.take().context("nft has no standard input")?.write_all(rules.as_bytes())?;
    ensure!(nft.wait()?.success(), "nft refuses {rules}");
    Ok(())
}

fn rules(n: u8, vips: &[IpAddr]) -> String {
    let mut rules = String::new();
    for path in dscp_paths().iter().filter(|path| vips.contains(&path.vip)) {
        let (own, vip) = (plan::server(path.family, n), path.vip);
        let ip = match path.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        writeln!(
            rules,
            "table {ip} vip-by-mark {{\n  chain prerouting {{\n    type filter hook prerouting priority raw;\n    \
             {ip} daddr {own} {ip} dscp {DSCP} {ip} daddr set {vip}\n  }}\n}}"
        )
        .expect("a text takes every line");
    }
    rules
}
