//! `appProtocol` of a Service port as a hint: how long a connection may be idle, where no annotation says it.
//!
//! It does not change the kind of health check. A port that speaks HTTP may answer 404 or 401 at `/`, or only requests
//! with the right host, so a check by HTTP would take endpoints out of use that a check by TCP keeps. If any answer were
//! good enough, the check would say no more than one by TCP. Kubernetes allows any value, and authors of Services write it
//! for other readers than this one.

use std::time::Duration;

use tidegate_spec::ForwardingMode;

/// Idle time of an established TCP flow: RFC 5382 REQ-5 forbids less than 2 hours 4 minutes.
const IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// The same for protocols whose connections are kept open to wait for events, often without anything that keeps them
/// alive. An idle flow costs only its entry, and makes way if a full table needs it.
///
/// Not with `fullnat`: there a flow whose client vanished also keeps a SNAT port. In a day, one such client a second would
/// use up all 64,512 ports towards a backend.
const IDLE_WAITING: Duration = Duration::from_secs(24 * 3600);

/// The idle time of an established TCP flow of a port with this `appProtocol`, compared without regard to case.
pub(super) fn idle_timeout_tcp(app_protocol: Option<&str>, mode: ForwardingMode) -> Duration {
    const WAITING: [&str; 6] = ["kubernetes.io/ws", "kubernetes.io/wss", "ws", "wss", "amqp", "mqtt"];
    let waits = app_protocol.is_some_and(|given| WAITING.iter().any(|one| given.eq_ignore_ascii_case(one)));
    if waits && mode != ForwardingMode::FullNat { IDLE_WAITING } else { IDLE }
}
