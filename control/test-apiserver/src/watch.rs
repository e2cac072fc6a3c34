//! An open watch: follows the log of a kind and writes events, bookmarks and errors as lines of JSON.
//!
//! It locks the API only to read new entries. If it falls behind the kept history, it ends like a real server's watch,
//! with a 410 inside the stream.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::event;
use crate::faults::WatchFlags;
use crate::form::Form;
use crate::request::WatchOrder;
use crate::shared::Shared;
use crate::store::{Change, Entry};

/// The body of a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

type Sender = mpsc::Sender<Result<Frame<Bytes>, std::io::Error>>;

/// Follows changes until the client disconnects, the time is over, or a fault ends the watch. `opened` has the flags
/// from the time at which it counts as open.
pub(crate) fn follow(
    shared: Arc<Shared>,
    order: WatchOrder,
    opened: WatchFlags,
    sender: Sender,
    cut: bool,
) -> impl Future<Output = ()> + Send {
    let mut watch = Open { opened, cut, since: order.since, shared, order, sender };
    async move {
        // A client that disconnects is not an error.
        let _ = watch.run().await;
    }
}

struct Open {
    shared: Arc<Shared>,
    order: WatchOrder,
    sender: Sender,
    opened: WatchFlags,
    /// The next event is cut in half.
    cut: bool,
    since: u64,
}

/// The stream has ended.
struct Over;

impl Open {
    async fn run(&mut self) -> Result<(), Over> {
        let mut wake = self.shared.wake.subscribe();
        let end = Instant::now() + self.order.timeout;
        let mut bookmark = tokio::time::interval_at(
            Instant::now() + self.shared.bookmark_interval,
            self.shared.bookmark_interval.max(Duration::from_millis(1)),
        );
        for object in std::mem::take(&mut self.order.initial) {
            self.send_event("ADDED", &object).await?;
        }
        if self.order.mark_initial_end {
            self.send_bookmark(true).await?;
        }
        loop {
            wake.borrow_and_update();
            let flags = self.shared.faults.watches();
            if flags.ended > self.opened.ended {
                return Err(Over);
            }
            if flags.cut > self.opened.cut {
                self.cut = true;
                let line = self.line("BOOKMARK", &json!({"metadata": {}}));
                return self.send_line(line).await;
            }
            if !flags.silent {
                self.send_changes(flags.reorder, flags.duplicate).await?;
            }
            tokio::select! {
                changed = wake.changed() => changed.map_err(|_| Over)?,
                _ = bookmark.tick() => {
                    if self.order.bookmarks && !flags.silent && !flags.no_bookmarks {
                        self.send_bookmark(false).await?;
                    }
                }
                () = tokio::time::sleep_until(end) => return Err(Over),
                () = self.sender.closed() => return Err(Over),
            }
        }
    }

    async fn send_changes(&mut self, reorder: bool, duplicate: bool) -> Result<(), Over> {
        let changes = self.shared.api().store.since(&self.order.resource.storage, self.since);
        let changes = match changes {
            Ok(changes) => changes,
            Err(oldest) => {
                let gone = ApiError::gone(format!("too old resource version: {} ({oldest})", self.since));
                let line = format!("{}\n", json!({"type": "ERROR", "object": gone.status()}));
                self.send_line(line).await?;
                return Err(Over);
            }
        };
        let mut events: Vec<(&str, Arc<Value>)> =
            changes.iter().filter_map(|entry| self.seen(entry)).collect();
        if reorder {
            if events.len() == 1 {
                return Ok(());
            }
            events.reverse();
        }
        if let Some(last) = changes.last() {
            self.since = self.since.max(last.version);
        }
        for (kind, object) in events {
            for _ in 0..if duplicate { 2 } else { 1 } {
                self.send_event(kind, &object).await?;
            }
        }
        Ok(())
    }

    /// The event that results from a change with this selector: an object may start or stop matching.
    fn seen(&self, entry: &Entry) -> Option<(&'static str, Arc<Value>)> {
        let namespace = &self.order.namespace;
        if !namespace.is_empty() && entry.object["metadata"]["namespace"] != namespace.as_str() {
            return None;
        }
        let selector = &self.order.selector;
        let was = entry.before.as_ref().is_some_and(|before| selector.matches(before));
        let is = entry.change != Change::Deleted && selector.matches(&entry.object);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        if kind == "DELETED" && entry.change != Change::Deleted {
            // The object no longer matches: send its last matching state with the version of the change.
            let mut last = Value::clone(entry.before.as_ref()?);
            last["metadata"]["resourceVersion"] = entry.version.to_string().into();
            return Some((kind, Arc::new(last)));
        }
        Some((kind, entry.object.clone()))
    }

    async fn send_event(&mut self, kind: &str, object: &Value) -> Result<(), Over> {
        let line = self.line(kind, object);
        self.send_line(line).await
    }

    async fn send_bookmark(&mut self, initial_end: bool) -> Result<(), Over> {
        let version = {
            let api = self.shared.api();
            // A bookmark guarantees that everything up to its version has been sent.
            let waiting = api
                .store
                .since(&self.order.resource.storage, self.since)
                .is_ok_and(|changes| !changes.is_empty());
            if waiting && !initial_end { self.since } else { self.since.max(api.store.version()) }
        };
        if !initial_end {
            self.since = version;
        }
        let version = if initial_end { self.since } else { version };
        let mut object = json!({
            "kind": self.order.resource.kind, "apiVersion": self.order.resource.api_version(),
            "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
        });
        if initial_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let line = self.line("BOOKMARK", &object);
        self.send_line(line).await
    }

    fn line(&self, kind: &str, object: &Value) -> String {
        let resource = &self.order.resource;
        if self.order.form == Form::Whole {
            let object = event::shown_as(resource, object);
            return format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        }
        let object = self.order.form.object(&event::shown_as(resource, object));
        format!("{}\n", json!({"type": kind, "object": object}))
    }

    async fn send_line(&mut self, line: String) -> Result<(), Over> {
        let mut bytes = Bytes::from(line);
        if self.cut {
            bytes.truncate(bytes.len() / 2);
            let _ = self.sender.send(Ok(Frame::data(bytes))).await;
            let _ = self.sender.send(Err(std::io::Error::other("cut in mid-object"))).await;
            return Err(Over);
        }
        self.sender.send(Ok(Frame::data(bytes))).await.map_err(|_| Over)
    }
}
