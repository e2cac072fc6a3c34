//! A host that floods the gateway: a TAP device on the lab's switch, and a thread that writes frames to it.
//!
//! A frame that is written to the TAP enters the switch as if a host had sent it. The thread runs at the lowest
//! priority on a core that the gateway does not use, so that clients and servers take precedence. It stops after its
//! count or time, or when it is dropped.
//!
//! Invariant: nothing leaves the lab's own switch.

mod frames;

use frames::Template;
pub use frames::{FAR, Kind, NO_HOST, NO_ROUTER, Target, UNREACHABLE, templates};

use super::addresses::Family;
use super::lab::DIRECT_TABLE;
use super::namespace::output_of;
use super::{Lab, Namespace, addresses as plan, wait_for};
use anyhow::{Context, Result, ensure};
use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The core that creates floods. The gateway of [`super::GatewayOptions::default`] uses the other one.
const CORE: usize = 0;
/// The lowest priority.
const NICE: i32 = 19;
/// The number of frames between two checks of the clock and the stop flag.
const CHUNK: u64 = 64;
/// The name of the TAP device in the switch's namespace.
const TAP: &str = "p-flood";

/// The limits of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames a second; `None` for the maximum of one core.
    pub rate: Option<u64>,
    /// The maximum number of frames.
    pub frames: u64,
    /// The maximum time.
    pub time: Duration,
}

impl Limits {
    /// The maximum rate for some time.
    #[must_use]
    pub fn full_rate(time: Duration) -> Self {
        Self { rate: None, frames: u64::MAX, time }
    }

    /// Limits the rate to at most `rate` frames a second.
    #[must_use]
    pub fn at(self, rate: u64) -> Self {
        Self { rate: Some(rate), ..self }
    }
}

/// The result of a flood.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The number of frames.
    pub frames: u64,
    /// The time from the first frame to the last.
    pub time: Duration,
}

impl Sent {
    /// Frames a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.frames as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The flooding host. Dropping it removes the TAP device.
#[derive(Debug)]
pub struct Attacker {
    tap: Arc<Tap>,
    /// The number of frames that all floods have sent. Each flood continues from it, so fields do not repeat.
    next: Arc<AtomicU64>,
}

struct Tap(SyncDevice);

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(TAP)
    }
}

impl Attacker {
    /// Connects a TAP device to the switch of `lab`.
    ///
    /// # Errors
    /// Without root or `/dev/net/tun`.
    pub fn join(lab: &Lab) -> Result<Self> {
        let tap = lab.switch().enter(|| {
            let device = DeviceBuilder::new().name(TAP).layer(Layer::L2).mtu(1500).build_sync();
            device.with_context(|| format!("cannot create TAP device {TAP}"))
        })?;
        keep_off_the_gateways_core(lab)?;
        // Frames that the switch sends to the device are not read: the kernel's queue of the device fills up and then
        // drops.
        lab.switch().ip_batch(&format!("link set {TAP} txqueuelen 1 master br0 up"))?;
        Ok(Self { tap: Arc::new(Tap(tap)), next: Arc::default() })
    }

    /// Sends `frames` frames of `kind` from the calling thread at the maximum rate, and returns when they are sent.
    ///
    /// # Errors
    /// When frames could not be sent.
    pub fn burst(&self, kind: Kind, targets: &[Target], frames: u64) -> Result<Sent> {
        let limits = Limits { rate: None, frames, time: Duration::MAX };
        send(&self.tap.0, templates(kind, targets), &self.next, limits, &AtomicBool::new(false))
    }

    /// Starts a flood of `kind` at `targets`.
    #[must_use]
    pub fn flood(&self, kind: Kind, targets: &[Target], limits: Limits) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let (tap, next, flag) = (Arc::clone(&self.tap), Arc::clone(&self.next), Arc::clone(&stop));
        let templates = templates(kind, targets);
        let begun = Arc::new(OnceLock::new());
        let first = Arc::clone(&begun);
        let thread = thread::spawn(move || {
            lower_priority()?;
            let _ = first.set(());
            send(&tap.0, templates, &next, limits, &flag)
        });
        Flood { stop, begun, thread: Some(thread) }
    }
}

/// A running flood. Dropping it stops it.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    begun: Arc<OnceLock<()>>,
    thread: Option<JoinHandle<Result<Sent>>>,
}

impl Flood {
    /// Whether it is still sending.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits until it starts sending.
    ///
    /// # Errors
    /// When it does not start.
    pub fn wait_until_begun(&self) -> Result<()> {
        wait_for("the flood to begin", Duration::from_secs(10), || self.begun.get().copied())
    }

