//! A small SCTP endpoint (RFC 9260) that reports its own name and the client's address, and its client.
//!
//! An association has one message in each direction and ends by a shutdown. Both sides build and check every packet
//! themselves on raw sockets, because the kernel may lack SCTP, and so need no library in C. The end-to-end tests also
//! use usrsctp, a complete implementation.
//!
//! Each raw socket is bound to one address, so that an answer leaves from the address that received the packet.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tidegate_wire::sctp::{HEADER_LEN, chunk, crc32c};

use crate::addresses::{SCTP_PORT, SCTP_TARGET_PORT};
use crate::client::{BackendAnswer, TIMEOUT};

/// The protocol number of SCTP.
const SCTP: i32 = 132;
/// Selective acknowledgement, which the gateway does not need to know.
const SACK: u8 = 3;
/// The type of the cookie parameter (RFC 9260 section 3.3.3.1).
const STATE_COOKIE: u16 = 7;
/// A client retransmits a packet after this time without an answer.
const AGAIN: Duration = Duration::from_millis(300);

/// Serves `addresses` until a socket fails.
///
/// # Errors
/// Without root, and when an address cannot be bound.
pub fn serve(name: &str, addresses: &[IpAddr]) -> Result<()> {
    ensure!(!addresses.is_empty(), "sctp-echo: no address to bind");
    let sockets =
        addresses.iter().map(|address| open(*address)).collect::<Result<Vec<_>>>().context("sctp-echo")?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            sockets.into_iter().map(|socket| scope.spawn(move || answer(name, socket))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("answer does not panic"))
    })
}

/// Opens an association from `source` to `to`, in the namespace of the calling thread, sends `text`, and shuts it down.
/// Returns which backend answered.
///
/// # Errors
/// When there is no answer within [`TIMEOUT`], or a wrong one.
pub fn request_here(source: IpAddr, to: SocketAddr, text: &str) -> Result<BackendAnswer> {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(0);
    let from = 20_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 40_000;
    let mut client = Client { socket: open(source)?, to, from, own_tag: tag() };
    let own_tsn = tag();
    let own_tag = client.own_tag;
    let init = client.request(0, &[init(chunk::INIT, own_tag, own_tsn, &[])], chunk::INIT_ACK)?;
    let [peer_tag, _, _, peer_tsn] = words(&init).context("the INIT ACK is too short")?;
    // The value of the only parameter of this server's INIT ACK.
    let cookie = init.get(20..).context("the INIT ACK has no cookie")?;
    let first = [chunk_of(chunk::COOKIE_ECHO, 0, cookie), data(own_tsn, text.as_bytes())];
    let answer = client.request(peer_tag, &first, chunk::DATA)?;
    let answer =
        String::from_utf8_lossy(answer.get(12..).context("the DATA chunk is too short")?).into_owned();
    let shutdown = [sack(peer_tsn), chunk_of(chunk::SHUTDOWN, 0, &peer_tsn.to_be_bytes())];
    client.request(peer_tag, &shutdown, chunk::SHUTDOWN_ACK)?;
    client.send(peer_tag, &[chunk_of(chunk::SHUTDOWN_COMPLETE, 0, &[])])?;
    ensure!(answer.ends_with(text), "sent `{text}`, received `{answer}`");
    BackendAnswer::parse(&answer).with_context(|| format!("unexpected answer `{answer}`"))
}

/// A raw socket of SCTP at `address`.
fn open(address: IpAddr) -> Result<Socket> {
    let at = SocketAddr::new(address, 0);
    let socket = Socket::new(Domain::for_address(at), Type::RAW, Some(Protocol::from(SCTP)))?;
    socket.bind(&SockAddr::from(at)).with_context(|| format!("{address}"))?;
    Ok(socket)
}

/// The client's side of one association.
struct Client {
    socket: Socket,
    to: SocketAddr,
    from: u16,
    own_tag: u32,
}

