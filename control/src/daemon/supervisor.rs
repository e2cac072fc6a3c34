//! Notifies the supervisor (`sd_notify(3)`) whether the gateway forwards, what it waits for, and when it stops.
//!
//! `READY=1` means that every worker has applied the first snapshot, so that units ordered after the gateway find it
//! forwarding. If the API server does not answer and no objects are saved on disk, the gateway would wait forever, and
//! a restart by the supervisor would not help. So after [`READY_MAX`] it reports ready, and `STATUS=` shows what is
//! missing (`systemctl status` displays it). The start timeout in `deploy/systemd` is longer than that.
//!
//! If the supervisor has a watchdog (`WATCHDOG_USEC`), it is also notified while the daemon's loop and the dataplane's
//! check for hung threads make progress. A hung loop would keep dead backends in use while packets are forwarded, so
//! the supervisor kills and restarts such a gateway.
//!
//! The daemon's loop calls this module after each round and while it waits. Without `NOTIFY_SOCKET`, nothing is sent.
//! `sd-notify` would not do: it sends on a blocking socket, and a supervisor that doesn't read must not block forwarding.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::Instant;

/// How long to wait for the first objects.
const READY_MAX: Duration = Duration::from_secs(60);
/// How often their arrival is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// After a crash, the supervisor restarts the process at once because connections depend on it. A failing start would
/// be repeated several times a second, so it takes at least this long.
const FAILED_START_MIN: Duration = Duration::from_secs(2);

/// Delays the exit of a process whose start has just failed and that a supervisor will restart.
pub(super) fn delay_retry(began: std::time::Instant) {
    if std::env::var_os("NOTIFY_SOCKET").is_some() {
        std::thread::sleep(FAILED_START_MIN.saturating_sub(began.elapsed()));
    }
}

/// The connection to the supervisor.
pub(super) struct Supervisor {
    socket: Option<(UnixDatagram, SocketAddr)>,
    ready_by: Instant,
    is_ready: bool,
    /// Whether the gateway forwards.
    forwards: bool,
    is_stopping: bool,
    status: String,
    watchdog: Option<Watchdog>,
}

/// The watchdog of a supervisor.
struct Watchdog {
    /// How often it is notified: twice within its timeout.
    every: Duration,
    due: Instant,
    /// The number of checks for hung threads at the last notification.
    hang_checks: u64,
}

impl Watchdog {
    /// A watchdog with this timeout.
    fn after(time: Duration) -> Self {
        Self { every: time / 2, due: Instant::now(), hang_checks: 0 }
    }

    /// The watchdog that the values of `WATCHDOG_USEC` and `WATCHDOG_PID` request for the process `own`, if any.
    ///
    /// # Errors
    /// The time is invalid.
    fn requested(time: Option<&str>, pid: Option<&str>, own: u32) -> Result<Option<Self>, String> {
        // The variables may be inherited from a parent.
        let is_own = pid.is_none_or(|pid| pid.parse::<u32>() == Ok(own));
        let Some(time) = time.filter(|_| is_own) else { return Ok(None) };
        match time.parse::<u64>() {
            Ok(micros) if micros > 0 => Ok(Some(Self::after(Duration::from_micros(micros)))),
            _ => Err(format!("WATCHDOG_USEC: {time:?} is not a time; accepted: microseconds, 1 or more")),
        }
    }
}

