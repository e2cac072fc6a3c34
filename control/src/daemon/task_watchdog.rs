//! Monitors the tasks and threads of the control plane that must run as long as the gateway.
//!
//! A task that panics affects nothing else: without health checks, for example, the last results would stay in use
//! forever, and every health check would still pass. So the daemon's loop checks here every second, and exits the
//! process if one has ended, as it does for a worker. The dataplane's threads report their failures themselves.
//!
//! Nothing here ends or starts a task. Monitoring stops at shutdown.

use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The tasks and threads whose end fails the gateway.
#[derive(Default)]
pub(super) struct Vital(Vec<One>);

/// One task or thread.
struct One {
    /// Its purpose, for people.
    what: &'static str,
    has_ended: Box<dyn Fn() -> bool + Send>,
}

impl Vital {
    /// Adds a task.
    pub(super) fn task(&mut self, what: &'static str, task: AbortHandle) {
        self.add(what, move || task.is_finished());
    }

    /// Adds a task or thread that owns the sender of this channel, which closes when it ends.
    pub(super) fn sender<T: Send + Sync + 'static>(
        &mut self,
        what: &'static str,
        receiver: watch::Receiver<T>,
    ) {
        self.add(what, move || receiver.has_changed().is_err());
    }

    /// Adds a task or thread whose state can be queried.
    pub(super) fn add(&mut self, what: &'static str, has_ended: impl Fn() -> bool + Send + 'static) {
        self.0.push(One { what, has_ended: Box::new(has_ended) });
    }

    /// The purpose of the first task or thread that has ended, if any.
    pub(super) fn ended(&self) -> Option<&'static str> {
        self.0.iter().find(|one| (one.has_ended)()).map(|one| one.what)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    async fn fails() {
        panic!("on purpose");
    }

    #[tokio::test]
    async fn a_task_that_panics_or_returns_has_ended_and_one_that_waits_has_not() {
        let mut vital = Vital::default();
        let (end, waits) = oneshot::channel::<()>();
        let waiting = tokio::spawn(async move {
            let _ = waits.await;
        });
        vital.task("waiting", waiting.abort_handle());
        assert_eq!(vital.ended(), None);
        let failing = tokio::spawn(fails());
        vital.task("failing", failing.abort_handle());
        assert!(failing.await.is_err_and(|error| error.is_panic()));
        assert_eq!(vital.ended(), Some("failing"));
        drop(end);
        waiting.await.expect("it returns");
        assert_eq!(vital.ended(), Some("waiting"), "the one added first is reported");
    }

    #[test]
    fn a_thread_that_panics_has_ended_with_the_sender_that_it_owns() {
        let mut vital = Vital::default();
        let (sender, receiver) = watch::channel(0);
        vital.sender("sending", receiver);
        assert_eq!(vital.ended(), None);
        sender.send_replace(1);
        assert_eq!(vital.ended(), None, "an unread value does not count as the end");
        let thread = std::thread::spawn(move || {
            sender.send_replace(2);
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(vital.ended(), Some("sending"));
    }
}
