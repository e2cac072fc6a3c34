//! Clients and backends beyond the link. Packets go to all UDP Services at a steady rate and are counted at both ends.
//! TCP connections are accepted, for health checks.
//!
//! One namespace has both roles: it sends from its own addresses and receives packets for the addresses of all Pods.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use tidegate_control_bench::cluster::{self, PORT, TARGET_PORT};
use tidegate_netlab::{Lab, Namespace, addresses as plan_of_lab};

use crate::figures::Quantiles;
use crate::plan::Plan;

/// Sockets of the client. The number of flows is this times the number of UDP Services.
const CLIENTS: u8 = 4;
const TICK: Duration = Duration::from_millis(1);
/// Packets that are late by at most this time are still sent; others are skipped.
const CATCH_UP: Duration = Duration::from_millis(5);
/// The time to wait for packets after the last one was sent.
const LAST: Duration = Duration::from_secs(2);
/// The largest queue of connections that are not yet accepted.
const BACKLOG: i32 = 4096;

/// Routes all Pod addresses to this namespace, and all VIPs to the gateway.
///
/// # Errors
/// A setting of the namespace failed.
pub(crate) fn prepare(lab: &Lab) -> Result<()> {
    let gateway = plan_of_lab::GATEWAY_FOR_CLIENTS[plan_of_lab::Family::V4 as usize];
    lab.client().ip_batch(&format!(
        "neigh replace {gateway} lladdr {} dev eth0\n\
         route add {} via {gateway}\n\
         route add 192.0.2.0/24 via {gateway}\n\
         route add local 10.128.0.0/9 dev lo",
        plan_of_lab::GATEWAY_MAC,
        cluster::POOL,
    ))
}

/// Packets being sent and received.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<(u64, u64)>,
    receiver: JoinHandle<(u64, Vec<Duration>)>,
    acceptor: JoinHandle<u64>,
    namespace: Namespace,
    overrun: u64,
}

/// The packet counts.
#[derive(Debug)]
pub(crate) struct Counts {
    sent: u64,
    /// Packets that were due but not sent, because the sender did not get the CPU.
    unsent: u64,
    received: u64,
    /// Packets that arrived at the receiver's host but found its socket full. The gateway did forward them.
    overrun: u64,
    latencies: Quantiles,
    accepted: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, unsent, received, overrun, latencies, accepted } = self;
        writeln!(f, "{}", latencies.row("a packet's latency through the gateway"))?;
        let lost = i128::from(*sent) - i128::from(received + overrun);
        writeln!(
            f,
            "\npackets: {sent} sent, {received} received, {overrun} more arrived and found the receiver's socket full, \
             {lost} lost ({unsent} not sent because the sender was late); {accepted} connections of checks"
        )
    }
}

impl Traffic {
    /// Starts sending packets to all UDP Services. `vip` returns their addresses.
    ///
    /// # Errors
    /// A socket cannot be created.
    pub(crate) fn start(lab: &Lab, plan: &Plan, vip: &dyn Fn(usize) -> Option<IpAddr>) -> Result<Self> {
        let services = (0..plan.size.services).filter(|&n| cluster::is_udp(n)).filter_map(vip);
        let to: Vec<SocketAddr> = services.map(|ip| SocketAddr::new(ip, PORT)).collect();
        let namespace = lab.client().clone();
        let (clients, sink, listener) = namespace.enter(|| {
            // The first address is not used: it is the next hop of the default route, and packets from a router's own
            // address are not accepted.
            let clients = (1..=CLIENTS).map(|n| {
                let from = plan_of_lab::client(plan_of_lab::Family::V4, n);
                UdpSocket::bind(SocketAddr::new(from, 20_000))
            });
            let clients = clients.collect::<std::io::Result<Vec<_>>>()?;
            let any = SocketAddr::from(([0, 0, 0, 0], TARGET_PORT));
            let sink = backend(any)?;
            sink.set_read_timeout(Some(Duration::from_millis(100)))?;
            let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            listener.set_read_timeout(Some(Duration::from_millis(100)))?;
            listener.bind(&any.into())?;
            listener.listen(BACKLOG)?;
            std::io::Result::Ok((clients, sink, listener))
        })?;
        let overrun = overrun(&namespace)?;
        let (stop, rate) = (Arc::new(AtomicBool::new(false)), plan.packets);
        // All times are relative to this time.
        let epoch = Instant::now();
        let flags = [Arc::clone(&stop), Arc::clone(&stop), Arc::clone(&stop)];
        let [one, two, three] = flags;
        Ok(Self {
            stop,
            sender: std::thread::spawn(move || send(&clients, &to, rate, epoch, &one)),
            receiver: std::thread::spawn(move || receive(&sink, epoch, &two)),
            acceptor: std::thread::spawn(move || accept(&listener, &three)),
            namespace,
            overrun,
        })
    }

