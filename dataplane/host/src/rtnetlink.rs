//! Requests to the kernel through rtnetlink: one request and all of its answers, no state.
//!
//! Written by hand because the `rtnetlink` crate needs an async runtime, which neither the dataplane nor the announcer's
//! thread has. The message types are those of `netlink-packet-route`.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A connection to the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the kernel provides none.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request, with these flags in addition to `NLM_F_REQUEST` and `NLM_F_ACK`, and returns its answers: all
    /// objects for `NLM_F_DUMP`, the object of another query, none for a change.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_ACK | flags)?;
        let mut answers = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages are aligned to four bytes. A header has 16.
                let length = (message.header.length as usize).max(16).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                // The socket may still contain an answer to an earlier request, which could not be read in time.
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    // An error message without a code is the acknowledgement.
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    other => {
                        let what = format!("the kernel's message is not an answer: {other:?}");
                        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                    }
                }
            }
        }
    }

    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(drop)
    }
}

/// Whether the kernel has no such route (ESRCH).
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    use super::*;

    fn link_request(name: &str) -> RouteNetlinkMessage {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        RouteNetlinkMessage::GetLink(message)
    }

    #[test]
    fn an_unread_answer_is_not_mistaken_for_the_next_one() {
        let mut connection = Connection::open().expect("netlink");
        connection.send(link_request("no-such-link"), 0).expect("sent");
        let answers = connection.request(link_request("lo"), 0).expect("an answer");
        let [RouteNetlinkMessage::NewLink(link)] = &answers[..] else { panic!("not a link: {answers:?}") };
        assert_eq!(link.header.index, 1, "loopback");
    }
}
