//! The switches with which a test makes the server fail: rules for requests, flags for watches.
//!
//! A [`Rule`] selects requests by method and by a part of `path?query`, for a number of requests or without limit. The
//! flags affect open watches immediately. The handle ([`crate::TestApiServer`]) refuses connections, restarts, and
//! expires tokens.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A fault that is applied to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The answer is delayed by this time.
    Slow(Duration),
    /// 429 with `Retry-After` in seconds.
    TooManyRequests(u32),
    /// A 5xx, with a `Status` body.
    ServerError(u16),
    /// 401.
    Unauthorized,
    /// Half of the body is sent, then the connection breaks. A watch breaks in the middle of its next event.
    CutInMidObject,
    /// The request is accepted and never answered.
    Hang,
}

/// Selects the requests that a fault applies to.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Method, or empty for all.
    pub method: String,
    /// Part of `path?query`, or empty for all.
    pub path: String,
    /// What happens.
    pub fault: Fault,
    /// The number of requests that the rule applies to; `None` for all.
    pub times: Option<u32>,
}

/// The flags of watches.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WatchFlags {
    pub(crate) silent: bool,
    pub(crate) duplicate: bool,
    pub(crate) reorder: bool,
    pub(crate) no_bookmarks: bool,
    /// Watches opened before this count end.
    pub(crate) ended: u64,
    /// Watches opened before this count break in the middle of an event.
    pub(crate) cut: u64,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    watches: WatchFlags,
    /// Requests to which a rule was applied.
    met: u64,
}

/// The switches. Clones share them.
#[derive(Debug, Clone)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    /// Wakes the watches.
    wake: Arc<tokio::sync::watch::Sender<u64>>,
}

impl Faults {
    pub(crate) fn new(wake: Arc<tokio::sync::watch::Sender<u64>>) -> Self {
        Self { state: Arc::default(), wake }
    }

    /// Adds a rule. Earlier rules take precedence.
    pub fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Applies `fault` to all requests whose `path?query` contains `path`.
    pub fn on(&self, path: &str, fault: Fault) {
        self.add(Rule { method: String::new(), path: path.into(), fault, times: None });
    }

    /// Applies `fault` to the next `times` requests whose `path?query` contains `path`.
    pub fn on_next(&self, times: u32, path: &str, fault: Fault) {
        self.add(Rule { method: String::new(), path: path.into(), fault, times: Some(times) });
    }

    /// Removes all faults. Watches that ended stay ended.
    pub fn clear(&self) {
        let mut state = self.state();
        state.rules.clear();
        let WatchFlags { ended, cut, .. } = state.watches;
        state.watches = WatchFlags { ended, cut, ..WatchFlags::default() };
        drop(state);
        self.wake();
    }

    /// Keeps watches open but sends nothing, not even bookmarks. The missed events follow when this is turned off.
    pub fn silence_watches(&self, on: bool) {
        self.state().watches.silent = on;
        self.wake();
    }

    /// Sends each event twice.
    pub fn duplicate_events(&self, on: bool) {
        self.state().watches.duplicate = on;
        self.wake();
    }

    /// Delays an event until there are two, and sends the later one first.
    pub fn reorder_events(&self, on: bool) {
        self.state().watches.reorder = on;
        self.wake();
    }

    /// Sends no bookmarks.
    pub fn withhold_bookmarks(&self, on: bool) {
        self.state().watches.no_bookmarks = on;
    }

    /// Ends every open watch normally, as a server does after its timeout.
    pub fn end_watches(&self) {
        self.state().watches.ended += 1;
        self.wake();
    }

    /// Breaks every open watch in the middle of an event.
    pub fn cut_watches(&self) {
        self.state().watches.cut += 1;
        self.wake();
    }

    /// The number of requests so far to which a rule was applied, including those that are not answered yet.
    pub fn met(&self) -> u64 {
        self.state().met
    }

    pub(crate) fn watches(&self) -> WatchFlags {
        self.state().watches
    }

    /// The fault that applies to a request.
    pub(crate) fn take(&self, method: &str, path_and_query: &str) -> Option<Fault> {
        let mut state = self.state();
        let at = state.rules.iter().position(|rule| {
            (rule.method.is_empty() || rule.method == method) && path_and_query.contains(&rule.path)
        })?;
        state.met += 1;
        let fault = state.rules[at].fault.clone();
        if let Some(times) = &mut state.rules[at].times {
            *times = times.saturating_sub(1);
            if *times == 0 {
                state.rules.remove(at);
            }
        }
        Some(fault)
    }

    fn wake(&self) {
        self.wake.send_modify(|count| *count += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the switches are locked")
    }
}
