//! The state of the source: logged and published when it changes.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tokio::sync::watch;

use crate::SourceState;
use crate::kubernetes::reflect::Failure;

/// The minimum interval between two logged errors, and between two equal ones.
const LOG_MIN: Duration = Duration::from_secs(10);
const LOG_REPEAT: Duration = Duration::from_secs(60);

/// The state, and its readers.
pub(super) struct State {
    pub(super) now: SourceState,
    /// The API server, for display.
    pub(super) server: String,
    /// The last logged error, and when it was logged.
    logged: Option<(String, Instant)>,
    /// Whether the current outage was recorded as an event.
    is_lost: bool,
    published: watch::Sender<SourceState>,
}

impl State {
    pub(super) fn new(published: watch::Sender<SourceState>) -> Self {
        let now = published.borrow().clone();
        Self { now, server: String::new(), logged: None, is_lost: false, published }
    }

    /// Records whether every kind is watched. `failure`: why the last attempt failed; `lacks`: a kind that the API
    /// server doesn't allow the gateway to read, or whose definition is being deleted.
    pub(super) fn set_connected(&mut self, connected: bool, failure: Option<Failure>, lacks: Option<String>) {
        let now = Timestamp::now();
        if self.now.connected != connected {
            if connected {
                let message = "connected to the API server: all kinds are watched";
                record(Reason::SourceConnected, &self.server, message, "");
                self.is_lost = false;
            } else {
                self.now.last_sync = Some(now);
            }
            (self.now.connected, self.now.since) = (connected, now);
        }
        if connected {
            self.now.last_error = lacks;
            self.logged = None;
        } else if let Some(failure) = failure {
            self.log(&failure);
            self.now.last_error = Some(failure.why);
        }
    }

    fn log(&mut self, Failure { why: error, is_response }: &Failure) {
        let pause =
            |(text, at): &(String, Instant)| at.elapsed() < if text == error { LOG_REPEAT } else { LOG_MIN };
        if !self.logged.as_ref().is_some_and(pause) {
            let message = match is_response {
                true => {
                    "the API server responds, but cannot provide the objects of one kind; keeping the last known ones"
                }
                false => "the API server is unavailable; keeping the last known objects",
            };
            // An outage is one event. Later errors are only logged.
            if std::mem::replace(&mut self.is_lost, true) {
                let since = self.now.since;
                tracing::warn!(%since, error, "{message}");
            } else {
                record(Reason::SourceLost, &self.server, message, error);
            }
            self.logged = Some((error.clone(), Instant::now()));
        }
    }

    /// Publishes the state if it has changed.
    pub(super) fn publish(&self) {
        self.published.send_if_modified(|published| {
            let differs = *published != self.now;
            if differs {
                published.clone_from(&self.now);
            }
            differs
        });
    }
}

fn record(reason: Reason, server: &str, message: &str, error: &str) {
    let event = Event::new(reason, ObjectKind::Source, server, message);
    tidegate_events::record(event.text(Field::Error, error));
}
