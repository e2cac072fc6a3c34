//! The thread that watches ports and taps.
//!
//! It sleeps until the kernel reports a change of any interface, or for a second (for drivers that must be polled,
//! and for retries), and then checks everything.
//!
//! Invariant: it owns all ports while it runs, and returns them at its end: nothing else opens or closes one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::kernel::{Events, Kernel};
use super::port::{Ground, WatchedPort};
use super::{LinkState, Links};
use crate::gateway::worker_handle::confine;

/// The longest that it sleeps.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it sleeps while a worker has something to do about a port.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// Changes that come within this time are looked at together: other interfaces of the host may change all the time.
const SETTLE: Duration = Duration::from_millis(5);

/// All that is watched.
pub(crate) struct Watched {
    pub(crate) ports: Vec<WatchedPort>,
    /// Names of the taps, by interface index.
    pub(crate) taps: Vec<Option<String>>,
    pub(crate) links: Arc<Links>,
    pub(crate) ground: Ground,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct WatchThread {
    thread: JoinHandle<Watched>,
    stop: Arc<AtomicBool>,
    wake: Arc<OwnedFd>,
}

impl WatchThread {
    /// Looks at everything once, and goes on on a thread of its own, on these CPUs.
    ///
    /// # Errors
    /// When the kernel does not tell, or there can be no thread.
    pub(crate) fn start(mut watched: Watched, cpus: Vec<usize>) -> io::Result<Self> {
        let (mut kernel, events) = (Kernel::open()?, Events::open()?);
        let (stop, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?));
        watched.turn(&mut kernel);
        let (stopped, woken) = (Arc::clone(&stop), Arc::clone(&wake));
        let body = move || {
            if let Err(error) = confine(&cpus) {
                tracing::warn!(?cpus, %error, "cannot keep the link watcher off the cores of the workers");
            }
            while !stopped.load(Ordering::Acquire) {
                let soon = watched.turn(&mut kernel);
                if wait(&events, &woken, if soon { LOOK_SOON } else { LOOK_EVERY }) {
                    std::thread::sleep(SETTLE);
                    events.drain();
                }
            }
            watched
        };
        let thread = std::thread::Builder::new().name("tg-links".to_owned()).spawn(body)?;
        Ok(Self { thread, stop, wake })
    }

    /// Ends the thread; gives what it watched, unless it has panicked.
    pub(crate) fn end(self) -> Option<Watched> {
        self.stop.store(true, Ordering::Release);
        // A failure leaves it to wake up by itself within a second.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        self.thread.join().ok()
    }
}

/// Waits for events, for the end, or until the time is over; returns whether there were events.
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
    /// One look at everything; returns whether to come back soon.
    fn turn(&mut self, kernel: &mut Kernel) -> bool {
        let now = Instant::now();
        let mut soon = false;
        for (interface, port) in self.ports.iter_mut().enumerate() {
            soon |= port.turn(interface, kernel, &self.links, &self.ground, now);
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