    /// Stops, and waits for packets that are still in flight.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(crate) fn stop(self) -> Result<Counts> {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, unsent) = self.sender.join().expect("the sender does not panic");
        let (received, latencies) = self.receiver.join().expect("the receiver does not panic");
        let accepted = self.acceptor.join().expect("the acceptor does not panic");
        let overrun = overrun(&self.namespace)? - self.overrun;
        Ok(Counts { sent, unsent, received, overrun, latencies: Quantiles::of(latencies), accepted })
    }
}

/// A UDP socket of a backend. It receives for one address, or for all addresses that no other socket has.
///
/// # Errors
/// The socket cannot be created.
pub(crate) fn backend(at: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // This allows other sockets beside one for all addresses.
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// Returns the number of packets sent, and the number of packets that were due but not sent.
fn send(
    clients: &[UdpSocket],
    to: &[SocketAddr],
    rate: u64,
    epoch: Instant,
    stop: &AtomicBool,
) -> (u64, u64) {
    let (mut sent, mut unsent) = (0, 0);
    let most = (CATCH_UP.as_secs_f64() * rate as f64) as u64 + 1;
    while !stop.load(Ordering::Relaxed) {
        let due = (epoch.elapsed().as_secs_f64() * rate as f64) as u64;
        let late = due - sent - unsent;
        unsent += late.saturating_sub(most);
        for _ in 0..late.min(most) {
            let n = usize::try_from(sent).expect("64 bits");
            let client = &clients[n / to.len() % clients.len()];
            let to = to[n.wrapping_mul(0x9e37_79b1) % to.len()];
            let ns = u64::try_from(epoch.elapsed().as_nanos()).expect("584 years");
            // An error means that the queue of the interface is full and the packet was not sent.
            match client.send_to(&ns.to_le_bytes(), to) {
                Ok(_) => sent += 1,
                Err(_) => unsent += 1,
            }
        }
        std::thread::sleep(TICK);
    }
    (sent, unsent)
}

/// Returns the number of packets received, and their latencies.
fn receive(sink: &UdpSocket, epoch: Instant, stop: &AtomicBool) -> (u64, Vec<Duration>) {
    let (mut received, mut latencies, mut bytes) = (0, Vec::new(), [0; 64]);
    let mut until = None;
    loop {
        if let Ok(length) = sink.recv(&mut bytes)
            && length == 8
        {
            let now = epoch.elapsed();
            let sent = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            latencies.push(now.saturating_sub(Duration::from_nanos(sent)));
            received += 1;
        }
        if stop.load(Ordering::Relaxed) && Instant::now() > *until.get_or_insert(Instant::now() + LAST) {
            return (received, latencies);
        }
    }
}

/// Accepts and closes connections, and returns their number.
fn accept(listener: &Socket, stop: &AtomicBool) -> u64 {
    let mut accepted = 0;
    while !stop.load(Ordering::Relaxed) {
        accepted += u64::from(listener.accept().is_ok());
    }
    accepted
}

/// The number of datagrams that found their socket full.
fn overrun(namespace: &Namespace) -> Result<u64> {
    let text = namespace.enter(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = lines.next().context("names of the counters of UDP")?.split(' ');
    let values = lines.next().context("counters of UDP")?.split(' ');
    let found = names.zip(values).find(|(name, _)| *name == "RcvbufErrors").context("RcvbufErrors")?;
    Ok(found.1.parse()?)
}
