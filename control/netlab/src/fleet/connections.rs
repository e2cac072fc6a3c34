//! Live TCP connections from the clients to `tcp-echo` of the servers, all pinged repeatedly by one thread.
//!
//! A connection breaks when it is reset or closed, when another backend answers, or when an answer does not arrive
//! within [`SILENCE`], which leaves TCP time for several retransmissions. The connections of a dead backend are counted
//! separately: no gateway can save them.
//!
//! One process has these connections. [`super::client_processes`] spreads more of them over several.

use super::super::addresses::{CLIENT_ADDRESSES, Family, client};
use super::super::client::{BackendAnswer, connect_here};
use super::super::poll::wait_for;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A connection without an answer for this time is broken. Routes may be missing for some seconds, and TCP doubles its
/// retransmission timeout: starting with 0.2 s, the eighth retransmission is 51 s after the loss.
const SILENCE: Duration = Duration::from_secs(100);
/// The pause between two rounds of pings.
const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of lines that wait for an answer while others are still to be sent. More at once would overflow
/// the queues of the lab's links, which real clients don't do, and each loss delays a connection by seconds.
const WINDOW: usize = 256;
/// If that many do not answer, [`TRICKLE`] more are sent after each period of this length.
const PACE: Duration = Duration::from_millis(50);
/// Few, because connections that fall silent together retransmit together, up to 51 s later.
const TRICKLE: usize = 16;
/// The maximum time of one round: the silence of the last connection, and the work on a busy machine.
const ROUND_BOUND: Duration = Duration::from_secs(150);
/// The maximum time of one connection attempt.
const CONNECT_BOUND: Duration = Duration::from_secs(20);
/// Threads that open connections.
const OPENERS: usize = 8;

/// One connection.
#[derive(Debug)]
struct Connection {
    /// The index of its Service.
    service: usize,
    backend: String,
    stream: TcpStream,
    /// The received part of the expected line.
    received: Vec<u8>,
    /// The reason why it has broken.
    broken: Option<String>,
}

/// The tally of the connections of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Connections that were opened.
    pub opened: usize,
    /// Connections that broke although their backend was running or draining.
    pub broken: usize,
    /// The reasons of these, with their counts.
    pub reasons: BTreeMap<String, usize>,
    /// Connections to backends that died.
    pub lost_with_backend: usize,
}

impl Tally {
    /// Adds the tally of another process.
    pub(super) fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.broken += other.broken;
        self.lost_with_backend += other.lost_with_backend;
        for (why, count) in other.reasons {
            *self.reasons.entry(why).or_default() += count;
        }
    }
}

/// The connections, and the thread that pings them.
#[derive(Debug)]
pub struct Connections {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    connections: Mutex<Vec<Connection>>,
    dead_backends: Mutex<Vec<String>>,
    begun: AtomicU64,
    ended: AtomicU64,
    stop: AtomicBool,
}

