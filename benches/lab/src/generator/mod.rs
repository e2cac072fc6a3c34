//! The generator and receiver: one thread on one core, with a port on each side of the forwarder.
//!
//! It runs as a separate process (`tidegate-bench generate`), because DPDK starts once per process, and because it has
//! to be in the namespace of its links. It reads a [`Job`] and prints a [`Measured`].
//!
//! Frames are offered on a schedule that does not wait for the forwarder (open loop). A frame that the driver does not
//! accept is lost. The time in a frame is when it was due, so that a forwarder that stops for a moment is charged with
//! the delay of all frames of that moment (no coordinated omission).

mod stream;

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dpdk::{
    Burst, Eal, EalConfig, Lcore, Memory, PktPool, PoolConfig, Port, PortConfig, Queues, RxQueue, TxQueue,
    cycles,
};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate_wire::tcp::flags;

use crate::packets::{Random, Replies, Requests, Seen, read_mark};
use crate::scenario::{Direction, Scenario};
use crate::search::{Found, Trial, overload, search};

pub(crate) use stream::{Stream, Window, stream};

/// What the generator has to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) scenario: Scenario,
    /// The devices on the side of clients and on that of backends.
    pub(crate) devices: [String; 2],
    /// Whether backends answer through the forwarder, so that flows have two directions.
    pub(crate) returns: bool,
    pub(crate) hugepages: bool,
    pub(crate) cpu: usize,
    /// Created when the ports exist.
    pub(crate) listening: PathBuf,
    /// Sends at this rate for this time instead of searching, for a soak.
    pub(crate) soak: Option<Soak>,
    /// Streams while the forwarder is restarted, instead of searching.
    pub(crate) stream: Option<Stream>,
}

/// A soak.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Soak {
    pub(crate) seconds: f64,
    /// Seconds between two changes of backends.
    pub(crate) change_every: f64,
}

/// The results of one round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) found: Found,
    /// The time to create one frame without sending it, in nanoseconds.
    pub(crate) generator_ns: f64,
    /// The latencies at some loads.
    pub(crate) latency: Vec<Latency>,
    /// Whole TCP connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<Connections>,
    /// Frames per second of each second of a soak.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) soak: Vec<Trial>,
}

/// The time from when a frame was due to when it was received, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// `half` of the highest rate, or `low`.
    pub(crate) load: String,
    pub(crate) pps: f64,
    pub(crate) frames: u64,
    pub(crate) loss_percent: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) worst_us: f64,
}

/// Whole TCP connections, [`OPEN`] at a time: handshake, a segment in each direction, and both sides close.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Connections {
    pub(crate) completed: u64,
    /// Connections of which a frame did not return within [`STUCK`].
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
}

/// The flags of the frames of a connection, in their order. Clients send the even ones, backends the odd ones.
const STEPS: [u8; 7] = [
    flags::SYN,
    flags::SYN | flags::ACK,
    flags::PSH | flags::ACK,
    flags::PSH | flags::ACK,
    flags::FIN | flags::ACK,
    flags::FIN | flags::ACK,
    flags::ACK,
];
/// Connections that are open at a time.
const OPEN: u32 = 512;
/// A connection fails if nothing returns for this long.
const STUCK: Duration = Duration::from_millis(50);

/// Frames of one burst of the driver.
const BURST: usize = 32;
/// More frames per second than any forwarder here can handle, for overload.
const MOST: f64 = 40e6;
/// A low rate. At this rate, latency shows whether a frame waits for others.
const LOW: f64 = 5_000.0;
/// The longest trial in which each frame starts a flow, if there are few of them: together they fill less than a table
/// of the default size. A search takes longer, so it measures a full table.
const NEW_SECONDS: f64 = 0.03;
/// Frames in flight while flows are established.
const WINDOW: u64 = 256;
/// Establishing flows fails if no frame returns for this long. The machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// In a soak, backends answer one in this many requests of known flows. A flow whose backend is gone starts again at
/// another one, and an answer establishes it there, as on a real network. Without it, a soak with changes of backends
/// would change more and more of its known flows to unanswered ones, which a full table replaces all the time.
const ANSWERED: u32 = 4;
/// How long the receiver waits for late frames.
const LATE: Duration = Duration::from_millis(20);
const CONNECTED: Duration = Duration::from_secs(60);

