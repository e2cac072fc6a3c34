//! Small programs that run inside the lab's servers, as hidden subcommands `tidegate-demo lab ...`.
//!
//! They are peers of the gateway and use nothing of the dataplane. Each runs until it is killed.

pub mod decap;
pub mod http_echo;
mod outer;
pub mod sctp_echo;
pub mod tcp_clients;
pub mod tcp_echo;
pub mod udp_echo;

use anyhow::{Context, Result, bail, ensure};
use std::net::{IpAddr, SocketAddr};

/// Runs `tidegate-demo lab ARGS`, where ARGS follow `lab`.
///
/// - `udp-echo --name NAME --bind ADDRESS:PORT...`
/// - `tcp-echo --name NAME --port PORT`
/// - `tcp-clients`, with requests on standard input
/// - `http-echo --port PORT`
/// - `sctp-echo --name NAME --bind ADDRESS...`
/// - `decap --tun INTERFACE --own ADDRESS...`
///
/// # Errors
/// On unknown arguments, and when the program cannot continue (a port is in use, no root).
pub fn run(args: &[String]) -> Result<()> {
    let Some((tool, options)) = args.split_first() else {
        bail!("lab: the name of the tool is missing: {TOOLS}")
    };
    ensure!(options.len().is_multiple_of(2), "lab {tool}: every option takes one value");
    let values = |key: &str| -> Vec<&str> {
        options.chunks_exact(2).filter(|pair| pair[0] == key).map(|pair| pair[1].as_str()).collect()
    };
    let value = |key: &str| -> Result<&str> {
        values(key).first().copied().with_context(|| format!("lab {tool}: {key} is missing"))
    };
    match tool.as_str() {
        "udp-echo" => {
            let addresses: Vec<SocketAddr> =
                values("--bind").into_iter().map(str::parse).collect::<Result<_, _>>().context("--bind")?;
            udp_echo::serve(value("--name")?, &addresses)
        }
        "tcp-echo" => tcp_echo::serve(value("--name")?, value("--port")?.parse().context("--port")?),
        "tcp-clients" => tcp_clients::serve(std::io::stdin().lock(), std::io::stdout().lock()),
        "http-echo" => http_echo::serve(value("--port")?.parse().context("--port")?),
        "sctp-echo" => {
            let addresses: Vec<IpAddr> =
                values("--bind").into_iter().map(str::parse).collect::<Result<_, _>>().context("--bind")?;
            sctp_echo::serve(value("--name")?, &addresses)
        }
        "decap" => {
            let own: Vec<IpAddr> =
                values("--own").into_iter().map(str::parse).collect::<Result<_, _>>().context("--own")?;
            decap::serve(value("--tun")?, &own)
        }
        other => bail!("lab: unknown tool `{other}`: {TOOLS}"),
    }
}

const TOOLS: &str = "one of udp-echo, tcp-echo, tcp-clients, http-echo, sctp-echo, decap";
