//! Finds the addresses of API servers, which no Service may have.
//!
//! [`Found`] periodically resolves the host of a connection, as the client does. `connect` calls it whenever it returns
//! a client.
//!
//! Invariant: if resolving fails, the previous addresses stay.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::Uri;

/// The interval at which an API server is resolved again, and the timeout.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(60);
const RESOLVE_MAX: Duration = Duration::from_secs(2);

/// Host and port of an API server.
pub(super) type Host = (String, u16);

/// The host of a URL.
pub(super) fn host_of(server: &Uri) -> Option<Host> {
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    Some((server.host()?.trim_matches(['[', ']']).to_owned(), port))
}

/// The last known addresses of API servers.
#[derive(Debug, Default)]
pub(super) struct Found(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    addresses: Arc<BTreeSet<IpAddr>>,
    /// The host that was resolved, and when.
    host: Option<(Host, Instant)>,
}

impl Found {
    /// The last known addresses. Loopback addresses are left out, because no Service can have them.
    pub(super) fn addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        Arc::clone(&self.state().addresses)
    }

    /// Resolves the API server's host, unless that was done recently.
    pub(super) async fn resolve(&self, host: Host) {
        let now = Instant::now();
        {
            let mut state = self.state();
            let is_new =
                |(last, at): &(Host, Instant)| *last == host && now.duration_since(*at) < RESOLVE_INTERVAL;
            if state.host.as_ref().is_some_and(is_new) {
                return;
            }
            state.host = Some((host.clone(), now));
        }
        let found = tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host(host)).await;
        let Ok(Ok(addresses)) = found else { return };
        let addresses: BTreeSet<IpAddr> =
            addresses.map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_loopback()).collect();
        self.state().addresses = Arc::new(addresses);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
