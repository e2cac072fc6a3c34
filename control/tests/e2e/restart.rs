//! A planned restart and a crash under traffic. Packets are forwarded until the grace period ends, and old and new
//! flows are served again after each restart.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_netlab::addresses::{Family, client};
use tidegate_netlab::modes::{all_paths, manifests};
use tidegate_netlab::{GatewayOptions, Namespace};

use crate::world::{World, beside_others};

/// Restarts of each kind. They alternate, so that the load of the machine affects the printed gaps of both.
const ROUNDS: usize = 3;
/// A quarter of the grace period of the lab's gateway. Datagrams sent later than this after SIGTERM must be answered.
const AFTER_SIGTERM: Duration = Duration::from_millis(250);

#[test]
fn old_and_new_flows_are_forwarded_until_and_after_every_restart() {
    let _machine = beside_others();
    let mut world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let path = all_paths().into_iter().find(|path| path.forwarding == "nat" && path.family == Family::V4);
    let path = path.expect("there is a path in mode nat");
    world.wait_until_served(path);
    let streams = [Ports::One, Ports::Fresh].map(|ports| {
        let source = client(Family::V4, if ports == Ports::One { 4 } else { 5 });
        (ports, Stream::start(world.lab.client(), source, path.udp_echo(), ports), Gaps::default())
    });
    let mut streams = streams;
    for _ in 0..ROUNDS {
        for is_planned in [false, true] {
            let begun = Instant::now();
            let before = streams.each_ref().map(|(_, stream, _)| stream.answered_after(&world, begun));
            let (signalled, stopped) = restart(&mut world, is_planned);
            let ready = Instant::now();
            for ((ports, stream, gaps), before) in streams.iter_mut().zip(before) {
                let after = stream.answered_after(&world, ready);
                if is_planned {
                    let grace = signalled + AFTER_SIGTERM..stopped;
                    assert!(
                        stream.answered().iter().any(|at| grace.contains(at)),
                        "{ports:?}: nothing after SIGTERM"
                    );
                }
                let gap = stream.longest_silence(before, after);
                if is_planned { &mut gaps.planned } else { &mut gaps.crash }.push(gap);
            }
        }
    }
    // The gaps are informational. They depend on the load of the machine, so the test does not limit them.
    for (ports, _, gaps) in &streams {
        println!("longest silence of a 1 ms stream, {ports:?}: {gaps:?}");
    }
}

/// Stops the gateway with SIGTERM or SIGKILL, and starts it again. Returns the times of the signal and of the exit.
fn restart(world: &mut World, is_planned: bool) -> (Instant, Instant) {
    let gateway = world.take_gateway();
    let signalled = Instant::now();
    if is_planned {
        assert!(gateway.stop().expect("the gateway ends").success());
    } else {
        gateway.kill();
    }
    let stopped = Instant::now();
    world.launch_gateway();
    world.gateway_mut().wait_until_ready().expect("ready");
    (signalled, stopped)
}

#[test]
fn a_manual_drain_survives_kill_9() {
    let _machine = beside_others();
    let mut world = World::start(2, GatewayOptions::default(), &manifests(&[1, 2]));
    let drained = world.lab.server(2).address(Family::V4).to_string();
    let path =
        all_paths().into_iter().find(|path| path.forwarding == "dsr-ipip" && path.family == Family::V4);
    let path = path.expect("there is a path in mode dsr-ipip");
    world.wait_until_served(path);
    world.gateway().query(&["drain", &drained]).expect("it is drained");
    for is_planned in [false, true] {
        restart(&mut world, is_planned);
        let status = world.gateway().query(&["status"]).expect("a status");
        assert!(status.contains(&format!("Drained:     {drained}\n")), "{status}");
        for n in 0..16 {
            let answer = world.connect(path, n).expect("a connection").answer;
            assert_eq!(answer.backend, "backend-1", "new flows go to the other");
        }
    }
    world.gateway().query(&["undrain", &drained]).expect("the drain has ended");
    restart(&mut world, false);
    let status = world.gateway().query(&["status"]).expect("a status");
    assert!(status.contains("Drained:     none"), "{status}");
}

/// The measured gaps, one of each kind per round.
#[derive(Debug, Default)]
struct Gaps {
    planned: Vec<Duration>,
    crash: Vec<Duration>,
}

/// Whether the datagrams of a stream are one flow, or each is a flow of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    One,
    Fresh,
}

/// Sockets of [`Ports::Fresh`] that wait for their answers. One datagram is sent each millisecond.
const WAITING: usize = 32;
/// The source ports of [`Ports::Fresh`], used in sequence. There are enough, so none is used twice.
const FIRST_PORT: u16 = 10_000;
const FRESH_PORTS: u16 = 50_000;

/// Datagrams sent 1 ms apart, and the send times of those that were answered.
pub(crate) struct Stream {
    stop: Arc<AtomicBool>,
    answered: Arc<Mutex<Vec<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    pub(crate) fn start(from: &Namespace, source: IpAddr, to: SocketAddr, ports: Ports) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (flag, log, from) = (Arc::clone(&stop), Arc::clone(&answered), from.clone());
        let thread = thread::spawn(move || {
            from.move_this_thread().expect("the namespace lives as long as its lab");
            let mut fresh = (FIRST_PORT..FIRST_PORT + FRESH_PORTS).cycle();
            let mut sockets = VecDeque::from([socket((source, FIRST_PORT - 1).into(), to)]);
            let mut sent: Vec<Instant> = Vec::new();
            let mut buffer = [0; 512];
            while !flag.load(Ordering::Relaxed) {
                if ports == Ports::Fresh {
                    sockets.truncate(WAITING - 1);
                    let port = fresh.next().expect("the range is endless");
                    sockets.push_front(socket((source, port).into(), to));
                }
                // An unreachable destination or a full queue counts as a datagram without an answer.
                let _ = sockets[0].send(sent.len().to_string().as_bytes());
                sent.push(Instant::now());
                for socket in &sockets {
                    while let Ok(length) = socket.recv(&mut buffer) {
                        let text = String::from_utf8_lossy(&buffer[..length]);
                        let number = text.split_whitespace().last().and_then(|word| word.parse().ok());
                        if let Some(&at) = number.and_then(|number: usize| sent.get(number)) {
                            log.lock().unwrap_or_else(PoisonError::into_inner).push(at);
                        }
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, answered, thread: Some(thread) }
    }

    fn answered(&self) -> Vec<Instant> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The send time of the first answered datagram after `since`.
    pub(crate) fn answered_after(&self, world: &World, since: Instant) -> Instant {
        world.wait_until("an answer", || self.answered().into_iter().find(|at| *at > since))
    }

    /// The longest time between two answered datagrams, from `first` to `last`.
    fn longest_silence(&self, first: Instant, last: Instant) -> Duration {
        let mut answered = self.answered();
        answered.retain(|at| (first..=last).contains(at));
        answered.sort_unstable();
        let gaps = answered.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().expect("answers before and after the restart")
    }
}

/// A non-blocking socket to the VIP.
fn socket(source: SocketAddr, to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(source).expect("the client has this address");
    socket.connect(to).expect("the VIP is routed");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the lab is broken, the thread has panicked and the test has already failed.
            let _ = thread.join();
        }
    }
}
