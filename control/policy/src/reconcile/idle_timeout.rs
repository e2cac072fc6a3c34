//! `appProtocol` of a Service port as a hint: how long a connection may be idle, unless an annotation sets it.
//!
//! The hint does not change the kind of health check. A port that speaks HTTP may answer 404 or 401 at `/`, or may
//! require the right host, so a check by HTTP would exclude endpoints that pass a check by TCP. If any answer counted
//! as a success, a check by HTTP would be no better than one by TCP. Kubernetes allows any value, and authors of
//! Services write it for other consumers.

use std::time::Duration;

use tidegate_spec::ForwardingMode;

/// Idle time of an established TCP flow. RFC 5382 REQ-5 forbids less than 2 hours 4 minutes.
const IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Idle time for protocols whose connections stay open to wait for events, often without keepalives. An idle flow
/// costs only its entry, which is evicted if a full table needs the space.
///
/// It doesn't apply with `fullnat`, where a flow whose client has vanished also occupies a SNAT port. At one such
/// client per second, all 64,512 ports towards a backend would be used up within a day.
const IDLE_WAITING: Duration = Duration::from_secs(24 * 3600);

/// The idle time of an established TCP flow of a port with this `appProtocol`, compared without regard to case.
pub(super) fn idle_timeout_tcp(app_protocol: Option<&str>, mode: ForwardingMode) -> Duration {
    const WAITING: [&str; 6] = ["kubernetes.io/ws", "kubernetes.io/wss", "ws", "wss", "amqp", "mqtt"];
    let waits = app_protocol.is_some_and(|given| WAITING.iter().any(|one| given.eq_ignore_ascii_case(one)));
    if waits && mode != ForwardingMode::FullNat { IDLE_WAITING } else { IDLE }
}