impl Supervisor {
    /// The supervisor that requested notifications, if any.
    pub(super) fn of_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let opened = open(path.as_encoded_bytes());
            opened.inspect_err(|error| tracing::warn!(%error, "cannot open the notification socket of the supervisor (NOTIFY_SOCKET)")).ok()
        });
        let variable = |name: &str| std::env::var(name).ok();
        let (time, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        let requested = Watchdog::requested(time.as_deref(), pid.as_deref(), std::process::id());
        let watchdog = requested.unwrap_or_else(|why| {
            tracing::warn!("ignoring the watchdog of the supervisor: {why}");
            None
        });
        Self { watchdog, ..Self::at(socket) }
    }

    fn at(socket: Option<(UnixDatagram, SocketAddr)>) -> Self {
        let ready_by = Instant::now() + READY_MAX;
        Self {
            socket,
            ready_by,
            is_ready: false,
            forwards: false,
            is_stopping: false,
            status: String::new(),
            watchdog: None,
        }
    }

    /// When the next check is due, even without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.forwards && !self.is_stopping && self.socket.is_some())
            .then(|| Instant::now() + CHECK_INTERVAL)
    }

    /// Reports whether the gateway forwards, or what it waits for.
    pub(super) fn notify(&mut self, forwards: bool, waits_for: impl FnOnce() -> String) {
        if self.is_stopping || self.socket.is_none() || self.forwards && forwards {
            return;
        }
        let is_late = Instant::now() >= self.ready_by;
        let status = if forwards { "forwarding".to_owned() } else { waits_for() };
        let mut message = String::new();
        let is_ready = self.is_ready || forwards || is_late;
        if is_ready != self.is_ready {
            message.push_str("READY=1\n");
        }
        if status != self.status {
            message.push_str(&format!("STATUS={}\n", status.replace('\n', " ")));
        }
        // A message that the supervisor did not accept is sent again at the next check: without `READY=1`, the
        // supervisor would kill the gateway.
        let is_taken = self.send(&message);
        if is_taken {
            (self.is_ready, self.status) = (is_ready, status);
        }
        self.forwards = forwards && is_taken;
    }

    /// Notifies the watchdog, if that is due, that the daemon's loop is alive. `hang_checks` counts the dataplane's
    /// checks for hung threads: while it does not increase, the watchdog is not notified.
    pub(super) fn notify_watchdog(&mut self, hang_checks: u64) {
        let now = Instant::now();
        let is_due = self.watchdog.as_ref().is_some_and(|of| of.due <= now && of.hang_checks != hang_checks);
        if is_due
            && self.send("WATCHDOG=1\n")
            && let Some(watchdog) = &mut self.watchdog
        {
            (watchdog.due, watchdog.hang_checks) = (now + watchdog.every, hang_checks);
        }
    }

    /// Reports that the shutdown has started.
    pub(super) fn stopping(&mut self) {
        self.is_stopping = true;
        self.send("STOPPING=1\nSTATUS=stopping\n");
    }

    /// Sends a message. Returns false if the supervisor's queue is full.
    fn send(&self, message: &str) -> bool {
        let Some((socket, to)) = self.socket.as_ref().filter(|_| !message.is_empty()) else { return true };
        match socket.send_to_addr(message.as_bytes(), to) {
            Ok(_) => true,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
            Err(error) => {
                tracing::warn!(%error, "cannot notify the supervisor");
                true
            }
        }
    }
}

