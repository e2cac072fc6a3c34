//! A bad wire: loses and delays frames between the gateway and the switch, in both directions.
//!
//! Not every kernel has netem, so a thread replaces it: the gateway's port moves to its own bridge, and the thread
//! carries the frames between that bridge and the switch over two TAP devices. Later frames overtake a delayed one. All
//! four legs of a connection (client, gateway, backend and back) use this wire.
//!
//! The seed and the order of the frames alone determine which frames are affected.

use super::{Lab, Namespace};
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The TAP devices: on the gateway's side and on the switch's side.
const TAPS: [&str; 2] = ["p-wire-g", "p-wire-s"];

/// How bad the wire is.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Lost frames of a thousand.
    pub lost_permille: u64,
    /// Delayed frames of a thousand.
    pub delayed_permille: u64,
    /// The delay of delayed frames.
    pub delay: Duration,
    /// The seed of the random choice.
    pub seed: u64,
}

/// The number of frames on the wire, by what happened to them.
#[derive(Debug, Default)]
struct Counters {
    passed: AtomicU64,
    lost: AtomicU64,
    delayed: AtomicU64,
}

/// The wire. Dropping it connects the gateway to the switch again.
#[derive(Debug)]
pub struct Wire {
    switch: Namespace,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Puts the wire between the gateway of `lab` and the switch.
    ///
    /// # Errors
    /// Without root or `/dev/net/tun`.
    pub fn install(lab: &Lab, faults: Faults) -> Result<Self> {
        let switch = lab.switch().clone();
        let taps = switch.enter(|| TAPS.map(tap));
        let [gateway, rest] = taps;
        let taps = [gateway?, rest?];
        switch.ip_batch(&format!(
            "link add br1 type bridge mcast_snooping 0 forward_delay 0\n\
             link set br1 up\n\
             link set {} master br1 up\n\
             link set {} master br0 up\n\
             link set p-gateway master br1",
            TAPS[0], TAPS[1]
        ))?;
        let (stop, counters) = (Arc::new(AtomicBool::new(false)), Arc::new(Counters::default()));
        let mut carrier = Carrier {
            taps,
            faults,
            random: faults.seed,
            waiting: VecDeque::new(),
            counters: Arc::clone(&counters),
        };
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                carrier.carry();
            }
        });
        Ok(Self { switch, stop, counters, thread: Some(thread) })
    }

    /// The number of lost and of delayed frames so far.
    #[must_use]
    pub fn lost_and_delayed(&self) -> (u64, u64) {
        (self.counters.lost.load(Ordering::Relaxed), self.counters.delayed.load(Ordering::Relaxed))
    }

    /// The number of all frames so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        let (lost, delayed) = self.lost_and_delayed();
        self.counters.passed.load(Ordering::Relaxed) + lost + delayed
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The panic was printed to standard error.
            let _ = thread.join();
        }
        // The lab may be gone.
        let _ = self.switch.ip_batch("link set p-gateway master br0\nlink del br1");
    }
}

fn tap(name: &str) -> Result<SyncDevice> {
    let tap = DeviceBuilder::new().name(name).layer(Layer::L2).mtu(1500).build_sync();
    let tap = tap.with_context(|| format!("cannot create TAP device {name}"))?;
    tap.set_nonblocking(true)?;
    Ok(tap)
}

/// A delayed frame.
struct DelayedFrame {
    until: Instant,
    to: usize,
    frame: Vec<u8>,
}

/// The thread's part of the wire.
struct Carrier {
    taps: [SyncDevice; 2],
    faults: Faults,
    random: u64,
    /// In the order of their release, because the delay is constant.
    waiting: VecDeque<DelayedFrame>,
    counters: Arc<Counters>,
}

impl Carrier {
    /// Waits for frames with a limit, and carries those that have arrived.
    fn carry(&mut self) {
        let due = self.waiting.front().map(|waiting| waiting.until.saturating_duration_since(Instant::now()));
        let wait = due.unwrap_or(Duration::from_millis(100));
        let wait = Timespec::try_from(wait).expect("a short time");
        let mut ready = self.taps.each_ref().map(|tap| PollFd::new(tap, PollFlags::IN));
        // After a signal, there are no frames.
        let _ = poll(&mut ready, Some(&wait));
        self.release();
        for from in 0..2 {
            let mut buffer = [0; 2048];
            // The number is bounded, so that neither direction waits for the other.
            for _ in 0..64 {
                let Ok(length) = self.taps[from].recv(&mut buffer) else { break };
                self.pass_on(1 - from, &buffer[..length]);
            }
        }
    }

    fn release(&mut self) {
        while self.waiting.front().is_some_and(|waiting| waiting.until <= Instant::now()) {
            if let Some(waiting) = self.waiting.pop_front() {
                self.send(waiting.to, &waiting.frame);
            }
        }
    }

    fn pass_on(&mut self, to: usize, frame: &[u8]) {
        let Faults { lost_permille, delayed_permille, delay, .. } = self.faults;
        let drawn = self.draw() % 1000;
        if drawn < lost_permille {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
        } else if drawn < lost_permille + delayed_permille {
            self.counters.delayed.fetch_add(1, Ordering::Relaxed);
            self.waiting.push_back(DelayedFrame { until: Instant::now() + delay, to, frame: frame.to_vec() });
        } else {
            self.counters.passed.fetch_add(1, Ordering::Relaxed);
            self.send(to, frame);
        }
    }

    fn send(&self, to: usize, frame: &[u8]) {
        // A frame that the device does not accept is lost, as on any wire.
        let _ = self.taps[to].send(frame);
    }

    /// The next pseudo-random number (splitmix64).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
