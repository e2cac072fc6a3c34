//! A flow that a packet creates: everything that its entries are written from.

use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;

use super::flow_state::{IdleTimeout, Packet};
use super::key::{FlowHash, FlowKey};

/// A new flow. `K` is the form of its key.
#[derive(Debug, Clone, Copy)]
pub struct NewFlow<K = FlowKey> {
    /// The key of the client's side.
    pub key: K,
    /// The hash of the key.
    pub hash: FlowHash,
    /// The backend that its packets go to.
    pub backend: BackendId,
    /// Its first packet.
    pub packet: Packet,
    /// The idle timeout of its service.
    pub idle: IdleTimeout,
    /// The time of the packet.
    pub now: Now,
}

impl<K> NewFlow<K> {
    /// This flow with its key in another form.
    #[inline(always)]
    pub(super) fn with_key<L>(&self, key: L) -> NewFlow<L> {
        let &Self { hash, backend, packet, idle, now, .. } = self;
        NewFlow { key, hash, backend, packet, idle, now }
    }
}