fn open(path: &[u8]) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    // A leading @ denotes the abstract namespace.
    let to = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::str::from_utf8(path).map_err(std::io::Error::other)?)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not block forwarding.
    socket.set_nonblocking(true)?;
    Ok((socket, to))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const SOCKET: &str = "notify";

    /// The socket of a supervisor, in its directory.
    fn listening() -> (TempDir, UnixDatagram) {
        let directory = tempfile::tempdir().expect("a directory");
        let supervisor = UnixDatagram::bind(directory.path().join(SOCKET)).expect("a socket");
        supervisor.set_nonblocking(true).expect("a socket option");
        (directory, supervisor)
    }

    /// A gateway that notifies it.
    fn notifies(directory: &TempDir) -> Supervisor {
        let path = directory.path().join(SOCKET);
        Supervisor::at(Some(open(path.as_os_str().as_encoded_bytes()).expect("it is there")))
    }

    /// Fills the queue of the socket.
    fn fill(directory: &TempDir) {
        let others = UnixDatagram::unbound().expect("a socket");
        others.set_nonblocking(true).expect("a socket option");
        while others.send_to(b"READY=1\n", directory.path().join(SOCKET)).is_ok() {}
    }

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn ready_is_sent_when_it_forwards_or_after_a_long_wait() {
        let (directory, supervisor) = listening();
        let notified = |gateway: &mut Supervisor, forwards: bool| {
            gateway.notify(forwards, || "waiting for the API server".to_owned());
            received(&supervisor)
        };
        let start = || notifies(&directory);

        let mut gateway = start();
        assert_eq!(notified(&mut gateway, true).as_deref(), Some("READY=1\nSTATUS=forwarding\n"));
        assert_eq!((notified(&mut gateway, true), gateway.due()), (None, None));
        assert_eq!(notified(&mut gateway, false).as_deref(), Some("STATUS=waiting for the API server\n"));
        assert!(gateway.due().is_some(), "it checks again");
        assert_eq!(notified(&mut gateway, true).as_deref(), Some("STATUS=forwarding\n"));

        let mut gateway = start();
        let waits = "STATUS=waiting for the API server\n";
        assert_eq!(notified(&mut gateway, false).as_deref(), Some(waits));
        tokio::time::advance(READY_MAX - Duration::from_millis(1)).await;
        assert_eq!(notified(&mut gateway, false), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(notified(&mut gateway, false).as_deref(), Some("READY=1\n"));
        assert_eq!(notified(&mut gateway, true).as_deref(), Some("STATUS=forwarding\n"));
        gateway.stopping();
        assert_eq!(received(&supervisor).as_deref(), Some("STOPPING=1\nSTATUS=stopping\n"));
        assert_eq!((notified(&mut gateway, false), notified(&mut gateway, true)), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_supervisor_is_notified_later() {
        let (directory, supervisor) = listening();
        fill(&directory);
        let mut gateway = notifies(&directory);
        gateway.notify(true, String::new);
        assert!(gateway.due().is_some(), "it is retried");
        while received(&supervisor).is_some() {}
        gateway.notify(true, String::new);
        assert_eq!(received(&supervisor).as_deref(), Some("READY=1\nSTATUS=forwarding\n"));
        assert!(gateway.due().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_notified_while_loop_and_check_make_progress() {
        let (directory, supervisor) = listening();
        let time = Duration::from_secs(90);
        let mut gateway = Supervisor { watchdog: Some(Watchdog::after(time)), ..notifies(&directory) };
        let mut notified = |hang_checks| {
            gateway.notify_watchdog(hang_checks);
            received(&supervisor)
        };
        assert_eq!(notified(0), None, "the check for hung threads has not started");
        assert_eq!(notified(1).as_deref(), Some("WATCHDOG=1\n"));
        tokio::time::advance(time / 2 - Duration::from_millis(1)).await;
        assert_eq!(notified(2), None, "it is not due yet");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(notified(1), None, "the check for hung threads hung");
        assert_eq!(notified(2).as_deref(), Some("WATCHDOG=1\n"));
        assert_eq!(notified(3), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_watchdog_is_notified_at_the_next_check() {
        let (directory, supervisor) = listening();
        fill(&directory);
        let mut gateway =
            Supervisor { watchdog: Some(Watchdog::after(Duration::from_secs(90))), ..notifies(&directory) };
        gateway.notify_watchdog(1);
        while let Some(message) = received(&supervisor) {
            assert_eq!(message, "READY=1\n");
        }
        gateway.notify_watchdog(2);
        assert_eq!(received(&supervisor).as_deref(), Some("WATCHDOG=1\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watchdog_is_for_this_process_with_a_time_in_microseconds() {
        let every = |time, pid| {
            let requested = Watchdog::requested(time, pid, 7);
            requested.map(|watchdog| watchdog.map(|watchdog| watchdog.every))
        };
        let half = Ok(Some(Duration::from_secs(45)));
        assert_eq!(every(Some("90000000"), Some("7")), half);
        assert_eq!(every(Some("90000000"), None), half);
        assert_eq!(every(Some("90000000"), Some("8")), Ok(None), "it is for a parent");
        assert_eq!(every(None, Some("7")), Ok(None));
        for time in ["0", "", "90s", "-1"] {
            let why = every(Some(time), Some("7")).expect_err("it is not a time");
            assert!(why.contains("accepted: microseconds"), "{why}");
        }
    }
}
