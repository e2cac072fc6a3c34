//! The clients of the lab: HTTP by curl, long-lived connections, datagrams, throughput, and a steady load.
//!
//! Every answer names the backend and the client address that the backend saw ([`BackendAnswer`]), so a caller can
//! count the connections of each backend and check the source addresses.

use super::namespace::{Namespace, output_of};
use super::poll::wait_for;
use super::server::Server;
use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The maximum time of one connection attempt or one answer, on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a missing answer counts as none.
pub const SILENCE: Duration = Duration::from_secs(3);

/// The content of a backend's first line: `NAME client=ADDRESS:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAnswer {
    /// The backend's name.
    pub backend: String,
    /// The source of the packet as the backend saw it.
    pub client: SocketAddr,
}

impl BackendAnswer {
    /// Parses `NAME client=ADDRESS:PORT REST`. IPv6 addresses may lack brackets, as in the output of nginx.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let backend = words.next()?.to_owned();
        let (address, port) = words.next()?.strip_prefix("client=")?.rsplit_once(':')?;
        let address = address.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
        Some(Self { backend, client: SocketAddr::new(address, port.parse().ok()?) })
    }
}

/// The number of answers of each backend.
#[must_use]
pub fn spread(answers: &[BackendAnswer]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for one in answers {
        *counts.entry(one.backend.clone()).or_default() += 1;
    }
    counts
}

/// The results of a series of requests.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The number of requests.
    pub requests: usize,
    /// The answers.
    pub received: Vec<BackendAnswer>,
    /// The error messages for the other requests.
    pub errors: String,
}