impl Client {
    fn send(&self, tag: u32, chunks: &[Vec<u8>]) -> Result<()> {
        let packet = packet(self.from, self.to.port(), tag, chunks);
        self.socket.send_to(&packet, &SockAddr::from(SocketAddr::new(self.to.ip(), 0)))?;
        Ok(())
    }

    /// Sends chunks repeatedly until the peer sends a chunk of type `wanted`. Returns the content of that chunk.
    fn request(&mut self, tag: u32, chunks: &[Vec<u8>], wanted: u8) -> Result<Vec<u8>> {
        let begin = Instant::now();
        self.socket.set_read_timeout(Some(AGAIN))?;
        while begin.elapsed() < TIMEOUT {
            self.send(tag, chunks)?;
            let sent = Instant::now();
            while sent.elapsed() < AGAIN {
                let Ok(received) = receive(&mut self.socket, self.to.is_ipv4()) else { break };
                let is_ours = (received.from, received.to) == (self.to.port(), self.from);
                if !is_ours || received.tag != self.own_tag {
                    continue;
                }
                ensure!(received.find(chunk::ABORT).is_none(), "{}: the server aborted", self.to);
                if let Some(body) = received.find(wanted) {
                    return Ok(body.to_vec());
                }
            }
        }
        bail!("{}: no chunk of type {wanted} in {TIMEOUT:?}, own tag {:x}", self.to, self.own_tag)
    }
}

/// The server's side: it answers each packet, and remembers the tag of each client until the shutdown.
fn answer(name: &str, mut socket: Socket) -> Result<()> {
    let is_v4 = socket.local_addr()?.is_ipv4();
    let mut clients = HashMap::<(SocketAddr, u32), (u32, u32)>::new();
    loop {
        let received = match receive(&mut socket, is_v4) {
            Ok(received) => received,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => continue,
            Err(error) => return Err(error).context("sctp-echo: cannot receive"),
        };
        if ![SCTP_PORT, SCTP_TARGET_PORT].contains(&received.to) {
            continue;
        }
        let client = SocketAddr::new(received.source, received.from);
        let mut reply = Vec::new();
        let mut peer_tag = 0;
        if let Some([theirs, ..]) = received.find(chunk::INIT).and_then(words) {
            let (own_tag, own_tsn) = (tag(), tag());
            let cookie: Vec<u8> =
                [own_tag, theirs, own_tsn].iter().flat_map(|word| word.to_be_bytes()).collect();
            peer_tag = theirs;
            reply.push(init(chunk::INIT_ACK, own_tag, own_tsn, &cookie));
        } else if let Some(cookie) = received.find(chunk::COOKIE_ECHO) {
            let Some([own_tag, theirs, own_tsn, _]) = words(cookie) else { continue };
            let Some((tsn, text)) = received.find(chunk::DATA).and_then(|data| data.split_first_chunk())
            else {
                continue;
            };
            if own_tag != received.tag {
                continue;
            }
            clients.insert((client, own_tag), (theirs, own_tsn));
            peer_tag = theirs;
            let mut answer = format!("{name} client={client} ").into_bytes();
            answer.extend_from_slice(text.get(8..).unwrap_or_default());
            reply.extend([
                chunk_of(chunk::COOKIE_ACK, 0, &[]),
                sack(u32::from_be_bytes(*tsn)),
                data(own_tsn, &answer),
            ]);
        } else if let (Some(_), Some((theirs, _))) =
            (received.find(chunk::SHUTDOWN), clients.get(&(client, received.tag)))
        {
            peer_tag = *theirs;
            reply.push(chunk_of(chunk::SHUTDOWN_ACK, 0, &[]));
        } else if received.find(chunk::SHUTDOWN_COMPLETE).is_some() {
            clients.remove(&(client, received.tag));
        }
        if !reply.is_empty() {
            let bytes = packet(received.to, received.from, peer_tag, &reply);
            // If an answer cannot be sent, the client retransmits its request.
            let _ = socket.send_to(&bytes, &SockAddr::from(SocketAddr::new(received.source, 0)));
        }
    }
}

