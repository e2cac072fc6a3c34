//! A TCP forwarder between the gateways and a real API server. It listens in their network namespace and connects from
//! a namespace that can reach the server. It also breaks connections, which the test API server does itself.
//!
//! A socket belongs to the namespace in which it was created. The listener is created in the gateways' namespace, and
//! the runtime that connects was built in the namespace of the server.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_netlab::Namespace;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A forwarder. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Forwarder {
    address: SocketAddr,
    namespace: Namespace,
    upstream: (String, u16),
    runtime: Arc<Runtime>,
    /// `None` while connections are refused.
    listening: Mutex<Option<JoinHandle<()>>>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Connections with an older generation are closed.
    generation: u64,
    /// Data is delayed in both directions.
    is_paused: bool,
}

impl Forwarder {
    /// Listens on an address of a namespace. Port 0 selects any free port.
    pub(crate) fn start(
        namespace: &Namespace,
        listen: SocketAddr,
        upstream: (String, u16),
        runtime: Arc<Runtime>,
    ) -> Self {
        let (listening, state) = (Mutex::default(), watch::Sender::default());
        let mut forwarder =
            Self { address: listen, namespace: namespace.clone(), upstream, runtime, listening, state };
        forwarder.address = forwarder.listen();
        forwarder
    }

    /// The address on which it listens. It never changes.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The host and port to which it connects.
    pub(crate) fn upstream(&self) -> (String, u16) {
        self.upstream.clone()
    }

    /// Closes all connections and refuses new ones, or listens on the same port again.
    pub(crate) fn refuse(&self, refuse: bool) {
        if !refuse {
            self.listen();
            return;
        }
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = listening {
            task.abort();
            // The socket is closed when the task has ended.
            let _ = self.runtime.block_on(task);
        }
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Delays all data, while connections stay open and new ones are accepted; or resumes.
    pub(crate) fn pause(&self, pause: bool) {
        self.state.send_modify(|state| state.is_paused = pause);
    }

    fn listen(&self) -> SocketAddr {
        let listener = self.namespace.enter(|| TcpListener::bind(self.address)).expect("the address is free");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("it is bound");
        let (state, upstream) = (self.state.subscribe(), self.upstream.clone());
        let task = self.runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, upstream.clone(), state.clone()));
            }
        });
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        address
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.refuse(true);
    }
}

/// Forwards one connection from its beginning to its end.
async fn carry(
    mut client: tokio::net::TcpStream,
    upstream: (String, u16),
    mut state: watch::Receiver<State>,
) {
    let generation = state.borrow().generation;
    let both_directions = async {
        // If the server cannot be reached, the connection is closed immediately.
        if let Ok(mut server) = tokio::net::TcpStream::connect(upstream).await {
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        }
    };
    tokio::pin!(both_directions);
    loop {
        let now = *state.borrow_and_update();
        if now.generation != generation {
            return;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            () = &mut both_directions, if !now.is_paused => return,
        }
    }
}
