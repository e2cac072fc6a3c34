//! SYN cookies (`nat` and `fullnat`): answers the SYNs of a service under flood without a flow, and completes the
//! handshakes of the clients that return the cookie.
//!
//! 1. A SYN to a service under flood becomes a SYN ACK in place. Nothing is stored.
//! 2. The client's next segment returns the cookie. The flow is created: a backend is chosen, the limits count the
//!    flow, and the segment is replaced by the client's SYN and sent to the backend. The segment's data is dropped; the
//!    client retransmits it.
//! 3. Until the backend answers, that SYN replaces every segment of the client, so the client's retransmissions also
//!    repair the loss of the SYN. No timer and no buffer is needed.
//! 4. The backend's SYN ACK becomes its acknowledgement in place, and determines the offset between both sides
//!    ([`Splice`]). A retransmitted SYN ACK is acknowledged again.
//! 5. From then on, [`forward::spliced`] translates the sequence numbers of the backend's side.
//!
//! Each worker detects a flood of a service by its number of flow entries that are not established, which the flow
//! table counts anyway. Both packets of a client arrive at one worker (`owners`), so workers needn't share this state.
//!
//! [`forward::spliced`]: crate::forward::spliced

use core::ops::ControlFlow;

use tidegate_conntrack::{FlowHash, Splice};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::counters::Tallies;
use tidegate_snapshot::service::Service;
use tidegate_spec::SynCookies;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::proxy_header::{self, ProxyVersion};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::tcp::{self, flags};
use tidegate_wire::{Headers, L4Checksum, Parsed, mss, parse, proto, quote};

use super::answered_frames::{is_from_one_station, replace_with};
use super::burst::{Burst, Destination, Packet as BurstPacket};
use super::cookie_state::CookieCounts;
use super::next_hop::next_hop_of;
use super::proxied::{Change, key_of};
use super::request::{Chosen, Request};
use super::state::Pipeline;
use super::syn_cookie;
use super::translated::{finish_translated, limit_segments, translate};
use crate::forward::{proxy_protocol, toa};
use crate::frame::Frame;

impl Pipeline {
    /// The SYN cookie counts of this worker.
    #[must_use]
    pub fn cookie_counts(&self) -> CookieCounts {
        self.cookies.counts
    }

    /// Writes to `tallies` which services are under flood on this worker and so use SYN cookies, and returns their
    /// number. Call it several times a second: it detects the end of a flood even if no more SYNs arrive.
    pub fn report_floods(&mut self, snapshot: &Snapshot, tallies: &Tallies, now: Now) -> usize {
        for at in (0..self.cookies.flooded.len()).rev() {
            let id = self.cookies.flooded[at].0;
            match snapshot.service_by_id(id) {
                Some(service) if service.syn_cookies == SynCookies::Auto => {
                    let opening = self.flows.nat.opening_of(id, service.vip.family());
                    self.cookies.is_under_flood(id, opening, now);
                }
                _ => drop(self.cookies.flooded.swap_remove(at)),
            }
        }
        self.cookies.report(tallies);
        self.cookies.flooded.len()
    }

    /// Whether the SYN of an unknown flow is answered with a cookie.
    #[inline]
    pub(super) fn needs_cookie(&mut self, service: &Service, now: Now) -> bool {
        match service.syn_cookies {
            SynCookies::Off => false,
            SynCookies::Always => true,
            SynCookies::Auto => {
                let opening = self.flows.nat.opening_of(service.id, service.vip.family());
                (opening >= self.cookies.from || !self.cookies.flooded.is_empty())
                    && self.cookies.is_under_flood(service.id, opening, now)
            }
        }
    }

