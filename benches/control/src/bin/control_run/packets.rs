//! Clients and backends beyond the link: packets to all UDP Services at a steady rate, each counted at both ends; and
//! TCP that is accepted, for health checks.
//!
//! One namespace is both: it sends from its own addresses and takes packets for every address of a Pod.

use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use tidegate::netlab::{Lab, Namespace, addresses as plan_of_lab};
use tidegate_control_bench::cluster::{self, PORT, TARGET_PORT};

use crate::Plan;
use crate::figures::Quantiles;

/// Sockets of the client; times UDP Services these are the flows.
const CLIENTS: u8 = 4;
const TICK: Duration = Duration::from_millis(1);
/// What was not sent for want of time is not sent later, but for as much as comes in this time.
const CATCH_UP: Duration = Duration::from_millis(5);
/// After the last packet the others have this long to come.
const LAST: Duration = Duration::from_secs(2);
/// Largest queue of connections not yet accepted.
const BACKLOG: i32 = 4096;

/// Every Pod is here, and every VIP behind the gateway.
///
/// # Errors
/// When the namespace does not take it.
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

/// Packets under way.
pub(crate) struct Traffic {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<(u64, u64)>,
    receiver: JoinHandle<(u64, Vec<Duration>)>,
    acceptor: JoinHandle<u64>,
    namespace: Namespace,
    overrun: u64,
}

/// What became of them.
#[derive(Debug)]
pub(crate) struct Counts {
    sent: u64,
    /// Because the sender was not given the CPU.
    unsent: u64,
    received: u64,
    /// That came to the receiver's host and found its socket full: the gateway did forward them.
    overrun: u64,
    ways: Quantiles,
    accepted: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, unsent, received, overrun, ways, accepted } = self;
        writeln!(f, "{}", ways.row("a packet's way through the gateway"))?;
        let lost = i128::from(*sent) - i128::from(received + overrun);
        writeln!(
            f,
            "\npackets: {sent} sent, {received} received, {overrun} more came and found the receiver's socket full, \
             {lost} lost ({unsent} not sent because the sender came too late); {accepted} connections of checks"
        )
    }
}

impl Traffic {
    /// Starts packets to all UDP Services, whose addresses `vip` gives.
    ///
    /// # Errors
    /// When there are no sockets to be had.
    pub(crate) fn start(lab: &Lab, plan: &Plan, vip: &dyn Fn(usize) -> Option<IpAddr>) -> Result<Self> {
        let services = (0..plan.size.services).filter(|&n| cluster::is_udp(n)).filter_map(vip);
        let to: Vec<SocketAddr> = services.map(|ip| SocketAddr::new(ip, PORT)).collect();
        let namespace = lab.client().clone();
        let (clients, sink, listener) = namespace.enter(|| {
            // Not the first address: the default route goes there, and nothing is taken from a router's own address.
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
        // All times are counted from here.
        let epoch = Instant::now();
        let told = [Arc::clone(&stop), Arc::clone(&stop), Arc::clone(&stop)];
        let [one, two, three] = told;
        Ok(Self {
            stop,
            sender: std::thread::spawn(move || send(&clients, &to, rate, epoch, &one)),
            receiver: std::thread::spawn(move || receive(&sink, epoch, &two)),
            acceptor: std::thread::spawn(move || accept(&listener, &three)),
            namespace,
            overrun,
        })
    }

    /// Stops, and waits for what is under way.
    ///
    /// # Errors
    /// When the kernel's counters cannot be read.
    pub(crate) fn stop(self) -> Result<Counts> {
        self.stop.store(true, Ordering::Relaxed);
        let (sent, unsent) = self.sender.join().expect("the sender does not panic");
        let (received, ways) = self.receiver.join().expect("the receiver does not panic");
        let accepted = self.acceptor.join().expect("the acceptor does not panic");
        let overrun = overrun(&self.namespace)? - self.overrun;
        Ok(Counts { sent, unsent, received, overrun, ways: Quantiles::of(ways), accepted })
    }
}

/// A UDP socket of a backend: one address, or all that no other socket has.
///
/// # Errors
/// When it cannot be had.
pub(crate) fn backend(at: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    // Beside one for all addresses there may be others then.
    socket.set_reuse_address(true)?;
    socket.set_recv_buffer_size(4 << 20)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// How many were sent, and how many were not though they were due.
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
            // A full queue of its own interface is told by an error: then it was not sent.
            match client.send_to(&ns.to_le_bytes(), to) {
                Ok(_) => sent += 1,
                Err(_) => unsent += 1,
            }
        }
        std::thread::sleep(TICK);
    }
    (sent, unsent)
}

/// How many came, and how long each was on its way.
fn receive(sink: &UdpSocket, epoch: Instant, stop: &AtomicBool) -> (u64, Vec<Duration>) {
    let (mut received, mut ways, mut bytes) = (0, Vec::new(), [0; 64]);
    let mut until = None;
    loop {
        if let Ok(length) = sink.recv(&mut bytes)
            && length == 8
        {
            let now = epoch.elapsed();
            let sent = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            ways.push(now.saturating_sub(Duration::from_nanos(sent)));
            received += 1;
        }
        if stop.load(Ordering::Relaxed) && Instant::now() > *until.get_or_insert(Instant::now() + LAST) {
            return (received, ways);
        }
    }
}

/// How many connections were taken, and closed.
fn accept(listener: &Socket, stop: &AtomicBool) -> u64 {
    let mut accepted = 0;
    while !stop.load(Ordering::Relaxed) {
        accepted += u64::from(listener.accept().is_ok());
    }
    accepted
}

/// Datagrams that found their socket full.
fn overrun(namespace: &Namespace) -> Result<u64> {
    let text = namespace.enter(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let names = lines.next().context("names of the counters of UDP")?.split(' ');
    let values = lines.next().context("counters of UDP")?.split(' ');
    let found = names.zip(values).find(|(name, _)| *name == "RcvbufErrors").context("RcvbufErrors")?;
    Ok(found.1.parse()?)
}
