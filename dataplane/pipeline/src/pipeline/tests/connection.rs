//! Connections through the lab. A [`Connection`] has both ends, so that a test reads like the sequence of events.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_wire::tcp::flags::{ACK, FIN, SYN};
use tidegate_wire::{Headers, Parsed, parse};

use super::lab::{FrameResult, Lab, backend_mac};
use crate::pipeline::FlowNote;
use crate::testing::builder::{Builder, GATEWAY_MAC};

/// A unique client for each number.
pub(super) fn client(n: u32) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0xc612_0000 + n / 50_000)), 10_000 + (n % 50_000) as u16)
}

pub(super) fn headers(frame: &[u8]) -> Headers {
    match parse(frame) {
        Ok(Parsed::Ip(h)) => h,
        other => panic!("not IP: {other:?}"),
    }
}

pub(super) fn ends(frame: &[u8]) -> (SocketAddr, SocketAddr) {
    let h = headers(frame);
    (SocketAddr::new(h.src.ip(), h.src_port), SocketAddr::new(h.dst.ip(), h.dst_port))
}

/// A flow with a backend, in a mode with translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) client: SocketAddr,
    pub(super) vip: SocketAddr,
    /// The client's address and port as the backend sees them.
    pub(super) local: SocketAddr,
    pub(super) backend: SocketAddr,
}

impl Connection {
    fn created(client: SocketAddr, vip: &str, result: &FrameResult) -> Result<Self, Refusal> {
        if matches!(result.verdict, Verdict::Drop(_)) {
            return Err(result.refused());
        }
        let (local, backend) = ends(result.sent(TransmitReason::Forward));
        Ok(Self { client, vip: vip.parse().unwrap(), local, backend })
    }

    pub(super) fn send_syn(lab: &mut Lab, client: SocketAddr, vip: &str) -> Result<Self, Refusal> {
        let result = lab.send(Builder::tcp(client, vip).flags(SYN));
        Self::created(client, vip, &result)
    }

    pub(super) fn open(lab: &mut Lab, client: SocketAddr, vip: &str) -> Result<Self, Refusal> {
        let connection = Self::send_syn(lab, client, vip)?;
        connection.answer_tcp(lab, SYN | ACK);
        connection.query_tcp(lab, ACK);
        Ok(connection)
    }

    /// Sends a datagram, which creates a flow if there is none.
    pub(super) fn query(lab: &mut Lab, client: SocketAddr, vip: &str) -> Result<Self, Refusal> {
        let result = lab.send(Builder::udp(client, vip));
        Self::created(client, vip, &result)
    }

    pub(super) fn try_tcp(&self, lab: &mut Lab, flags: u8) -> FrameResult {
        lab.send(Builder::tcp(self.client, self.vip).flags(flags))
    }

    /// Sends a segment of the client, which must reach the backend with unchanged translation.
    pub(super) fn query_tcp(&self, lab: &mut Lab, flags: u8) {
        let result = self.try_tcp(lab, flags);
        assert_eq!(ends(result.sent(TransmitReason::Forward)), (self.local, self.backend));
    }

    fn send_back(&self, lab: &mut Lab, answer: Builder) -> FrameResult {
        let IpAddr::V4(backend) = self.backend.ip() else { panic!("these tests use IPv4") };
        lab.receive(&answer.mac(backend_mac(backend.octets()[3]), GATEWAY_MAC).build())
    }

    pub(super) fn try_answer_tcp(&self, lab: &mut Lab, flags: u8) -> FrameResult {
        self.send_back(lab, Builder::tcp(self.backend, self.local).flags(flags))
    }

    /// Sends a segment of the backend, which must reach the client from the VIP.
    pub(super) fn answer_tcp(&self, lab: &mut Lab, flags: u8) {
        let result = self.try_answer_tcp(lab, flags);
        assert_eq!(ends(result.sent(TransmitReason::Reply)), (self.vip, self.client));
    }

    /// Sends a datagram of the backend, which must reach the client from the VIP.
    pub(super) fn answer(&self, lab: &mut Lab) {
        let result = self.send_back(lab, Builder::udp(self.backend, self.local));
        assert_eq!(ends(result.sent(TransmitReason::Reply)), (self.vip, self.client));
    }

    /// Closes the connection, the client first.
    pub(super) fn close(&self, lab: &mut Lab) {
        self.query_tcp(lab, FIN | ACK);
        self.answer_tcp(lab, FIN | ACK);
        self.query_tcp(lab, ACK);
    }

    /// Sends data in both directions.
    pub(super) fn continues(&self, lab: &mut Lab) {
        self.query_tcp(lab, ACK);
        self.answer_tcp(lab, ACK);
    }

    /// Whether a segment of the client belongs to no flow.
    pub(super) fn is_forgotten(&self, lab: &mut Lab) -> bool {
        self.try_tcp(lab, ACK).note.flow != FlowNote::Known
    }

    /// Whether the gateway still has the flow, so that a repeated SYN takes the same path.
    pub(super) fn is_known(&self, lab: &mut Lab) -> bool {
        self.try_tcp(lab, SYN).note.flow == FlowNote::Known
    }
}
