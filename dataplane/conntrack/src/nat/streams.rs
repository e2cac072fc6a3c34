//! The stream or splice of a NAT flow: bytes that the gateway has added to it, or a shift of its sequence numbers.
//!
//! A bit for each service says whether its flows may have one, so most packets look nothing up.

use tidegate_spec::ids::ServiceId;

use super::NatTable;
use crate::dsr::by_family;
use crate::key::{FlowHash, FlowKey, PackedKey};
use crate::splice::Splice;
use crate::stream::Stream;

impl NatTable {
    /// Whether any flow has had a stream or a splice. Without one, no flow has anything to look up.
    #[inline]
    #[must_use]
    pub fn has_streams(&self) -> bool {
        self.v4.has_streams() | self.v6.has_streams()
    }

    /// Whether a flow of this service may have a stream or a splice, although the service may no longer ask for one.
    #[inline]
    #[must_use]
    pub fn may_stream(&self, service: ServiceId) -> bool {
        let index = service.index();
        self.streaming.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 != 0)
    }

    /// The stream of the flow with this key of its client.
    #[must_use]
    pub fn stream(&self, key: &FlowKey, hash: FlowHash) -> Option<Stream> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            table.stream(place)
        })
    }

    /// Forgets the stream of the flow with this key of its client: its next connection has none.
    pub fn forget_stream(&mut self, key: &FlowKey, hash: FlowHash) {
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.forget_stream(place);
            }
        });
    }

    /// Records the stream of the flow with this key of its client, if the flow is known.
    pub fn set_stream(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, stream: Stream) {
        self.may_stream_from_now_on(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.set_stream(place, stream);
            }
        });
    }

    fn may_stream_from_now_on(&mut self, service: ServiceId) {
        let index = service.index();
        if let Some(bits) = self.streaming.get_mut(index / 64) {
            *bits |= 1 << (index % 64);
        }
    }

    /// The splice of the flow with this key of its client.
    #[must_use]
    pub fn splice(&self, key: &FlowKey, hash: FlowHash) -> Option<Splice> {
        by_family!(self, key, |table, packed| {
            let place = table.find(&packed, hash)?;
            table.splice(place)
        })
    }

    /// Records the splice of the flow with this key of its client, if the flow is known.
    pub fn set_splice(&mut self, service: ServiceId, key: &FlowKey, hash: FlowHash, splice: Splice) {
        self.may_stream_from_now_on(service);
        by_family!(mut self, key, |table, packed| {
            if let Some(place) = table.find(&packed, hash) {
                table.set_splice(place, splice);
            }
        });
    }
}
