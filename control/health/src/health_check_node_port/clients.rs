//! The clients that a listener serves: everybody, or only clients in some networks.
//!
//! The connection of any other client is closed before anything is read from it. Clients at loopback addresses are
//! always served, for example a supervisor or a kubelet that probes there.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_http::Accept;
use tokio::net::{TcpListener, TcpStream};

/// The networks whose clients are served; empty means everybody.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clients(Arc<[IpNet]>);

impl Clients {
    /// The clients of these networks; everybody if there are none.
    #[must_use]
    pub fn of(networks: &[IpNet]) -> Self {
        Self(networks.into())
    }

    fn admit(&self, client: IpAddr) -> bool {
        self.0.is_empty() || client.is_loopback() || self.0.iter().any(|net| net.contains(&client))
    }
}

/// A listener that accepts only these clients.
pub(super) struct Admitting {
    pub(super) listener: TcpListener,
    pub(super) clients: Clients,
}

impl Accept for Admitting {
    type Stream = TcpStream;

    async fn accept_stream(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        loop {
            let (stream, source) = self.listener.accept_stream().await?;
            if source.is_none_or(|client| self.clients.admit(client)) {
                return Ok((stream, source));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_the_networks_and_of_the_loopback_are_admitted() {
        let admits = |networks: &[&str], client: &str| {
            let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().expect("a network")).collect();
            Clients::of(&networks).admit(client.parse().expect("an address"))
        };
        assert!(admits(&[], "198.51.100.7") && admits(&[], "2001:db8::7"));
        for (client, admitted) in [
            ("10.1.2.3", true),
            ("11.1.2.3", false),
            ("2001:db8::7", true),
            ("2001:db9::7", false),
            ("127.0.0.1", true),
            ("::1", true),
        ] {
            assert_eq!(admits(&["10.0.0.0/8", "2001:db8::/32"], client), admitted, "{client}");
        }
    }
}