impl Connections {
    /// Starts without connections. The thread pings those that are opened later.
    #[must_use]
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            connections: Mutex::default(),
            dead_backends: Mutex::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let pinger = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !pinger.stop.load(Ordering::Relaxed) {
                let round = pinger.begun.fetch_add(1, Ordering::SeqCst) + 1;
                ping_all(&mut pinger.connections(), round);
                pinger.ended.store(round, Ordering::SeqCst);
                thread::sleep(PAUSE);
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Opens the connections with these numbers from the namespace of the process: the number selects the client's
    /// address and the one of the `services`.
    ///
    /// # Errors
    /// When one is refused or not answered.
    pub fn open(&self, services: &[SocketAddr], numbers: &Range<usize>) -> Result<()> {
        let opened: Result<Vec<Vec<Connection>>> = thread::scope(|scope| {
            let open = |first: usize| {
                let numbers = numbers.clone();
                scope.spawn(move || -> Result<Vec<Connection>> {
                    let numbers = numbers.skip(first).step_by(OPENERS);
                    numbers.map(|n| open_here(n, n % services.len(), services[n % services.len()])).collect()
                })
            };
            let threads: Vec<_> = (0..OPENERS).map(open).collect();
            threads.into_iter().map(|thread| thread.join().expect("opening does not panic")).collect()
        });
        self.shared.connections().extend(opened?.into_iter().flatten());
        Ok(())
    }

    /// From now on, connections to this backend do not count as broken.
    pub fn expect_loss(&self, backend: &str) {
        self.shared.dead_backends.lock().unwrap_or_else(PoisonError::into_inner).push(backend.to_owned());
    }

    /// Waits until every connection has been pinged after this call.
    ///
    /// # Errors
    /// When a round takes too long.
    pub fn ping_round(&self) -> Result<()> {
        let wanted = self.shared.begun.load(Ordering::SeqCst) + 1;
        let ended = || (self.shared.ended.load(Ordering::SeqCst) >= wanted).then_some(());
        wait_for("a round of pings", 2 * ROUND_BOUND, ended)
    }

    /// The tally of the connections so far, by Service.
    #[must_use]
    pub fn tally(&self, services: usize) -> Vec<Tally> {
        let dead = self.shared.dead_backends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut tallies = vec![Tally::default(); services];
        for one in self.shared.connections().iter() {
            let tally = &mut tallies[one.service];
            tally.opened += 1;
            match &one.broken {
                _ if dead.contains(&one.backend) => tally.lost_with_backend += 1,
                Some(reason) => {
                    tally.broken += 1;
                    *tally.reasons.entry(reason.clone()).or_default() += 1;
                }
                None => {}
            }
        }
        tallies
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was printed to standard error, and `ping_round` has failed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens connection number `n`.
fn open_here(n: usize, service: usize, to: SocketAddr) -> Result<Connection> {
    let number = u8::try_from(n % usize::from(CLIENT_ADDRESSES)).expect("below 16");
    let source = SocketAddr::new(client(Family::V4, number), 0);
    let mut stream = connect_here(CONNECT_BOUND, source, to)?;
    stream.set_read_timeout(Some(CONNECT_BOUND))?;
    stream.set_nodelay(true)?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).with_context(|| format!("cannot read the first line from {to}"))?;
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    let answer = BackendAnswer::parse(&line).with_context(|| format!("unexpected first line `{line}`"))?;
    stream.set_nonblocking(true)?;
    Ok(Connection { service, backend: answer.backend, stream, received: Vec::new(), broken: None })
}

/// Sends a line on every live connection, and waits until each is answered or broken.
fn ping_all(connections: &mut [Connection], round: u64) {
    let line = format!("ping {round}\n");
    let mut unsent = connections.iter_mut().filter(|one| one.broken.is_none()).peekable();
    let mut waiting: Vec<(&mut Connection, Instant)> = Vec::new();
    let mut sent_at: Option<Instant> = None;
    while unsent.peek().is_some() || !waiting.is_empty() {
        let is_due = sent_at.is_none_or(|at| at.elapsed() >= PACE);
        for one in unsent.by_ref().take(send_budget(waiting.len(), is_due)) {
            one.received.clear();
            match one.stream.write_all(line.as_bytes()) {
                Ok(()) => waiting.push((one, Instant::now())),
                Err(error) => one.broken = Some(described(&error)),
            }
        }
        if is_due {
            sent_at = Some(Instant::now());
        }
        let mut ready: Vec<PollFd<'_>> =
            waiting.iter().map(|(one, _)| PollFd::new(&one.stream, PollFlags::IN)).collect();
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(PACE.subsec_nanos()) };
        // After a signal, nothing is ready.
        let _ = poll(&mut ready, Some(&tick));
        let ready: Vec<bool> = ready.iter().map(|one| !one.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        waiting.retain_mut(|(one, since)| {
            if ready.next() == Some(true) {
                return receive(one, round);
            }
            let is_late = since.elapsed() >= SILENCE;
            if is_late {
                one.broken = Some("no answer".to_owned());
            }
            !is_late
        });
    }
}

/// The number of lines that may be sent now. Silent connections must not stop the others, and connections that fell
/// silent together must not all retransmit together later.
fn send_budget(waiting: usize, is_due: bool) -> usize {
    WINDOW.saturating_sub(waiting).max(if is_due { TRICKLE } else { 0 })
}

/// Reads available data. Returns whether the answer is still incomplete.
fn receive(one: &mut Connection, round: u64) -> bool {
    let mut buffer = [0; 256];
    match one.stream.read(&mut buffer) {
        Ok(0) => one.broken = Some("closed".to_owned()),
        Ok(length) => one.received.extend_from_slice(&buffer[..length]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => one.broken = Some(described(&error)),
    }
    let expected = format!("{} ping {round}\n", one.backend);
    if one.broken.is_none() && one.received.last() == Some(&b'\n') {
        if one.received == expected.as_bytes() {
            return false;
        }
        one.broken = Some("another backend answered".to_owned());
    }
    one.broken.is_none()
}

fn described(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "reset".to_owned(),
        ErrorKind::TimedOut => "no answer".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_connections_are_added_to_silent_ones_but_never_none() {
        assert_eq!(send_budget(0, true), WINDOW);
        assert_eq!(send_budget(WINDOW - 3, false), 3, "answers free the window");
        assert_eq!(send_budget(WINDOW, false), 0);
        assert_eq!(send_budget(20 * WINDOW, false), 0);
        assert_eq!(send_budget(20 * WINDOW, true), TRICKLE);
    }
}
