//! Whether this machine can listen on an address and port. HAProxy's validation does not check it, and a HAProxy that
//! can't listen on one address refuses to start with the others.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

/// Binds a socket and closes it. No connection can arrive, because the socket doesn't listen.
///
/// # Errors
/// Why the address cannot be bound.
pub fn check(address: SocketAddr) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // As HAProxy does. Connections of an earlier process don't keep the address, a listener of another program does.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_of_another_machine_or_listener_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let taken = listener.local_addr().expect("it is bound");
        assert_eq!(check(taken).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        check(taken).expect("free");
        let remote = check("192.0.2.1:4000".parse().expect("an address")).expect_err("not local");
        assert_eq!(remote.kind(), io::ErrorKind::AddrNotAvailable);
    }
}
