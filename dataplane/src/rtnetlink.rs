//! Requests to the kernel through rtnetlink: one request, one answer or a list, no state.
//!
//! Written by hand because the `rtnetlink` crate needs an async runtime, which the dataplane doesn't have. The message
//! types are those of `netlink-packet-route`.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// A connection to the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    sequence: u32,
}

impl Connection {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the kernel provides none.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request, with these flags in addition to `NLM_F_REQUEST`, and returns its answer. `None` is an
    /// acknowledgement.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Option<RouteNetlinkMessage>> {
        self.send(message, flags)?;
        loop {
            let answer = self.receive()?;
            // The socket may still contain an answer to an earlier request, which could not be read in time.
            if answer.header.sequence_number == self.sequence {
                return Self::read(answer.payload);
            }
        }
    }

    /// Requests a list of objects.
    ///
    /// # Errors
    /// The error of the kernel.
    pub(crate) fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.send(message, NLM_F_DUMP)?;
        let mut found = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let message = Self::parse(rest)?;
                let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                match message.payload {
                    _ if message.header.sequence_number != self.sequence => {}
                    NetlinkPayload::Done(_) => return Ok(found),
                    payload => found.extend(Self::read(payload)?),
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

    fn receive(&self) -> io::Result<NetlinkMessage<RouteNetlinkMessage>> {
        let (answer, _) = self.socket.recv_from_full()?;
        Self::parse(&answer)
    }

    fn parse(bytes: &[u8]) -> io::Result<NetlinkMessage<RouteNetlinkMessage>> {
        NetlinkMessage::deserialize(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }

    fn read(payload: NetlinkPayload<RouteNetlinkMessage>) -> io::Result<Option<RouteNetlinkMessage>> {
        match payload {
            NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
            // An error message without a code is the acknowledgement.
            NetlinkPayload::Error(error) => match error.code {
                None => Ok(None),
                Some(_) => Err(error.to_io()),
            },
            other => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the kernel's message is not an answer: {other:?}"),
            )),
        }
    }
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
        let answer = connection.request(link_request("lo"), 0).expect("an answer");
        let Some(RouteNetlinkMessage::NewLink(link)) = &answer else { panic!("not a link: {answer:?}") };
        assert_eq!(link.header.index, 1, "loopback");
    }
}