    /// Rewrites a SYN into the SYN ACK with a cookie. Reply limits don't apply, because the answer is no longer than the
    /// SYN.
    #[cold]
    pub(super) fn answer_with_cookie<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        service: &Service,
    ) {
        let announced = announced(burst, h, service);
        let (mac, now) = (burst.interface.mac, burst.now);
        let frame = &mut burst.frames[at];
        let segment = tcp::segment(frame.bytes(), h).filter(|_| is_from_one_station(frame));
        let answered = segment.is_some_and(|segment| {
            let offer = syn_cookie::Offer::of(frame.bytes(), h);
            let cookie = syn_cookie::cookie(&self.cookies.key, h, segment.seq, offer, now.0);
            let answer = syn_cookie::syn_ack(frame.bytes(), h, mac, cookie, segment.seq, announced);
            replace_with(frame, &answer)
        });
        if answered {
            self.cookies.counts.sent += 1;
            self.cookies.last_sent = Some(now);
        }
        burst.answer_or(at, answered, TransmitReason::SynCookie, Refusal::SynCookie);
    }

    /// Creates the flow of a segment of an unknown connection that returns a cookie.
    ///
    /// # Errors
    /// [`Refusal::NoFlow`] if the cookie is missing or invalid, otherwise the reason why no flow can be created.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_by_cookie<'s, F: Frame>(
        &mut self,
        burst: &mut Burst<'s, '_, F>,
        request: &Request<'_>,
        h: &Headers,
    ) -> Result<Chosen<'s>, Refusal> {
        let frame = burst.frames[burst.frame_of(request.packet)].bytes();
        let splice = self.returned_cookie(frame, h, burst.now).ok_or(Refusal::NoFlow)?;
        if h.ttl <= 1 {
            return Err(Refusal::TtlExceeded);
        }
        let (key, hash) = (request.key, request.flow_hash);
        let chosen = self.insert_flow(burst, &request.with_syn(), h)?;
        self.flows.nat.set_splice(request.service.id, &key, hash, splice);
        // The client has proved its address, but the flow counts as unanswered: anyone can send an ACK after a SYN.
        let _ = self.flows.nat.lookup(&key, hash, request.kind, burst.now);
        self.cookies.counts.accepted += 1;
        Ok(chosen)
    }

    /// The splice for a segment that returns a cookie; `None` if the cookie is missing or invalid.
    fn returned_cookie(&mut self, frame: &[u8], h: &Headers, now: Now) -> Option<Splice> {
        if h.proto != proto::TCP || !self.cookies.may_return(now) {
            return None;
        }
        let first = tcp::segment(frame, h)
            .filter(|segment| segment.flags & (flags::SYN | flags::ACK | flags::RST) == flags::ACK);
        let returned = first.and_then(|segment| {
            let (isn, cookie) = (segment.seq.wrapping_sub(1), segment.ack.wrapping_sub(1));
            let is_valid = syn_cookie::is_valid(&self.cookies.key, h, isn, cookie, now.0);
            is_valid.then(|| Splice { cookie, isn, window: window(frame, h), backend: None })
        });
        self.cookies.counts.refused += u64::from(returned.is_none());
        returned
    }

    /// Processes a packet of a flow that began with a cookie, until its backend has answered. `Continue` has the
    /// splice by which the packet must be translated, if there is one.
    pub(super) fn follow_splice<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        packet: u8,
        destination: &Destination<'_>,
    ) -> ControlFlow<(), Option<Splice>> {
        let BurstPacket { headers: h, frame, .. } = &burst.packets[usize::from(packet)];
        let (at, h) = (usize::from(*frame), *h);
        let is_tcp = h.l4_checksum == L4Checksum::Tcp;
        match *destination {
            Destination::Backend { service, .. } if is_tcp => {
                let client = Endpoint { addr: h.src, port: h.src_port };
                let Some((splice, _)) = self.splice(service, client) else {
                    return ControlFlow::Continue(None);
                };
                if splice.backend.is_none() && h.tcp_flags & flags::RST == 0 {
                    send_syn(burst, at, &h, destination, &splice);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(Some(splice))
            }
            Destination::Client { service, client, .. } if is_tcp => {
                let Some((splice, hash)) = self.splice(service, client) else {
                    return ControlFlow::Continue(None);
                };
                self.follow_backend(burst, at, &h, (service, client), (splice, hash))
            }
            Destination::Backend { service, .. } if h.is_icmp_error() => {
                let quoted = quote::parse(burst.frames[at].bytes(), &h).ok().flatten();
                let client = quoted.map(|quoted| Endpoint { addr: quoted.dst, port: quoted.dst_port });
                let found = client.and_then(|client| self.splice(service, client));
                ControlFlow::Continue(found.map(|(splice, _)| splice))
            }
            _ => ControlFlow::Continue(None),
        }
    }

    /// [`Self::follow_splice`] for a backend's segment.
    fn follow_backend<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        (service, client): (&Service, Endpoint),
        (splice, hash): (Splice, FlowHash),
    ) -> ControlFlow<(), Option<Splice>> {
        const SYN_ACK: u8 = flags::SYN | flags::ACK;
        let frame = burst.frames[at].bytes();
        let (seq, ack) = (proxy_protocol::sequence(frame, h), proxy_protocol::acknowledgement(frame, h));
        let confirms = h.tcp_flags & (SYN_ACK | flags::RST) == SYN_ACK && ack == splice.isn.wrapping_add(1);
        match splice.backend {
            _ if confirms && splice.backend.is_none_or(|backend| backend == seq) => {
                if self.acknowledge(burst, at, h, service, client, &splice) {
                    self.flows.nat.set_splice(service.id, &key_of(service, client), hash, splice.join(seq));
                }
                ControlFlow::Break(())
            }
            Some(_) => ControlFlow::Continue(Some(splice)),
            // The backend refuses the connection. The client expects the sequence number after the cookie.
            None if h.tcp_flags & flags::RST != 0 => {
                ControlFlow::Continue(Some(splice.join(seq.wrapping_sub(1))))
            }
            // The segment belongs to an earlier connection.
            None => {
                burst.set(at, Refusal::NoFlow);
                ControlFlow::Break(())
            }
        }
    }

    /// Rewrites a backend's SYN ACK into its acknowledgement, with the PROXY protocol header or TOA option if the
    /// backend gets one, since the client's data starts here. Returns whether the acknowledgement is sent.
    fn acknowledge<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        service: &Service,
        client: Endpoint,
        splice: &Splice,
    ) -> bool {
        if h.is_fragment() || !is_from_one_station(&burst.frames[at]) {
            burst.set(at, Refusal::SynCookie);
            return false;
        }
        let stream = match self.change_to_client(burst.frames[at].bytes(), h, service, client) {
            Change::SynAck(stream) => Some(stream),
            _ => None,
        };
        let header = stream.map(|stream| self.stream_header(burst.view.snapshot, service, client, &stream));
        let is_option = stream.is_some_and(|stream| stream.version == ProxyVersion::Toa);
        let mac = burst.interface.mac;
        let frame = &mut burst.frames[at];
        // The backend reads the option in this segment only, and a frame without headroom must stay unchanged.
        if let Some(option) = header.as_ref().filter(|_| is_option) {
            if !frame.grow_front(option.len()) {
                burst.set(at, Refusal::NoHeadroom);
                return false;
            }
            frame.shrink_front(option.len());
        }
        let ack = syn_cookie::ack(frame.bytes(), h, mac, splice.window);
        if !replace_with(frame, &ack) {
            burst.set(at, Refusal::NoHeadroom);
            return false;
        }
        if let Some(header) = header
            && let Ok(Parsed::Ip(mut sent)) = parse(frame.bytes())
        {
            // Without headroom, the client's first data segment carries the header.
            let _ = match is_option {
                true => toa::insert(frame, &mut sent, &header, 0),
                false => proxy_protocol::insert(frame, &mut sent, &header, 0),
            };
        }
        let interface = burst.arrival.interface();
        burst.set(at, Verdict::Transmit { interface, why: TransmitReason::SynCookie });
        true
    }

    /// The splice of a client's flow, and the hash of the flow.
    pub(super) fn splice(&self, service: &Service, client: Endpoint) -> Option<(Splice, FlowHash)> {
        if !self.flows.nat.may_stream(service.id) {
            return None;
        }
        let key = key_of(service, client);
        let hash = self.flows.hash(&key);
        Some((self.flows.nat.splice(&key, hash)?, hash))
    }
}