/// Requests `url` (which may contain curl's `[1-N]` globs) with one curl, each of the requests on a separate
/// connection.
///
/// # Errors
/// When curl cannot be run. Requests that fail are in [`Answers::errors`].
pub fn curl_many(from: &Namespace, url: &str, requests: usize, options: &[&str]) -> Result<Answers> {
    let output = from
        .command("curl")
        .args(["-sS", "--max-time", "5", "-H", "Connection: close"])
        .args(options)
        .arg(format!("{url}?n=[1-{requests}]"))
        .output()
        .context("cannot run curl")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let received = text.lines().filter_map(BackendAnswer::parse).collect();
    Ok(Answers { requests, received, errors: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

/// Runs curl once with `args` and returns its output.
///
/// # Errors
/// When it fails; the message contains its output.
pub fn curl(from: &Namespace, args: &[&str]) -> Result<String> {
    output_of(from.command("curl").args(["-sS", "--max-time", "20"]).args(args))
}

/// The two directions of an iperf3 run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to server.
    Upload,
    /// Server to client (`-R`).
    Download,
}

/// Runs iperf3 over TCP for a second, from `from` over `to` to `server`, and returns the bits per second at the
/// receiver.
///
/// # Errors
/// When it fails or nothing arrived.
pub fn iperf_tcp(from: &Namespace, server: &Server, to: SocketAddr, direction: Direction) -> Result<f64> {
    iperf(from, server, to, if direction == Direction::Download { &["-R"] } else { &[] })
}

/// Runs iperf3 over UDP for a second at 20 Mbit/s with datagrams of 1,000 bytes.
///
/// # Errors
/// When it fails or nothing arrived.
pub fn iperf_udp(from: &Namespace, server: &Server, to: SocketAddr) -> Result<f64> {
    iperf(from, server, to, &["-u", "-b", "20M", "-l", "1000"])
}

fn iperf(from: &Namespace, server: &Server, to: SocketAddr, options: &[&str]) -> Result<f64> {
    let _server = server.offer_iperf()?;
    let (host, port) = (to.ip().to_string(), to.port().to_string());
    let base = ["-c", &host, "-p", &port, "-t", "1", "-J", "--connect-timeout", "3000"];
    let text = output_of(from.command("timeout").args(["20", "iperf3"]).args(base).args(options))?;
    let report: serde_json::Value = serde_json::from_str(&text).context("cannot parse iperf3's report")?;
    if let Some(error) = report["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let end = &report["end"];
    let sum = if end["sum_received"].is_object() { &end["sum_received"] } else { &end["sum"] };
    let rate = sum["bits_per_second"].as_f64().context("iperf3's report contains no rate")?;
    let lost = sum["lost_percent"].as_f64().unwrap_or(0.0);
    ensure!(rate > 0.0 && lost < 100.0, "iperf3: no data arrived");
    Ok(rate * (1.0 - lost / 100.0))
}

/// A connection to `tcp-echo` that stays open.
#[derive(Debug)]
pub struct EchoConnection {
    /// The backend's first line.
    pub answer: BackendAnswer,
    stream: BufReader<TcpStream>,
    pings: u32,
}

impl EchoConnection {
    /// Connects from `source` (port 0: any) to `to`, and reads which backend answers.
    ///
    /// # Errors
    /// When the connection is refused, times out, or the first line is invalid.
    pub fn connect(from: &Namespace, source: SocketAddr, to: SocketAddr) -> Result<Self> {
        from.enter(|| Self::connect_here(source, to))
    }

    /// Like [`EchoConnection::connect`], in the namespace of the calling thread.
    ///
    /// # Errors
    /// Like [`EchoConnection::connect`].
    pub fn connect_here(source: SocketAddr, to: SocketAddr) -> Result<Self> {
        Self::connect_within(TIMEOUT, source, to)
    }

    /// Like [`EchoConnection::connect_here`], with a different time limit.
    ///
    /// # Errors
    /// Like [`EchoConnection::connect`].
    pub fn connect_within(timeout: Duration, source: SocketAddr, to: SocketAddr) -> Result<Self> {
        let stream = connect_here(timeout, source, to)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        let line = read_line(&mut stream)?;
        let answer =
            BackendAnswer::parse(&line).with_context(|| format!("unexpected first line `{line}`"))?;
        Ok(Self { answer, stream, pings: 0 })
    }

    /// Sends a line and expects it back from the same backend.
    ///
    /// # Errors
    /// When the connection broke, or another backend answered.
    pub fn ping(&mut self) -> Result<()> {
        self.pings += 1;
        self.exchange(&format!("ping {}", self.pings))
    }

    /// Like [`EchoConnection::ping`], for a connection with unanswered pings from a time of packet loss: reads all
    /// answers, with this time limit.
    ///
    /// # Errors
    /// Like [`EchoConnection::ping`].
    pub fn ping_late(&mut self, timeout: Duration) -> Result<()> {
        self.pings += 1;
        let text = format!("ping {}", self.pings);
        self.stream.get_mut().write_all(format!("{text}\n").as_bytes())?;
        self.stream.get_ref().set_read_timeout(Some(timeout))?;
        let expected = format!("{} {text}", self.answer.backend);
        while read_line(&mut self.stream)? != expected {}
        self.stream.get_ref().set_read_timeout(Some(TIMEOUT))?;
        Ok(())
    }

    /// Sends this line and expects it back from the same backend.
    ///
    /// # Errors
    /// Like [`EchoConnection::ping`].
    pub fn exchange(&mut self, text: &str) -> Result<()> {
        self.stream.get_mut().write_all(format!("{text}\n").as_bytes())?;
        let (answer, expected) = (read_line(&mut self.stream)?, format!("{} {text}", self.answer.backend));
        ensure!(answer == expected, "expected `{expected}`, received `{answer}`");
        Ok(())
    }

    /// The client's own address and port.
    ///
    /// # Errors
    /// When the socket is closed.
    pub fn local(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }
}

/// Connects from `source` (port 0: any) to `to`, in the namespace of the calling thread.
///
/// # Errors
/// When the connection is refused or times out.
pub fn connect_here(timeout: Duration, source: SocketAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(source)).with_context(|| format!("cannot use source {source}"))?;
    socket
        .connect_timeout(&SockAddr::from(to), timeout)
        .with_context(|| format!("cannot connect from {source} to {to}"))?;
    Ok(TcpStream::from(socket))
}

fn read_line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        bail!("the connection was closed");
    }
    Ok(line.trim_end().to_owned())
}

/// Sends `text` in a datagram from `source` to `to`, and reads which backend answers. Repeats the datagram until there
/// is an answer.
///
/// # Errors
/// When there is no answer within [`TIMEOUT`], or one without `text`.
pub fn udp_request(
    from: &Namespace,
    source: SocketAddr,
    to: SocketAddr,
    text: &str,
) -> Result<BackendAnswer> {
    from.enter(|| udp_request_here(source, to, text))
}

/// Like [`udp_request`], in the namespace of the calling thread.
///
/// # Errors
/// Like [`udp_request`].
pub fn udp_request_here(source: SocketAddr, to: SocketAddr, text: &str) -> Result<BackendAnswer> {
    udp_request_within(TIMEOUT, source, to, text)
}

/// Like [`udp_request_here`], with a different time limit.
///
/// # Errors
/// Like [`udp_request`].
pub fn udp_request_within(
    timeout: Duration,
    source: SocketAddr,
    to: SocketAddr,
    text: &str,
) -> Result<BackendAnswer> {
    let socket = bind_udp(timeout, source)?;
    // The socket is connected, so it accepts answers from the VIP only.
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let begin = Instant::now();
    let mut buffer = [0; 2048];
    let mut last = String::from("nothing sent");
    while begin.elapsed() < timeout {
        match socket.send(text.as_bytes()).and_then(|_| socket.recv(&mut buffer)) {
            Ok(length) => {
                let answer = String::from_utf8_lossy(&buffer[..length]);
                let parsed =
                    BackendAnswer::parse(&answer).with_context(|| format!("unexpected answer `{answer}`"))?;
                ensure!(answer.ends_with(text), "sent `{text}`, received `{answer}`");
                return Ok(parsed);
            }
            Err(error) => last = error.to_string(),
        }
    }
    bail!("{source} to {to}: no answer in {timeout:?} ({last})")
}

