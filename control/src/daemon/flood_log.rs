//! Logs which Services are under a SYN flood: when the flood starts, and when it has been over for a while.
//!
//! Workers answer such a flood with SYN cookies and write no log. No action is needed, but the owner of the Service and
//! the operator should know. A flood that pauses for less than [`QUIET`] is one flood, and each update names at most
//! [`NAMED_MAX`] service ports, so that an attacker cannot fill the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_dataplane::gateway::Dataplane;
use tidegate_spec::ServiceKey;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

const INTERVAL: Duration = Duration::from_secs(1);
/// After this time without a flood, it is over.
const QUIET: Duration = Duration::from_secs(30);
const NAMED_MAX: usize = 8;

/// The current floods.
#[derive(Debug, Default)]
struct FloodLog(BTreeMap<ServiceKey, Flood>);

#[derive(Debug)]
struct Flood {
    service: String,
    began: Instant,
    last: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum FloodEvent {
    Started { service: String, key: ServiceKey },
    Ended { service: String, key: ServiceKey, lasted: Duration },
}

/// Polls for floods until the dataplane is gone.
pub(super) fn follow(dataplane: &Arc<Dataplane>) -> AbortHandle {
    let dataplane = Arc::downgrade(dataplane);
    let following = tokio::spawn(async move {
        let (mut log, mut ticks) = (FloodLog::default(), interval(INTERVAL));
        loop {
            ticks.tick().await;
            let Some(dataplane) = Weak::upgrade(&dataplane) else { return };
            let flooded = dataplane.flooded_services();
            drop(dataplane);
            write(&log.update(flooded, Instant::now()));
        }
    });
    following.abort_handle()
}

impl FloodLog {
    fn update(&mut self, flooded: Vec<(String, String, ServiceKey)>, now: Instant) -> Vec<FloodEvent> {
        let mut events = Vec::new();
        for (namespace, name, key) in flooded {
            let flood = self.0.entry(key).or_insert_with(|| {
                let service = format!("{namespace}/{name}");
                events.push(FloodEvent::Started { service: service.clone(), key });
                Flood { service, began: now, last: now }
            });
            flood.last = now;
        }
        self.0.retain(|&key, flood| {
            let is_ongoing = now - flood.last < QUIET;
            if !is_ongoing {
                let (service, lasted) = (flood.service.clone(), flood.last - flood.began);
                events.push(FloodEvent::Ended { service, key, lasted });
            }
            is_ongoing
        });
        events
    }
}

fn write(events: &[FloodEvent]) {
    for one in events.iter().take(NAMED_MAX) {
        match one {
            FloodEvent::Started { service, key } => tracing::warn!(
                service,
                port = %key,
                "SYN flood: many handshakes are not completed, so new connections are answered with SYN cookies"
            ),
            FloodEvent::Ended { service, key, lasted } => {
                tracing::info!(service, port = %key, seconds = lasted.as_secs(), "the SYN flood is over");
            }
        }
    }
    if let Some(more) = events.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        tracing::warn!(
            more,
            "SYN floods started or ended at more service ports; `tidegate services` shows the current ones"
        );
    }
}

#[cfg(test)]
mod tests {
    use tidegate_spec::Protocol;

    use super::*;

    #[test]
    fn a_flood_is_logged_once_at_its_start_and_once_at_its_end() {
        let key = ServiceKey { vip: "203.0.113.1".parse().unwrap(), protocol: Protocol::Tcp, port: 80 };
        let flooded = || vec![("shop".to_owned(), "web".to_owned(), key)];
        let (mut log, begin) = (FloodLog::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let service = || "shop/web".to_owned();
        assert_eq!(log.update(Vec::new(), at(0)), []);
        assert_eq!(log.update(flooded(), at(1)), [FloodEvent::Started { service: service(), key }]);
        assert_eq!(log.update(flooded(), at(2)), []);
        // A pause.
        assert_eq!(log.update(Vec::new(), at(20)), []);
        assert_eq!(log.update(flooded(), at(25)), []);
        assert_eq!(log.update(Vec::new(), at(54)), []);
        let over = FloodEvent::Ended { service: service(), key, lasted: Duration::from_secs(24) };
        assert_eq!(log.update(Vec::new(), at(55)), [over]);
        assert_eq!(log.update(Vec::new(), at(56)), []);
    }
}