/// A packet with a correct checksum.
struct Received {
    source: IpAddr,
    from: u16,
    to: u16,
    tag: u32,
    chunks: Vec<u8>,
}

impl Received {
    /// The content of the first chunk of this type.
    fn find(&self, kind: u8) -> Option<&[u8]> {
        let mut rest = &self.chunks[..];
        while let Some(([found, _, high, low], _)) = rest.split_first_chunk() {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let body = rest.get(4..length)?;
            if *found == kind {
                return Some(body);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
        None
    }
}

/// Receives one packet. A malformed one, or one with a wrong checksum, is [`std::io::ErrorKind::InvalidData`].
fn receive(socket: &mut Socket, is_v4: bool) -> std::io::Result<Received> {
    let mut buffer = [0; 2048];
    // `recv_from` of the crate needs uninitialized memory, so `peek_sender` reads the source first.
    let source = socket.peek_sender()?.as_socket().map(|source| source.ip());
    let length = socket.read(&mut buffer)?;
    let parsed = || {
        // The kernel delivers the IPv4 header, but not the IPv6 header.
        let header = if is_v4 { 4 * usize::from(buffer[0] & 15) } else { 0 };
        let packet = buffer.get(header..length)?;
        let (head, chunks) = packet.split_first_chunk::<HEADER_LEN>()?;
        let [a, b, c, d, tag @ .., e, f, g, h] = *head;
        (crc32c(packet) == [e, f, g, h]).then_some(Received {
            source: source?,
            from: u16::from_be_bytes([a, b]),
            to: u16::from_be_bytes([c, d]),
            tag: u32::from_be_bytes(tag),
            chunks: chunks.to_vec(),
        })
    };
    parsed().ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn packet(from: u16, to: u16, tag: u32, chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = [&from.to_be_bytes()[..], &to.to_be_bytes(), &tag.to_be_bytes(), &[0; 4]].concat();
    bytes.extend(chunks.concat());
    let sum = crc32c(&bytes);
    bytes[8..HEADER_LEN].copy_from_slice(&sum);
    bytes
}

/// A chunk with its header, padded to a multiple of four bytes.
fn chunk_of(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + body.len()).expect("a short chunk");
    let mut bytes = [&[kind, flags][..], &length.to_be_bytes(), body].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// INIT or INIT ACK: tag, window, one stream each way, first TSN, and the cookie if there is one.
fn init(kind: u8, tag: u32, tsn: u32, cookie: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> =
        [tag, 65_536, 1 << 16 | 1, tsn].iter().flat_map(|word| word.to_be_bytes()).collect();
    if !cookie.is_empty() {
        let length = u16::try_from(4 + cookie.len()).expect("a short cookie");
        body.extend([STATE_COOKIE.to_be_bytes(), length.to_be_bytes()].concat());
        body.extend(cookie);
    }
    chunk_of(kind, 0, &body)
}

/// A whole message in one DATA chunk.
fn data(tsn: u32, text: &[u8]) -> Vec<u8> {
    const WHOLE: u8 = 3;
    chunk_of(chunk::DATA, WHOLE, &[&tsn.to_be_bytes()[..], &[0; 8], text].concat())
}

fn sack(tsn: u32) -> Vec<u8> {
    chunk_of(SACK, 0, &[&tsn.to_be_bytes()[..], &65_536_u32.to_be_bytes(), &[0; 4]].concat())
}

/// The first four words of a chunk. A fourth one that is missing is zero.
fn words(body: &[u8]) -> Option<[u32; 4]> {
    let word =
        |n: usize| body.get(4 * n..).and_then(|rest| rest.first_chunk().copied()).map(u32::from_be_bytes);
    Some([word(0)?, word(1)?, word(2)?, word(3).unwrap_or(0)])
}

/// A random tag or TSN that is not zero.
fn tag() -> u32 {
    (RandomState::new().build_hasher().finish() as u32).max(1)
}
