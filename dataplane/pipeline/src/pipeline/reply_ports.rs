//! The address and port to which a backend sends the replies of a new NAT flow.
//!
//! A `fullnat` flow gets an address and port of the gateway. A `nat` flow keeps its client's own port, unless another
//! flow to the endpoint has that port.
//!
//! Simple flows whose first choice is free get it from `fast_path/bind.rs`.
//!
//! Promises: replies arrive at this worker, reply keys are unique, and an established flow keeps its port.

use arrayvec::ArrayVec;
use tidegate_conntrack::{FlowHash, FlowKey, IdleTimeout, InsertError, ReplyKey};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_spec::limits::{OPENING_IDLE_MIN_MS, SNAT_PORT_BATCH, SNAT_PORT_MIN, SNAT_PORT_PROBES};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Refusal;
use tidegate_structures::hash::{key_hash, scale};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, Headers};

use super::owners::owner_of_client;
use super::request::Request;
use super::state::Pipeline;
use crate::forward::snat_ports::RingPosition;

impl Pipeline {
    /// Finds a local address and port for a new flow whose source is translated, such that replies arrive at this
    /// worker. In order of preference, the port has no other flow to the same endpoint, or its flow there is over,
    /// opening, or ended by one side. An established flow keeps its port. If most of the ports belong to handshakes,
    /// there is a flood: the search ends early, since a longer one would find only more handshakes.
    pub(super) fn bind_local(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<Endpoint, Refusal> {
        let addresses = snapshot.snat_addresses(h.family);
        let first = first_address(addresses, request.flow_hash);
        // If there are more addresses than batches, each flow examines some of them, starting at a different one.
        let examined = addresses.len().min(SNAT_PORT_PROBES / SNAT_PORT_BATCH);
        let mut best = (ReplyKey::Taken, None);
        for &addr in addresses.iter().cycle().skip(first).take(examined) {
            // Usually the first address has a free port.
            if best.0 <= ReplyKey::Over {
                break;
            }
            let pair = self.snat_ports.pair(addr, (backend.address, backend.port), h.proto);
            // Examine only one port first: it is free unless ports are scarce.
            let (mut remaining, mut probes) = (SNAT_PORT_PROBES / examined, 1);
            let (mut looked, mut handshakes) = (0, 0);
            while remaining > 0 && best.0 > ReplyKey::Over {
                if looked > SNAT_PORT_BATCH && 2 * handshakes > looked {
                    break;
                }
                let mut batch = ArrayVec::<(FlowKey, FlowHash, RingPosition), SNAT_PORT_BATCH>::new();
                for (port, position) in (0..probes).filter_map(|_| self.snat_ports.next(&pair)) {
                    let reply = FlowKey::reply(backend.endpoint, addr, port);
                    let hash = self.flows.hash(&reply);
                    self.flows.nat.prefetch(&reply, hash);
                    batch.push((reply, hash, position));
                }
                for &(reply, hash, position) in &batch {
                    let found = self.flows.nat.reply_key(&reply, hash, &request.key, now);
                    let found = self.or_masqueraded(found, &reply, backend, h.proto);
                    looked += 1;
                    handshakes +=
                        usize::from(matches!(found, ReplyKey::Opening { .. } | ReplyKey::Answered { .. }));
                    if is_better(found, best.0) {
                        best = (found, Some((reply, hash, position)));
                    }
                }
                remaining -= probes;
                probes = SNAT_PORT_BATCH.min(remaining);
            }
        }
        let (found, Some((reply, hash, position))) = best else { return Err(Refusal::SnatPortsExhausted) };
        // The ports after the chosen one were only examined, so the rotation continues with them.
        self.snat_ports.resume_after(position);
        self.insert_with_reply_key(request, found, &(reply, hash), backend, idle, now)?;
        self.take_from_masquerade(&reply, backend, h.proto);
        Ok(Endpoint { addr: reply.addr(), port: reply.port() })
    }

    /// Creates a `nat` flow with the client's own port. If another flow that is not over has that port towards the
    /// same endpoint, this chooses and returns a different port, as Linux does (`nf_nat_used_tuple`).
    pub(super) fn bind_client(
        &mut self,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<Option<Endpoint>, Refusal> {
        let own = FlowKey::reply(backend.endpoint, h.src, h.src_port);
        let own = (own, self.flows.hash(&own));
        let found = self.flows.nat.reply_key(&own.0, own.1, &request.key, now);
        let is_evictable = match found {
            ReplyKey::Free | ReplyKey::Expired | ReplyKey::Over => true,
            // A handshake may be in progress.
            ReplyKey::Opening { idle_ms } => idle_ms >= OPENING_IDLE_MIN_MS,
            ReplyKey::Answered { .. } | ReplyKey::HalfClosed { .. } | ReplyKey::Taken => false,
        };
        if is_evictable {
            self.insert_with_reply_key(request, found, &own, backend, idle, now)?;
            return Ok(None);
        }
        let (reply, found) = self.other_port(request, h, backend, now).ok_or(Refusal::NatConflict)?;
        self.insert_with_reply_key(request, found, &reply, backend, idle, now)?;
        Ok(Some(Endpoint { addr: h.src, port: reply.0.port() }))
    }

    /// Picks a client port for a `nat` flow: one that belongs to this worker and has no flow to the endpoint, or only a
    /// flow that is over.
    #[cold]
    fn other_port(
        &self,
        request: &Request<'_>,
        h: &Headers,
        backend: &Backend,
        now: Now,
    ) -> Option<((FlowKey, FlowHash), ReplyKey)> {
        let range = u32::from(u16::MAX - SNAT_PORT_MIN) + 1;
        let spread =
            key_hash(&h.dst, h.proto, h.dst_port) ^ key_hash(&h.src, h.proto, h.src_port) ^ self.seed;
        // The range is 2^10 * 63, so with an odd step no port repeats within 1,024 steps.
        let (first, step) = (scale(spread, range), (spread as u32 % range) | 1);
        let ports = (0..).map(|n: u32| {
            let at = (u64::from(first) + u64::from(n) * u64::from(step)) % u64::from(range);
            // The offset is below the range, so the port is at most 65,535.
            SNAT_PORT_MIN + at as u16
        });
        let is_local = |port: &u16| owner_of_client((&h.src, *port), h.proto, self.workers) == self.worker;
        let examined = 4 * SNAT_PORT_PROBES * usize::from(self.workers);
        let ports = ports.take(examined).filter(is_local).take(SNAT_PORT_PROBES);
        ports.filter(|port| *port != request.key.port()).find_map(|port| {
            let reply = FlowKey::reply(backend.endpoint, h.src, port);
            let hash = self.flows.hash(&reply);
            let found = self.flows.nat.reply_key(&reply, hash, &request.key, now);
            matches!(found, ReplyKey::Free | ReplyKey::Expired | ReplyKey::Over)
                .then_some(((reply, hash), found))
        })
    }

    /// Creates a flow with this reply key, and evicts the flow that has the key.
    fn insert_with_reply_key(
        &mut self,
        request: &Request<'_>,
        found: ReplyKey,
        (reply, hash): &(FlowKey, FlowHash),
        backend: &Backend,
        idle: IdleTimeout,
        now: Now,
    ) -> Result<(), Refusal> {
        if found > ReplyKey::Expired {
            self.flows.nat.take_reply_key(reply, *hash);
        }
        let flow = request.new_flow(backend.id, idle, now);
        let inserted = if request.found.is_known() || found == ReplyKey::Expired {
            self.flows.nat.insert_pair(&flow, reply, *hash)
        } else {
            self.flows.nat.insert_new_pair(&flow, reply, *hash)
        };
        inserted.map_err(|error| match error {
            InsertError::Conflict => Refusal::NatConflict,
            InsertError::Full => Refusal::FlowTableFull,
            InsertError::Share => Refusal::ServiceFlowShare,
        })
    }
}

/// The index of the SNAT address that a flow tries first. The hash is keyed, so clients can't choose the address.
#[inline]
pub(super) fn first_address(addresses: &[Addr], flow: FlowHash) -> usize {
    scale(flow.bits(), u32::try_from(addresses.len()).unwrap_or(u32::MAX)) as usize
}

/// Whether the reply key `found` is better for a new flow than `than`. Among flows that are opening, answered or
/// half-closed, the one that has been idle longest is best.
pub(super) fn is_better(found: ReplyKey, than: ReplyKey) -> bool {
    match (found, than) {
        (ReplyKey::Opening { idle_ms }, ReplyKey::Opening { idle_ms: than })
        | (ReplyKey::Answered { idle_ms }, ReplyKey::Answered { idle_ms: than })
        | (ReplyKey::HalfClosed { idle_ms }, ReplyKey::HalfClosed { idle_ms: than }) => idle_ms > than,
        _ => found < than,
    }
}