/// Runs a job, and returns its results.
///
/// # Errors
/// A port cannot be opened, the forwarder does not connect, or flows cannot be established.
pub(crate) fn run(job: &Job) -> Result<Measured> {
    with_generator(job, |generator| {
        generator.establish()?;
        generator.measure()
    })
}

/// Opens the ports, and calls `work` on the generator's CPU.
fn with_generator<T: Send>(
    job: &Job,
    work: impl FnOnce(&mut Generator<'_>) -> Result<T> + Send,
) -> Result<T> {
    let memory = if job.hugepages { Memory::Hugepages { mib: 96 } } else { Memory::NoHuge { mib: 192 } };
    let eal = Eal::init(&EalConfig { memory, main_cpus: vec![job.cpu], ..EalConfig::default() })?;
    let pool = PktPool::new(&eal, &PoolConfig { mbufs: 32_767, ..PoolConfig::default() })?;
    let mut ports = Vec::new();
    let mut queues = Vec::new();
    for device in &job.devices {
        let mut port = Port::attach(&eal, device).with_context(|| device.clone())?;
        let config = PortConfig { promiscuous: true, ..PortConfig::default() };
        let Queues { mut rx, mut tx } = port.start(&config, &pool).with_context(|| device.clone())?;
        queues.push((rx.remove(0), tx.remove(0)));
        ports.push(port);
    }
    std::fs::write(&job.listening, "")?;
    let since = Instant::now();
    while !ports.iter().all(|port| port.link().is_ok_and(|link| link.up)) {
        ensure!(
            since.elapsed() < CONNECTED,
            "the forwarder has not connected within {} s",
            CONNECTED.as_secs()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let (backend_side, client_side) = (queues.pop(), queues.pop());
    let (Some(client_side), Some(backend_side)) = (client_side, backend_side) else {
        bail!("two devices are needed")
    };
    // The thread of the EAL is an lcore, which is not pinned.
    std::thread::scope(|scope| {
        let generate = || {
            let _lcore = Lcore::register_on(&eal, job.cpu)?;
            work(&mut Generator::new(job, pool, client_side, backend_side))
        };
        scope.spawn(generate).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// One port: receive and transmit queue.
type Side = (RxQueue, TxQueue);

struct Generator<'a> {
    job: &'a Job,
    pool: PktPool,
    client_side: Side,
    backend_side: Side,
    requests: Requests,
    replies: Replies,
    /// What the backends saw of each flow; empty without replies.
    seen: Vec<Seen>,
    /// Whether backends answer requests during a trial: see [`ANSWERED`].
    answers: bool,
    /// The requests that are answered next: the flow, and the frame that the backend saw.
    to_answer: Vec<(u32, Seen)>,
    random: Random,
    /// The number of the next new flow.
    next_flow: u32,
    hz: f64,
    sending: Burst<BURST>,
    received: Burst<BURST>,
    shows: bool,
}

impl<'a> Generator<'a> {
    fn new(job: &'a Job, pool: PktPool, client_side: Side, backend_side: Side) -> Self {
        let scenario = &job.scenario;
        Self {
            job,
            pool,
            client_side,
            backend_side,
            requests: Requests::new(scenario),
            replies: Replies::new(scenario),
            seen: Vec::new(),
            answers: false,
            to_answer: Vec::with_capacity(BURST),
            random: Random::new(0x7469_6465),
            next_flow: scenario.flows,
            hz: cycles::hz() as f64,
            sending: Burst::new(),
            received: Burst::new(),
            shows: std::io::stderr().is_terminal(),
        }
    }

    fn show(&self, text: &str) {
        if self.shows {
            eprint!("\r\x1b[K{text}");
            let _ = std::io::stderr().flush();
        }
    }

    /// Makes every flow known to the forwarder: sends a request of each; where backends answer, also a reply, and a
    /// request again. Lost frames are sent again.
    fn establish(&mut self) -> Result<()> {
        let flows = self.job.scenario.flows;
        if flows == 0 {
            // The forwarder may still be about to open its ports.
            return self.pass_one();
        }
        self.seen = vec![Seen::default(); flows as usize];
        self.show(&format!("establishing {flows} flows"));
        self.exchange("requests", Direction::Requests, flags::SYN)?;
        if self.job.returns {
            self.exchange("replies", Direction::Replies, flags::SYN | flags::ACK)?;
        }
        self.exchange("requests again", Direction::Requests, flags::ACK)
    }

    /// Waits until a first frame passes.
    fn pass_one(&mut self) -> Result<()> {
        let since = Instant::now();
        while since.elapsed() < CONNECTED {
            let flow = self.new_flow();
            self.send_one(Direction::Requests, flow, flags::SYN);
            let until = Instant::now() + Duration::from_millis(50);
            while Instant::now() < until {
                let mut passed = false;
                self.receive(Direction::Requests, |_, _, _| passed = true);
                if passed {
                    return Ok(());
                }
                // The forwarder may still be starting, and has only the CPU time that this process leaves.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        bail!("the forwarder has passed no frame within {} s", CONNECTED.as_secs())
    }

    /// Receives frames, and marks their flows in `back`. Returns the number of frames, and the number of flows that
    /// were not marked before.
    fn receive_back(&mut self, direction: Direction, back: &mut [bool]) -> (u64, u32) {
        let mut seen = std::mem::take(&mut self.seen);
        let (mut came, mut new) = (0, 0);
        self.receive(direction, |flow, _, frame| {
            came += 1;
            if let Some(done) = back.get_mut(flow as usize)
                && !*done
            {
                *done = true;
                new += 1;
                if direction == Direction::Requests
                    && let Some(one) = Seen::of(frame)
                {
                    seen[flow as usize] = one;
                }
            }
        });
        self.seen = seen;
        (came, new)
    }

    /// Sends one frame of each flow in this direction until all have returned.
    fn exchange(&mut self, what: &str, direction: Direction, tcp_flags: u8) -> Result<()> {
        let flows = self.job.scenario.flows;
        if direction == Direction::Requests && !self.seen.iter().any(Seen::is_known) {
            self.pass_one()?;
        }
        let mut back = vec![false; flows as usize];
        let mut missing = flows;
        // A table that is too small for all flows still forwards nearly all of them.
        let nearly_all = flows / 100;
        let (mut before, mut progress) = (missing, Instant::now());
        loop {
            let mut in_flight = 0_u64;
            for flow in 0..flows {
                if back[flow as usize] {
                    continue;
                }
                self.send_one(direction, flow, tcp_flags);
                in_flight += 1;
                let since = Instant::now();
                loop {
                    let (came, new) = self.receive_back(direction, &mut back);
                    in_flight = in_flight.saturating_sub(came);
                    missing -= new;
                    if in_flight < WINDOW {
                        break;
                    }
                    if since.elapsed() > LATE {
                        // The rest of the window is lost.
                        in_flight = 0;
                    }
                }
            }
            let until = Instant::now() + LATE;
            while Instant::now() < until {
                missing -= self.receive_back(direction, &mut back).1;
            }
            if missing < before {
                (before, progress) = (missing, Instant::now());
            }
            if missing == 0 || missing <= nearly_all && progress.elapsed() > LATE * 10 {
                return Ok(());
            }
            ensure!(
                progress.elapsed() < TIMEOUT,
                "{missing} of {flows} flows could not be established: their {what} did not return"
            );
        }
    }

    fn new_flow(&mut self) -> u32 {
        self.next_flow = self.next_flow.wrapping_add(1);
        self.next_flow
    }

    fn send_one(&mut self, direction: Direction, flow: u32, tcp_flags: u8) {
        let time = cycles::now();
        self.push(direction, flow, time, tcp_flags);
        self.flush(direction);
    }

    /// Adds a frame to the burst. If the pool is empty, the frame is lost.
    #[inline]
    fn push(&mut self, direction: Direction, flow: u32, time: u64, tcp_flags: u8) {
        let Ok(mut mbuf) = self.pool.alloc() else { return };
        match direction {
            Direction::Requests => {
                let Ok(out) = mbuf.append(self.requests.next_len()) else { return };
                self.requests.write(flow, time, tcp_flags, out);
            }
            Direction::Replies => {
                let Some(seen) = self.seen.get(flow as usize).copied().filter(Seen::is_known) else { return };
                let Ok(out) = mbuf.append(self.replies.len()) else { return };
                self.replies.write(&seen, flow, time, tcp_flags, out);
            }
        }
        // The burst is flushed when it is full.
        let _ = self.sending.push(mbuf);
    }

    /// Adds the answer to a request that a backend has seen.
    fn push_answer(&mut self, seen: &Seen, flow: u32, time: u64, tcp_flags: u8) {
        let Ok(mut mbuf) = self.pool.alloc() else { return };
        let Ok(out) = mbuf.append(self.replies.len()) else { return };
        self.replies.write(seen, flow, time, tcp_flags, out);
        let _ = self.sending.push(mbuf);
    }

    /// Sends the burst. Frames that the driver does not accept are lost.
    #[inline]
    fn flush(&mut self, direction: Direction) {
        let tx = match direction {
            Direction::Requests => &mut self.client_side.1,
            Direction::Replies => &mut self.backend_side.1,
        };
        tx.tx(&mut self.sending);
        self.sending.clear();
    }

    /// Receives a burst on the other side of the forwarder, and passes each of our frames to `each`: flow, time, bytes.
    /// Frames on the sender's side are the forwarder's own.
    #[inline]
    fn receive(&mut self, direction: Direction, mut each: impl FnMut(u32, u64, &[u8])) -> usize {
        let mut count = 0;
        self.receive_one_side(direction, |flow, time, frame| {
            count += 1;
            each(flow, time, frame);
        });
        let here = match direction {
            Direction::Requests => &mut self.client_side.0,
            Direction::Replies => &mut self.backend_side.0,
        };
        here.rx(&mut self.received);
        self.received.clear();
        count
    }

    /// Like [`Self::receive`], without the side of the sender.
    #[inline]
    fn receive_one_side(&mut self, direction: Direction, mut each: impl FnMut(u32, u64, &[u8])) {
        let there = match direction {
            Direction::Requests => &mut self.backend_side.0,
            Direction::Replies => &mut self.client_side.0,
        };
        there.rx(&mut self.received);
        for mbuf in self.received.iter() {
            if let Some((flow, time)) = read_mark(mbuf.data()) {
                each(flow, time, mbuf.data());
            }
        }
        self.received.clear();
    }

    /// Receives requests on the side of the backends, and the answers to earlier ones on that of the clients, and
    /// answers some of the requests. `each` gets the time of each frame. Returns the number of answers sent.
    fn receive_and_answer(&mut self, mut each: impl FnMut(u64)) -> u64 {
        let mut to_answer = std::mem::take(&mut self.to_answer);
        let (known, mut random) = (self.job.scenario.flows, self.random.clone());
        self.receive_one_side(Direction::Requests, |flow, time, frame| {
            each(time);
            if flow < known
                && random.below(ANSWERED) == 0
                && let Some(seen) = Seen::of(frame)
            {
                to_answer.push((flow, seen));
            }
        });
        self.random = random;
        self.receive_one_side(Direction::Replies, |_, time, _| each(time));
        let count = to_answer.len() as u64;
        let now = cycles::now();
        for (flow, seen) in to_answer.drain(..) {
            self.push_answer(&seen, flow, now, flags::ACK);
        }
        if count > 0 {
            self.flush(Direction::Replies);
        }
        self.to_answer = to_answer;
        count
    }

    /// Offers frames at a rate for some time, and receives. Latencies go to the histogram, in nanoseconds.
    fn trial(&mut self, rate: f64, seconds: f64, mut latencies: Option<&mut Histogram<u64>>) -> Trial {
        let scenario = &self.job.scenario;
        let (flows, new_percent, direction) =
            (scenario.flows, u32::from(scenario.new_percent), scenario.direction);
        let per_frame = self.hz / rate;
        let begin = cycles::now();
        let end = begin + (seconds * self.hz) as u64;
        let (mut offered, mut answered, mut received) = (0_u64, 0_u64, 0_u64);
        let ns = 1e9 / self.hz;
        // Returns the number of frames received, and of answers sent.
        let mut take = |this: &mut Self| {
            let now = cycles::now();
            let before = received;
            let mut each = |time: u64| {
                // A late frame of an earlier trial is lost.
                if time < begin {
                    return;
                }
                received += 1;
                if let Some(histogram) = &mut latencies {
                    histogram.saturating_record((now.saturating_sub(time) as f64 * ns) as u64);
                }
            };
            let answers = if this.answers {
                this.receive_and_answer(each)
            } else {
                this.receive(direction, |_, time, _| each(time));
                0
            };
            (received - before, answers)
        };
        let mut now = begin;
        while now < end {
            // The first frame is due at the beginning.
            let due = ((now - begin) as f64 / per_frame) as u64 + 1;
            let count = (due.saturating_sub(offered)).min(BURST as u64);
            for _ in 0..count {
                let is_new = flows == 0 || new_percent > 0 && self.random.below(100) < new_percent;
                let (flow, tcp_flags) = if is_new {
                    (self.new_flow(), flags::SYN)
                } else {
                    (self.random.below(flows), flags::ACK)
                };
                let time = begin + (offered as f64 * per_frame) as u64;
                self.push(direction, flow, time, tcp_flags);
                offered += 1;
            }
            if count > 0 {
                self.flush(direction);
            }
            answered += take(self).1;
            now = cycles::now();
        }
        let seconds = (now - begin) as f64 / self.hz;
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < LATE {
            let (count, answers) = take(self);
            answered += answers;
            if count > 0 {
                quiet_since = Instant::now();
            }
        }
        Trial { offered: offered + answered, received, seconds }
    }

    /// The time to create and discard one frame, in nanoseconds.
    fn own_cost(&mut self) -> f64 {
        let count = 1_000_000_u32;
        let direction = self.job.scenario.direction;
        let begin = cycles::now();
        for n in 0..count {
            let flow = self.random.below(self.job.scenario.flows.max(1 << 20));
            self.push(direction, flow.min(self.seen.len().max(1) as u32 - 1), u64::from(n), flags::ACK);
            if self.sending.is_full() {
                self.sending.clear();
            }
        }
        self.sending.clear();
        (cycles::now() - begin) as f64 / self.hz * 1e9 / f64::from(count)
    }

    fn measure(&mut self) -> Result<Measured> {
        let generator_ns = self.own_cost();
        let scenario = self.job.scenario.clone();
        if let Some(Soak { seconds, .. }) = self.job.soak {
            return Ok(self.soak(seconds, generator_ns));
        }
        let seconds = if scenario.flows == 0 && !scenario.search {
            scenario.seconds.min(NEW_SECONDS)
        } else {
            scenario.seconds
        };
        // The first frames after a start hit cold caches and sleeping threads.
        self.trial(MOST, seconds, None);
        let run = |rate: f64| {
            let one = self.trial(rate, seconds, None);
            self.show(&format!(
                "{}: {:.3} Mpps offered, {:.3} forwarded, {:.2} % lost",
                scenario.name(),
                one.offered_pps() / 1e6,
                one.received_pps() / 1e6,
                one.loss_percent()
            ));
            one
        };
        let found = if scenario.search {
            search(MOST, scenario.loss_percent, scenario.precision_percent, run)
        } else {
            overload(MOST, run)
        };
        let mut latency = Vec::new();
        if scenario.latency {
            let half = found.throughput_pps.unwrap_or(found.overload_pps) / 2.0;
            for (load, rate) in [("half", half), ("low", LOW.min(half))] {
                if rate >= 1.0 {
                    latency.push(self.latency(load, rate, scenario.seconds.max(1.0))?);
                }
            }
        }
        let connections = scenario.connections.then(|| self.connections(scenario.seconds.max(1.0)));
        self.show("");
        Ok(Measured { found, generator_ns, latency, connections, soak: Vec::new() })
    }

    /// Opens and closes connections for some time, as fast as the forwarder allows.
    fn connections(&mut self, seconds: f64) -> Connections {
        // Connection n has the index n modulo OPEN, so a frame identifies its index. Its time is the number of its
        // step.
        let first = (self.next_flow / OPEN + 1) * OPEN;
        let begin = cycles::now();
        let (end, stuck) = (begin + (seconds * self.hz) as u64, (STUCK.as_secs_f64() * self.hz) as u64);
        let mut open: Vec<(u32, u64)> = (0..OPEN).map(|index| (first + index, begin)).collect();
        let (mut completed, mut failed, mut index) = (0, 0, 0);
        for flow in first..first + OPEN {
            self.push(Direction::Requests, flow, 0, STEPS[0]);
            if self.sending.is_full() {
                self.flush(Direction::Requests);
            }
        }
        self.flush(Direction::Requests);
        // Frames to be sent next on each side: the connection, the step, and what an answer needs.
        let mut next = [Vec::with_capacity(2 * BURST), Vec::with_capacity(2 * BURST)];
        let mut now = begin;
        while now < end {
            for direction in [Direction::Requests, Direction::Replies] {
                let returns = self.job.returns;
                self.receive_one_side(direction, |flow, step, frame| {
                    let Some(one) = open.get_mut((flow % OPEN) as usize).filter(|one| one.0 == flow) else {
                        return;
                    };
                    one.1 = now;
                    // If replies do not pass the forwarder, the client continues as if it had been answered.
                    let step =
                        step as usize + if direction == Direction::Requests && !returns { 2 } else { 1 };
                    if step < STEPS.len() {
                        let seen = if step % 2 == 1 { Seen::of(frame) } else { None };
                        next[step % 2].push((flow, step, seen.unwrap_or_default()));
                    } else {
                        completed += 1;
                        *one = (flow + OPEN, now);
                        next[0].push((flow + OPEN, 0, Seen::default()));
                    }
                });
            }
            for (n, direction) in [Direction::Requests, Direction::Replies].into_iter().enumerate() {
                let frames = std::mem::take(&mut next[n]);
                for (flow, step, seen) in &frames {
                    match direction {
                        Direction::Requests => self.push(direction, *flow, *step as u64, STEPS[*step]),
                        Direction::Replies => self.push_answer(seen, *flow, *step as u64, STEPS[*step]),
                    }
                    if self.sending.is_full() {
                        self.flush(direction);
                    }
                }
                self.flush(direction);
                next[n] = frames;
                next[n].clear();
            }
            let one = &mut open[index];
            if now.saturating_sub(one.1) > stuck {
                failed += 1;
                *one = (one.0 + OPEN, now);
                let flow = one.0;
                self.push(Direction::Requests, flow, 0, STEPS[0]);
                self.flush(Direction::Requests);
            }
            index = (index + 1) % OPEN as usize;
            now = cycles::now();
        }
        self.next_flow = open.iter().map(|one| one.0).max().unwrap_or(first) + 1;
        Connections { completed, failed, seconds: (now - begin) as f64 / self.hz }
    }

    fn latency(&mut self, load: &str, rate: f64, seconds: f64) -> Result<Latency> {
        // From a nanosecond to a minute, to three digits.
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        let trial = self.trial(rate, seconds, Some(&mut histogram));
        let us = |ns: u64| ns as f64 / 1_000.0;
        Ok(Latency {
            load: load.to_owned(),
            pps: trial.offered_pps(),
            frames: histogram.len(),
            loss_percent: trial.loss_percent(),
            p50_us: us(histogram.value_at_quantile(0.5)),
            p99_us: us(histogram.value_at_quantile(0.99)),
            p999_us: us(histogram.value_at_quantile(0.999)),
            worst_us: us(histogram.max()),
        })
    }

    /// Overload for a long time, second by second.
    fn soak(&mut self, seconds: f64, generator_ns: f64) -> Measured {
        let mut soak = Vec::new();
        self.answers = self.job.returns && self.job.scenario.direction == Direction::Requests;
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            let one = self.trial(MOST, 1.0, None);
            self.show(&format!("soak: {:.3} Mpps forwarded", one.received_pps() / 1e6));
            soak.push(one);
        }
        self.show("");
        let best = soak.iter().map(Trial::received_pps).fold(0.0, f64::max);
        let found = Found {
            overload_pps: best,
            throughput_pps: None,
            is_limit_of_generator: false,
            trials: Vec::new(),
        };
        Measured { found, generator_ns, latency: Vec::new(), connections: None, soak }
    }
}