/// Replaces a client's segment by the client's SYN, and sends that to the backend.
fn send_syn<F: Frame>(
    burst: &mut Burst<'_, '_, F>,
    at: usize,
    h: &Headers,
    destination: &Destination<'_>,
    splice: &Splice,
) {
    let hop = match next_hop_of(&burst.view, destination) {
        Ok(hop) => hop,
        Err(no_next_hop) => return no_next_hop.report(burst, at),
    };
    if h.is_fragment() {
        return burst.set(at, Refusal::SynCookie);
    }
    if h.ttl <= 1 {
        return burst.set(at, Refusal::TtlExceeded);
    }
    let frame = &mut burst.frames[at];
    let syn = syn_cookie::syn(frame.bytes(), h, splice.isn, splice.cookie, window(frame.bytes(), h));
    // A frame without headroom must stay unchanged.
    let spare = hop.link.header_len().saturating_sub(usize::from(h.l3));
    if !frame.grow_front(spare) {
        return burst.set(at, Refusal::NoHeadroom);
    }
    frame.shrink_front(spare);
    let Ok(Parsed::Ip(mut sent)) = parse(&syn) else { return burst.set(at, Refusal::SynCookie) };
    if !replace_with(frame, &syn) {
        return burst.set(at, Refusal::NoHeadroom);
    }
    let mss_limit = destination.service().mss_limit;
    if mss_limit > 0 {
        limit_segments(burst, at, &sent, mss_limit, &hop);
    }
    if let Err(no_headroom) = translate(&mut burst.frames[at], &mut sent, destination, &hop.link) {
        return burst.set(at, Refusal::from(no_headroom));
    }
    finish_translated(burst, at, &sent, destination, &hop, usize::from(h.ip_len()));
}

/// The segment size announced to a client whose backend isn't chosen yet: it fits every link of the gateway and the
/// limit of the service, and leaves space for the header that the backend gets.
fn announced<F>(burst: &Burst<'_, '_, F>, h: &Headers, service: &Service) -> u16 {
    let mtu = burst.view.snapshot.interfaces().iter().map(|interface| usize::from(interface.mtu)).min();
    let limit = if service.mss_limit > 0 { service.mss_limit } else { u16::MAX };
    let most = mss::most(h.family, mtu.unwrap_or_default(), limit);
    let header = if service.proxy_protocol.is_some() { proxy_header::LEN_MAX as u16 } else { 0 };
    most - header
}

fn window(frame: &[u8], h: &Headers) -> u16 {
    let l4 = usize::from(h.l4);
    u16::from_be_bytes([frame[l4 + 14], frame[l4 + 15]])
}
