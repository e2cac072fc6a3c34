//! The protocol of the admin socket, for both sides: requests, answers, errors, and the client.
//!
//! It is HTTP/1.1 with JSON over a Unix socket that only its owner can open, so `curl --unix-socket` works too. The
//! daemon serves it; the commands of `tidegate-cli` use [`Client`].
//!
//! | Request | Answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/services`, `backends` | [`ServicesAnswer`], [`BackendsAnswer`] |
//! | `GET /v1/drops`, `traffic` | [`DropsAnswer`], [`TrafficAnswer`] |
//! | `GET /v1/events?service=S&object=O&since=T&after=N&latest=N` | [`EventsAnswer`] |
//! | `GET /v1/pools` | [`PoolsAnswer`] |
//! | `GET /v1/neighbors`, `routes` | [`NeighborsAnswer`], [`RoutesAnswer`] |
//! | `GET /v1/flows?service=S&backend=B&client=A&limit=N` | [`FlowsAnswer`]; [`FlowsQuery`] has the keys |
//! | `POST /v1/delete-flows?service=S&...` | [`DeletedFlowsAnswer`] |
//! | `POST /v1/watch?host=A&service=S&...` | [`WatchAnswer`]; [`WatchQuery`] has the keys |
//! | `GET /v1/watched?id=N` | [`WatchedAnswer`] |
//! | `POST /v1/unwatch?id=N` | [`UnwatchAnswer`] |
//! | `GET /v1/metrics` | Prometheus text |
//! | `GET /v1/diff?config=FILE` | [`DiffAnswer`] |
//! | `GET /v1/explain?proto=tcp&src=A:P&dst=VIP:P` | [`Explanation`](explain::Explanation) |
//! | `POST /v1/drain?target=T`, `POST /v1/undrain?target=T` | [`DrainAnswer`] |
//! | `POST /v1/drain?gateway=true`, `POST /v1/undrain?gateway=true` | [`GatewayDrainAnswer`] |
//! | `POST /v1/reload` | [`ReloadAnswer`] |
//! | `POST /v1/vrrp-check?began=NANOSECONDS` | `true`, or 503 with the reason |
//!
//! A `POST` may have `before=NANOSECONDS`, a time of `CLOCK_BOOTTIME` after which it is refused because its
//! sender no longer waits. The commands send it, so a gateway that hung does not make a change that its
//! operator saw fail.
//!
//! The field names also appear in `-o json` and `-o yaml`, so they are an interface: fields are added, not renamed.
//! Counters count since the daemon's start.
//!
//! May depend on: `tidegate-model` (names), `tidegate-events`, `tidegate-policy` (views of Services), `tidegate-spec`
//! (protocols), `tidegate-host` (the clock since boot). May not: DPDK, the dataplane, an API server.
//!
//! Invariant: an invalid request gets a 4xx answer with an [`ErrorAnswer`] that lists what is accepted.

mod announce;
mod client;
mod diff;
mod drain;
mod error;
mod events;
pub mod explain;
mod findings;
mod flow_log;
mod flow_sharing;
mod flows;
mod flows_query;
mod interfaces;
mod network;
mod pools;
pub mod query;
mod reload;
mod services;
mod status;
mod traffic;
mod watch;
mod watch_query;
mod workers;

pub use announce::{AnnounceStatus, BgpPeerStatus, BgpStatus, KernelRoutesStatus, WithheldVip};
pub use client::{Client, ClientError};
pub use diff::{DiffAnswer, PortDiff};
pub use drain::{DrainAnswer, DrainRequester, GatewayDrainAnswer, GatewayDrainState, GatewayDrainStatus};
pub use error::{AdminError, ErrorAnswer};
pub use events::{EventRow, EventsAnswer, selection as events_selection};
pub use findings::{CONFIGURATION_REFUSED, FindingView};
pub use flow_log::FlowLogStatus;
pub use flow_sharing::{FlowPeerStatus, FlowSharingStatus};
pub use flows::{DeletedFlowsAnswer, FlowRow, FlowRowKind, FlowsAnswer, WorkerFlows};
pub use flows_query::{
    BackendName, FlowOrder, FlowState, FlowsQuery, LIMIT_DEFAULT, LIMIT_MAX, Limit, ServiceName,
};
pub use interfaces::{InterfaceStatus, LinkStatus, NeighborsStatus, PortStatus, TapStatus};
pub use network::{NeighborView, NeighborViewState, NeighborsAnswer, RouteView, RoutesAnswer};
pub use pools::{PoolView, PoolsAnswer};
pub use reload::ReloadAnswer;
pub use services::{
    BackendForwarding, BackendRow, BackendView, BackendViewState, BackendWhy, BackendsAnswer, EdgeView,
    HealthState, HealthView, PortRefusal, PortView, RefusalReason, ServiceView, ServicesAnswer, VipKind,
    VipView,
};
pub use status::{ClusterStatus, RestoredStatus, SourceStatus, Status};
pub use tidegate_events::{
    Object as EventObject, ObjectKind as EventObjectKind, Selection as EventsSelection,
};
pub use tidegate_host::boot_time;
pub use traffic::{DropsAnswer, PartCount, ReasonCount, ReasonView, ServiceTraffic, TrafficAnswer};
pub use watch::{SentFrame, UnwatchAnswer, WatchAnswer, WatchedAnswer, WatchedFrame, WatchedRow};
pub use watch_query::{SNAP_DEFAULT, SNAP_MAX, Snap, VerdictName, WatchQuery};
pub use workers::{LatencyStatus, WorkerStatus};