    /// Waits until its count or time is reached.
    ///
    /// # Errors
    /// When frames could not be sent.
    ///
    /// # Panics
    /// When its thread panicked.
    pub fn finish(mut self) -> Result<Sent> {
        let thread = self.thread.take().expect("finish is called once");
        thread.join().expect("the flood does not panic")
    }

    /// Stops it immediately.
    ///
    /// # Errors
    /// Like [`Flood::finish`].
    pub fn stop(self) -> Result<Sent> {
        self.stop.store(true, Ordering::Relaxed);
        self.finish()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A failed flood matters to callers that need its result, but not to a test that has already failed.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread the lowest priority and keeps it off the gateway's core.
fn lower_priority() -> Result<()> {
    setpriority_process(None, NICE).context("cannot set the priority of the flood's thread")?;
    let mut core = CpuSet::new();
    core.set(CORE);
    sched_setaffinity(None, &core).context("cannot pin the flood's thread to its core")
}

fn send(
    tap: &SyncDevice,
    mut templates: Vec<Template>,
    next: &AtomicU64,
    limits: Limits,
    stop: &AtomicBool,
) -> Result<Sent> {
    ensure!(!templates.is_empty(), "the flood has no target of its family");
    let begin = Instant::now();
    let mut frames = 0;
    while frames < limits.frames && begin.elapsed() < limits.time && !stop.load(Ordering::Relaxed) {
        if let Some(rate) = limits.rate
            && frames as f64 >= begin.elapsed().as_secs_f64() * rate as f64
        {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        // Each template gets `CHUNK` consecutive numbers, so that frames with repeated fields are close in time.
        let first = next.fetch_add(CHUNK, Ordering::Relaxed);
        for template in &mut templates {
            let count = CHUNK.min(limits.frames - frames);
            for n in first..first + count {
                tap.send(template.fill(n)).context("cannot write to the TAP device")?;
            }
            frames += count;
        }
    }
    Ok(Sent { frames, time: begin.elapsed() })
}

/// Handles frames from the gateway on [`CORE`] (receive packet steering of its switch port). Otherwise a veth would
/// make the gateway's core also do the work of the switch, the servers and the clients, which are normally separate
/// machines.
fn keep_off_the_gateways_core(lab: &Lab) -> Result<()> {
    let steering = "/sys/class/net/p-gateway/queues/rx-0/rps_cpus";
    let mut write = lab.switch().command("sh");
    write.args(["-c", &format!("echo {:x} > {steering}", 1_u32 << CORE)]);
    output_of(&mut write).context("cannot steer the packets that the gateway sends (RPS)").map(drop)
}

/// Prepares the servers of `lab` for a flood: they drop packets from spoofed sources when they route them, so the
/// gateway does most of the work.
///
/// # Errors
/// When the kernel refuses a route.
pub fn prepare_server(server: &Namespace) -> Result<()> {
    // IPv4 drops such packets on input, because there is no route back. IPv6 drops the answer, because it has no route.
    server.sysctls(&[("ipv4/conf/eth0/rp_filter", "1")])?;
    for (n, family) in Family::BOTH.into_iter().enumerate() {
        let mut lines: String =
            [FAR[n], UNREACHABLE[n]].iter().map(|prefix| format!("route add blackhole {prefix}\n")).collect();
        // Otherwise the server would request the link address of each source and fill the neighbor table that the
        // kernel shares among all namespaces, and no health check would pass.
        for table in ["main", DIRECT_TABLE] {
            writeln!(lines, "route add blackhole {} table {table}", NO_HOST[n])?;
        }
        server.ip_batch_of(family, &lines)?;
    }
    Ok(())
}

/// The gateway's routes to the sources of floods. For most of them the client is the router, which drops their packets;
/// the rest are behind a router that does not exist.
#[must_use]
pub fn routes() -> Vec<(String, IpAddr)> {
    let far = Family::BOTH.map(|family| (FAR[family as usize].to_owned(), plan::client(family, 0)));
    let unreachable = Family::BOTH.map(|family| {
        let router = NO_ROUTER[family as usize].parse().expect("the plan has addresses");
        (UNREACHABLE[family as usize].to_owned(), router)
    });
    far.into_iter().chain(unreachable).collect()
}

/// Sets the priority of every thread of the process `pid`.
///
/// # Errors
/// When the process does not exist or the caller is not root.
pub fn set_priority(pid: u32, nice: i32) -> Result<()> {
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread: i32 = entry?.file_name().to_string_lossy().parse().context("a thread's number")?;
        let thread = rustix::process::Pid::from_raw(thread).context("a thread's number")?;
        // A thread may have ended since the listing.
        let _ = setpriority_process(Some(thread), nice);
    }
    Ok(())
}
