//! The streams and splices of NAT flows: bytes that the gateway has added, or shifted sequence numbers.
//!
//! A bit per service shows whether its flows may have either, so most packets need no look-up.

use tidegate_spec::ids::ServiceId;

use super::NatTable;
use crate::dsr::by_family;
use crate::key::{FlowHash, FlowKey, PackedKey};
use crate::splice::Splice;
use crate::stream::Stream;

impl NatTable {
    /// Whether any flow has had a stream or a splice. If not, look-ups are unnecessary.
    #[inline]
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.v4.has_streams() | self.v6.has_streams()
    }

    /// Whether a flow of this service may have a stream or a splice, even if the service no longer uses them.
    #[inline]
    #[must_use]
    pub fn may_stream(&self, service: ServiceId) -> bool {
        let index = service.index();
        self.streaming.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    /// The stream of the flow with this client's key.
    #[must_use]
    pub fn stream(&self, key: &FlowKey, hash: FlowHash) -> Option<Stream> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            table.stream(position)
        })
    }

    /// Removes the stream of the flow with this client's key, because its next connection has none.
    pub fn forget_stream(&mut self, key: &FlowKey, hash: FlowHash) {
        by_family!(mut self, key, |table, packed| {
            if let Some(position) = table.find(&packed, hash) {
                table.forget_stream(position);
            }
        });
    }

    /// Records the stream of the flow with this client's key, if the flow is known.
    pub fn set_stream(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, stream: Stream) {
        self.enable_streams(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(position) = table.find(&packed, hash) {
                table.set_stream(position, stream);
            }
        });
    }

    fn enable_streams(&mut self, service: ServiceId) {
        let index = service.index();
        if let Some(bits) = self.streaming.get_mut(index / 64) {
            *bits |= 1 << (index % 64);
        }
    }

    /// The splice of the flow with this client's key.
    #[must_use]
    pub fn splice(&self, key: &FlowKey, hash: FlowHash) -> Option<Splice> {
        by_family!(self, key, |table, packed| {
            let position = table.find(&packed, hash)?;
            table.splice(position)
        })
    }

    /// Records the splice of the flow with this client's key, if the flow is known.
    pub fn set_splice(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, splice: Splice) {
        self.enable_streams(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(position) = table.find(&packed, hash) {
                table.set_splice(position, splice);
            }
        });
    }
}
