//! State shared by the handle and the connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request as HttpRequest, header};
use tokio::sync::watch;

use crate::access::User;
use crate::api::Api;
use crate::faults::Faults;
use crate::tls::Tls;

/// An answered request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Query as sent.
    pub query: String,
    /// The user; empty if it is unknown.
    pub user: String,
    /// `fieldManager`, or the client's name.
    pub field_manager: String,
    /// Body as sent.
    pub body: String,
    /// HTTP status of the answer.
    pub code: u16,
}

/// State shared by the handle and the connections.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) api: Mutex<Api>,
    /// Users by token. `None` marks an expired token.
    pub(crate) tokens: Mutex<BTreeMap<String, Option<User>>>,
    /// Users by their certificate (DER).
    pub(crate) certificates: Mutex<BTreeMap<Vec<u8>, User>>,
    pub(crate) faults: Faults,
    pub(crate) requests: Mutex<Vec<Logged>>,
    pub(crate) tls: Mutex<Option<Tls>>,
    /// Incremented on each change of objects or switches.
    pub(crate) wake: Arc<watch::Sender<u64>>,
    pub(crate) bookmark_interval: Duration,
}

impl Shared {
    pub(crate) fn api(&self) -> MutexGuard<'_, Api> {
        self.api.lock().expect("nothing panics while the objects are locked")
    }

    pub(crate) fn wake_watches(&self) {
        self.wake.send_modify(|count| *count += 1);
    }

    pub(crate) fn user_of(&self, certificate: &[u8]) -> Option<User> {
        self.certificates.lock().expect("nothing panics while they are locked").get(certificate).cloned()
    }

    pub(crate) fn user(&self, request: &HttpRequest<Incoming>) -> Option<User> {
        let token = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
        let known = self
            .tokens
            .lock()
            .expect("nothing panics while the tokens are locked")
            .get(token.trim())
            .cloned();
        known.unwrap_or_else(|| User::of_bound_token(&self.api().store, token.trim()))
    }
}
