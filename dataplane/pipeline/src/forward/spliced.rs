//! Changes the sequence numbers of a connection that began with a SYN cookie: client and backend
//! have different initial sequence numbers for the server's side.
//!
//! All checksums are updated by difference. The client's own sequence numbers don't change.

use tidegate_conntrack::Splice;
use tidegate_wire::tcp::{self, flags};
use tidegate_wire::tcp_options::{self, kind};
use tidegate_wire::{Headers, quote};

use super::proxy_protocol::{edit_tcp, set_word};

/// Changes the numbers that a client acknowledges to those of the backend: the acknowledgement number and the blocks of
/// selective acknowledgements (RFC 2018).
pub fn to_backend(frame: &mut [u8], h: &Headers, splice: &Splice) {
    if h.tcp_flags & flags::ACK == 0 {
        return;
    }
    edit_tcp(frame, h, |tcp| {
        set_word(tcp, 8, |ack| splice.to_backend(ack));
        tcp_options::edit_options(&mut tcp[tcp::HEADER_LEN..], |option, bytes| {
            if option == kind::SACK {
                for edge in bytes[2..].chunks_exact_mut(4) {
                    set_word(edge, 0, |edge| splice.to_backend(edge));
                }
            }
        });
    });
}

/// Changes the sequence number of a backend's segment to the one that the client knows.
pub fn to_client(frame: &mut [u8], h: &Headers, splice: &Splice) {
    edit_tcp(frame, h, |tcp| set_word(tcp, 4, |seq| splice.to_client(seq)));
}

/// Changes the sequence number in an ICMP error about a backend's segment to the one that the backend sent.
#[cold]
pub fn error_to_backend(frame: &mut [u8], h: &Headers, splice: &Splice) {
    quote::set_sequence(frame, h, |seq| splice.to_backend(seq));
}
