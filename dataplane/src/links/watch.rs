//! The thread that watches ports and taps.
//!
//! It sleeps until the kernel reports an interface change, or for half a second (for drivers that must be polled, and
//! for retries), and then checks everything.
//!
//! Invariant: it owns all ports while it runs, so nothing else opens or closes one. It returns them when it ends, even
//! after a panic, because workers may still use their queues.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::kernel::{Events, Kernel};
use super::port::{PortResources, WatchedPort};
use super::{LinkState, Links};
use crate::gateway::threads::{OnFailure, confine, guarded};

/// The longest sleep. It limits the time until a lost link is detected and its announcements are withdrawn.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How often driver counters and sysctls are read.
const COUNTERS_EVERY: Duration = Duration::from_secs(1);
/// How long it sleeps while a worker still has to release or accept a queue.
const CHECK_SOON: Duration = Duration::from_millis(1);
/// Changes within this time are handled together, because other interfaces of the host may change all the time.
const BATCH_DELAY: Duration = Duration::from_millis(5);

/// Everything that the thread watches.
pub(crate) struct Watched {
    pub(crate) ports: Vec<WatchedPort>,
    /// The names of the taps, by interface index.
    pub(crate) taps: Vec<Option<String>>,
    pub(crate) links: Arc<Links>,
    pub(crate) resources: PortResources,
    /// When the counters of the ports are read next.
    pub(crate) counters_at: Instant,
}

/// The watching thread.
#[derive(Debug)]
pub(crate) struct WatchThread {
    thread: JoinHandle<Watched>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl WatchThread {
    /// Checks everything once, then starts the thread on these CPUs. `on_failure` is called if it panics.
    ///
    /// # Errors
    /// If the kernel refuses the subscription, or the thread cannot be created.
    pub(crate) fn start(
        mut watched: Watched,
        cpus: Vec<usize>,
        on_failure: Option<OnFailure>,
    ) -> io::Result<Self> {
        let (mut kernel, events) = (Kernel::open()?, Events::open()?);
        let (stop, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?));
        watched.check(&mut kernel);
        let (stopped, woken) = (Arc::clone(&stop), Arc::clone(&wake));
        let body = move || {
            guarded("link watcher", on_failure.as_ref(), || {
                if let Err(error) = confine(&cpus) {
                    tracing::warn!(?cpus, %error, "cannot keep the link watcher off the cores of the workers");
                }
                while !stopped.load(Ordering::Acquire) {
                    let soon = watched.check(&mut kernel);
                    if wait(&events, &woken, if soon { CHECK_SOON } else { CHECK_INTERVAL }) {
                        std::thread::sleep(BATCH_DELAY);
                        events.drain();
                    }
                }
            });
            watched
        };
        let thread = std::thread::Builder::new().name("tg-links".to_owned()).spawn(body)?;
        Ok(Self { thread, stop, wake })
    }

    /// Ends the thread. Returns what it watched, unless its callback has panicked.
    pub(crate) fn end(self) -> Option<Watched> {
        self.stop.store(true, Ordering::Release);
        // If the write fails, the thread wakes up within a second.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        self.thread.join().ok()
    }
}

/// Waits for events, the stop request or the timeout. Returns whether there were events.
fn wait(events: &Events, wake: &OwnedFd, time: Duration) -> bool {
    let fd = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut fds = [fd(events.as_fd()), fd(wake.as_fd())];
    let timeout = Timespec {
        tv_sec: i64::try_from(time.as_secs()).expect("a second at most"),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => {
            tracing::debug!(%error, "cannot wait for interface changes");
            std::thread::sleep(time);
            false
        }
    }
}

impl Watched {
    /// Checks everything once. Returns whether to do so again soon.
    fn check(&mut self, kernel: &mut Kernel) -> bool {
        let now = Instant::now();
        let mut soon = false;
        for (interface, port) in self.ports.iter_mut().enumerate() {
            soon |= port.check(interface, kernel, &self.links, &self.resources, now);
        }
        if self.counters_at <= now {
            self.counters_at = now + COUNTERS_EVERY;
            for (interface, port) in self.ports.iter().enumerate() {
                port.read_counters(interface, &self.links);
                port.restore_sysctls();
            }
        }
        for (interface, tap) in self.taps.iter().enumerate() {
            if let Some(Ok(found)) = tap.as_ref().map(|tap| kernel.link(tap)) {
                self.links.set_tap(interface, found.map_or(LinkState::Gone, |link| link.state));
            }
        }
        soon
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("ports", &self.ports)
            .field("taps", &self.taps)
            .finish_non_exhaustive()
    }
}
