//! `explain` for a running gateway.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;
use tidegate_admin_api::explain::{Packet, Transport};

use super::args::{OutputArgs, SocketArg};
use super::output::print_answer;
use super::query::run_query;

/// The packet, and the gateway to query.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    socket: SocketArg,
    /// Protocol: tcp, udp or sctp
    #[arg(long)]
    proto: Transport,
    /// Source address and port, such as 198.51.100.7:40000 or [2001:db8::7]:40000
    #[arg(long, value_name = "ADDRESS:PORT")]
    src: SocketAddr,
    /// Destination address and port, in the same format
    #[arg(long, value_name = "VIP:PORT")]
    dst: SocketAddr,
    /// How the answer is printed
    #[command(flatten)]
    pub output: OutputArgs,
}

impl ExplainArgs {
    /// The packet.
    #[must_use]
    pub fn packet(&self) -> Packet {
        Packet::new(self.proto, self.src, self.dst)
    }

    /// Queries the gateway and prints its answer.
    ///
    /// # Errors
    /// The answer could not be printed. An error of the gateway is an exit code.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        run_query(async {
            let explanation = self.socket.gateway("forwarding state")?.explain(&self.packet()).await?;
            Ok(print_answer(self.output.style(), &explanation)?)
        })
    }
}
