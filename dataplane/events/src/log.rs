//! The log line of an event: its message, and everything else as fields.

use tracing::Value as Recorded;

use super::event::{Event, Field, ObjectKind, Value};
use super::reason::Level;

/// Logs the event. `suppressed`: how many lines of its namespace were suppressed since the last one.
pub(crate) fn write(event: &Event, suppressed: Option<u64>) {
    macro_rules! line {
        ($level:ident, $($object:ident: $kind:ident,)+ ; $($name:ident: $field:ident,)+) => {
            tracing::$level!(
                event = event.reason.as_str(),
                service = event.service.as_deref(),
                $($object = object(event, ObjectKind::$kind),)+
                $($name = field(event, Field::$field),)+
                suppressed,
                "{}",
                event.message
            )
        };
    }
    macro_rules! lines {
        ($($parts:tt)+) => {
            match event.level() {
                Level::Info => line!(info, $($parts)+),
                Level::Warning => line!(warn, $($parts)+),
                Level::Error => line!(error, $($parts)+),
            }
        };
    }
    lines!(
        backend: Backend, vip: Vip, group: Group, interface: Interface, peer: Peer, target: Target, gateway: Gateway,
        source: Source, ;
        reason: Reason, changed: Changed, state: State, vips: Vips, pool: Pool, port: Port, left: Left, backends: Backends,
        workers: Workers, asn: Asn, tap: Tap, by: By, flows: Flows, restored: Restored, not_restored: NotRestored,
        took_ms: TookMs, seconds: Seconds, at: At, error: Error,
    );
}

/// The name of the object, if it is of this kind.
fn object(event: &Event, kind: ObjectKind) -> Option<&str> {
    Some(event.object.name.as_str()).filter(|name| event.object.kind == kind && !name.is_empty())
}

fn field(event: &Event, field: Field) -> Option<&dyn Recorded> {
    event.field(field).map(|value| match value {
        Value::Number(number) => number as &dyn Recorded,
        Value::Text(text) => text as &dyn Recorded,
    })
}