/// Binds a UDP socket. If another thread starts a program at the same time, an earlier socket of this source is closed
/// only when that program executes: until then, the child process has a copy of it.
fn bind_udp(timeout: Duration, source: SocketAddr) -> Result<UdpSocket> {
    let begin = Instant::now();
    loop {
        match UdpSocket::bind(source) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && begin.elapsed() < timeout => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound.with_context(|| format!("cannot use source {source}")),
        }
    }
}

/// One attempt of a [`Load`].
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When it began.
    pub at: Instant,
    /// The backend, or why the attempt failed.
    pub outcome: Result<String, String>,
}

/// Opens new connections to `tcp-echo` one after another, until it is stopped or dropped.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    attempts: Arc<Mutex<Vec<Attempt>>>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// The minimum time between two attempts, so that the load does not affect what it measures.
    const PACE: Duration = Duration::from_millis(10);

    /// Starts a load from `source` (its port is ignored) to `to`.
    #[must_use]
    pub fn start(from: &Namespace, source: IpAddr, to: SocketAddr) -> Self {
        Self::start_at(Self::PACE, from, source, to)
    }

    /// Like [`Load::start`], with a different minimum time between two attempts.
    #[must_use]
    pub fn start_at(pace: Duration, from: &Namespace, source: IpAddr, to: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let (flag, log, from) = (Arc::clone(&stop), Arc::clone(&attempts), from.clone());
        let thread = thread::spawn(move || {
            from.move_this_thread().expect("the namespace lives as long as its lab");
            while !flag.load(Ordering::Relaxed) {
                let at = Instant::now();
                let outcome = EchoConnection::connect_here(SocketAddr::new(source, 0), to);
                let outcome =
                    outcome.map(|connection| connection.answer.backend).map_err(|error| format!("{error:#}"));
                log.lock().unwrap_or_else(PoisonError::into_inner).push(Attempt { at, outcome });
                thread::sleep(pace.saturating_sub(at.elapsed()));
            }
        });
        Self { stop, attempts, thread: Some(thread) }
    }

    /// Every attempt so far, oldest first.
    #[must_use]
    pub fn attempts(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the load after the current attempt, and returns all attempts.
    ///
    /// # Panics
    /// When its thread panicked.
    #[must_use]
    pub fn finish(mut self) -> Vec<Attempt> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the load does not panic");
        }
        self.attempts()
    }

    /// The attempts that began at `since` or later.
    #[must_use]
    pub fn attempts_since(&self, since: Instant) -> Vec<Attempt> {
        self.attempts().into_iter().filter(|attempt| attempt.at >= since).collect()
    }

    /// Waits until no attempt has failed for `quiet`, and returns the time from `event` to the last failure (zero if
    /// there was none).
    ///
    /// # Errors
    /// When attempts still fail after `bound`.
    pub fn until_quiet(&self, event: Instant, quiet: Duration, bound: Duration) -> Result<Duration> {
        wait_for("new connections to succeed again", bound, || {
            let attempts = self.attempts_since(event);
            let last_failure = attempts.iter().rev().find(|attempt| attempt.outcome.is_err());
            let calm_since = last_failure.map_or(event, |attempt| attempt.at);
            let newest = attempts.last()?.at;
            (newest.duration_since(calm_since) >= quiet).then(|| calm_since.duration_since(event))
        })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was printed to standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_read_with_and_without_brackets() {
        let expected =
            |client: &str| BackendAnswer { backend: "backend-2".to_owned(), client: client.parse().unwrap() };
        assert_eq!(BackendAnswer::parse("backend-2 client=192.0.2.7:80"), Some(expected("192.0.2.7:80")));
        assert_eq!(
            BackendAnswer::parse("backend-2 client=2001:db8::10:4242"),
            Some(expected("[2001:db8::10]:4242"))
        );
        assert_eq!(
            BackendAnswer::parse("backend-2 client=[2001:db8::1]:9 text"),
            Some(expected("[2001:db8::1]:9"))
        );
        for broken in ["", "backend-2", "backend-2 client=", "backend-2 client=x:1", "<html> client"] {
            assert_eq!(BackendAnswer::parse(broken), None, "{broken}");
        }
    }
}
