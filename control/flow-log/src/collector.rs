//! The UDP socket to the IPFIX collector, and when templates are sent.
//!
//! UDP doesn't confirm anything, so templates are repeated (RFC 7011 section 8.4): every [`TEMPLATES_EVERY`], and after
//! a failure, because the collector may have restarted. The collector finds lost messages by their sequence numbers.
//!
//! Invariant: sending never blocks. Records of messages that can't be sent or that the host refuses are counted.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::flow::Flow;
use super::ipfix::{Encoder, Message};

/// The time between two messages with templates.
pub(crate) const TEMPLATES_EVERY: Duration = Duration::from_secs(30);

/// See [the module](self).
#[derive(Debug)]
pub(crate) struct Collector {
    address: SocketAddr,
    encoder: Encoder,
    socket: Option<UdpSocket>,
    templates_at: Option<Instant>,
    /// Data records of the message before, which the host of the collector may still refuse.
    in_flight: u32,
}

/// Records that were not sent, and the last error.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    pub(crate) records: u64,
    pub(crate) error: Option<io::Error>,
}

impl Collector {
    pub(crate) fn new(address: SocketAddr, domain: u32) -> Self {
        Self { address, encoder: Encoder::new(domain), socket: None, templates_at: None, in_flight: 0 }
    }

    /// Sends records, and the templates if they are due. `export_s` is the time in seconds since 1970.
    pub(crate) fn send(&mut self, flows: &[Flow], export_s: u32, now: Instant) -> Unsent {
        let mut unsent = Unsent::default();
        // A restarted collector needs the templates before the first record.
        if !flows.is_empty()
            && let Some(error) = self.socket.as_ref().and_then(|socket| socket.take_error().ok().flatten())
        {
            self.was_refused(error, &mut unsent);
        }
        if self.templates_at.is_none_or(|at| now.saturating_duration_since(at) >= TEMPLATES_EVERY) {
            self.templates_at = Some(now);
            let templates = self.encoder.templates(export_s);
            self.transmit(&templates, &mut unsent);
        }
        for flow in flows {
            if let Some(full) = self.encoder.add(flow, export_s) {
                self.transmit(&full, &mut unsent);
            }
        }
        if let Some(rest) = self.encoder.take(export_s) {
            self.transmit(&rest, &mut unsent);
        }
        unsent
    }

    fn transmit(&mut self, message: &Message, unsent: &mut Unsent) {
        let sent = match self.try_transmit(&message.bytes) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.was_refused(error, unsent);
                self.try_transmit(&message.bytes)
            }
            sent => sent,
        };
        match sent {
            Ok(()) => self.in_flight = message.records,
            Err(error) => {
                unsent.records += u64::from(message.records);
                unsent.error = Some(error);
                // The own address, or the route, may have changed.
                (self.socket, self.templates_at) = (None, None);
            }
        }
    }

    /// Records that the host of the collector has refused the message before.
    fn was_refused(&mut self, error: io::Error, unsent: &mut Unsent) {
        unsent.records += u64::from(std::mem::take(&mut self.in_flight));
        unsent.error = Some(error);
        self.templates_at = None;
    }

    fn try_transmit(&mut self, message: &[u8]) -> io::Result<()> {
        if self.socket.is_none() {
            let any: SocketAddr = match self.address {
                SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
            };
            let socket = UdpSocket::bind(any)?;
            socket.set_nonblocking(true)?;
            socket.connect(self.address)?;
            self.socket = Some(socket);
        }
        let Some(socket) = &self.socket else { return Ok(()) };
        socket.send(message).map(drop)
    }
}
