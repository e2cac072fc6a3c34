//! The Services of a snapshot that have limits, with the state that all workers share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tidegate_spec::ids::ServiceId;
use tidegate_spec::limits::{BANDWIDTH_BURST_MIN, BANDWIDTH_BURST_PER_SECOND};
use tidegate_spec::now::Now;
use tidegate_spec::verdict::Refusal;
use tidegate_spec::{ServiceLimits, ServiceSpec};

use super::bucket::{Refill, SharedBucket};

/// The limits and the share of rejected flows that packets of a service port must check: a byte of its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitFlags(u8);

impl LimitFlags {
    const NEW_FLOWS: u8 = 1;
    const BANDWIDTH: u8 = 2;
    const REJECTED: u8 = 4;

    /// The flags of a service port.
    pub(crate) fn new(spec: &ServiceSpec) -> Self {
        let of = |is: bool, flag| if is { flag } else { 0 };
        Self(
            of(spec.limits.limits_new_flows(), Self::NEW_FLOWS)
                | of(spec.limits.bandwidth.is_some(), Self::BANDWIDTH)
                | of(spec.rejected_ppm > 0, Self::REJECTED),
        )
    }

    /// Whether new flows are limited.
    #[inline(always)]
    #[must_use]
    pub fn of_new_flows(self) -> bool {
        self.0 & Self::NEW_FLOWS != 0
    }

    /// Whether a share of the new flows is rejected.
    #[inline(always)]
    #[must_use]
    pub fn rejects_new_flows(self) -> bool {
        self.0 & Self::REJECTED != 0
    }

    /// Whether packets are limited.
    #[inline(always)]
    #[must_use]
    pub fn of_bandwidth(self) -> bool {
        self.0 & Self::BANDWIDTH != 0
    }
}

/// Which limit dropped a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDrop {
    /// `max-connections`.
    Connections,
    /// `max-connection-rate`.
    ConnectionRate,
    /// `max-bandwidth`.
    Bandwidth,
}

impl LimitDrop {
    /// All limits, in the order of [`Self::index`].
    pub const ALL: [Self; 3] = [Self::Connections, Self::ConnectionRate, Self::Bandwidth];

    /// A number below 3.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The reason of the verdict.
    #[must_use]
    pub fn refusal(self) -> Refusal {
        match self {
            Self::Connections => Refusal::ServiceConnections,
            Self::ConnectionRate => Refusal::ServiceConnectionRate,
            Self::Bandwidth => Refusal::ServiceBandwidth,
        }
    }
}

/// State of one Service that workers share. Snapshots pass it on for as long as the Service has limits.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) bandwidth: [SharedBucket; 2],
    pub(super) new: SharedBucket,
    /// The sum of the flows that workers have reported.
    pub(super) connections: AtomicI64,
    pub(super) drops: [AtomicU64; LimitDrop::ALL.len()],
}

/// A Service with limits.
#[derive(Debug, Clone)]
pub struct LimitedService {
    namespace: Arc<str>,
    name: Arc<str>,
    limits: ServiceLimits,
    /// Its service ports.
    ports: Arc<[ServiceId]>,
    /// Its index in the tables of workers, fixed for as long as the shared state exists.
    pub(super) table_index: u32,
    /// Differs from the value of the Service that had `table_index` before.
    pub(super) since: u32,
    pub(super) shared: Arc<SharedState>,
}

impl LimitedService {
    /// Kubernetes namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Kubernetes name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &ServiceLimits {
        &self.limits
    }

    /// The service ports to which the limits apply together.
    #[must_use]
    pub fn ports(&self) -> &[ServiceId] {
        &self.ports
    }

    /// The current flows of all workers. Flows are counted only if there is a limit on them.
    #[must_use]
    pub fn connections(&self) -> u64 {
        u64::try_from(self.shared.connections.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// The packets that a limit has dropped since the Service got limits.
    #[must_use]
    pub fn drops(&self, by: LimitDrop) -> u64 {
        self.shared.drops[by.index()].load(Ordering::Relaxed)
    }

    /// The limit that would refuse a new flow now, if any. For display.
    #[must_use]
    pub fn refuses_new(&self, now: Now) -> Option<LimitDrop> {
        if let Some(refill) = self.rate()
            && !self.shared.new.has(refill, 1, now)
        {
            return Some(LimitDrop::ConnectionRate);
        }
        let max = self.limits.connections?;
        (self.connections() >= u64::from(max.get())).then_some(LimitDrop::Connections)
    }

    /// The token bucket of new flows, with the tokens of one second.
    pub(super) fn rate(&self) -> Option<Refill> {
        let per_second = u64::from(self.limits.connection_rate?.get());
        Some(Refill { per_second, burst: per_second })
    }

    /// The token bucket for the bytes of one direction.
    pub(super) fn bandwidth(&self) -> Option<Refill> {
        let per_second = (self.limits.bandwidth?.get() / 8).max(1);
        Some(Refill { per_second, burst: (per_second / BANDWIDTH_BURST_PER_SECOND).max(BANDWIDTH_BURST_MIN) })
    }
}

/// The Services with limits of one snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct LimitedServices {
    /// By the index of a service port's id: the position in `services` plus one, 0 for none. Empty if none has limits.
    of_port: Arc<[u32]>,
    /// In the order of namespace and name.
    services: Arc<[LimitedService]>,
}

/// A service port with limits: its id, the namespace and name of its Service, and the limits.
pub(crate) type LimitedPort<'a> = (ServiceId, (&'a str, &'a str), ServiceLimits);

impl LimitedServices {
    /// The Services of these ports. `indices` is the number of ids, `generation` is the spec's. A Service in `previous`
    /// keeps its state. If the limits of a Service's ports differ, those of the last port count.
    pub(crate) fn build<'a>(
        ports: impl Iterator<Item = LimitedPort<'a>>,
        indices: usize,
        generation: u64,
        previous: Option<&Self>,
    ) -> Self {
        let mut by_name: BTreeMap<(&str, &str), (ServiceLimits, Vec<ServiceId>)> = BTreeMap::new();
        for (id, name, limits) in ports {
            let entry = by_name.entry(name).or_default();
            entry.0 = limits;
            entry.1.push(id);
        }
        if by_name.is_empty() {
            return Self::default();
        }
        let before = |name: &(&str, &str)| {
            let services = &previous?.services;
            let at =
                services.binary_search_by_key(name, |service| (service.namespace(), service.name())).ok()?;
            services.get(at)
        };
        let mut taken: BTreeSet<u32> =
            by_name.keys().filter_map(|name| Some(before(name)?.table_index)).collect();
        let mut next = 0;
        let mut of_port = vec![0; indices];
        let services = by_name.iter().zip(1..).map(|((name, (limits, ports)), position)| {
            ports.iter().for_each(|id| of_port[id.index()] = position);
            let ports = ports.as_slice().into();
            if let Some(before) = before(name) {
                return LimitedService { limits: *limits, ports, ..before.clone() };
            }
            while !taken.insert(next) {
                next += 1;
            }
            LimitedService {
                namespace: name.0.into(),
                name: name.1.into(),
                limits: *limits,
                ports,
                table_index: next,
                // Only compared for equality, so the low bits are enough.
                since: generation as u32,
                shared: Arc::default(),
            }
        });
        let services = services.collect();
        Self { of_port: of_port.into(), services }
    }

    /// The Service with limits of a service port.
    #[inline]
    pub(crate) fn of_port(&self, id: ServiceId) -> Option<&LimitedService> {
        let position = self.of_port.get(id.index())?.checked_sub(1)?;
        self.services.get(position as usize)
    }

    pub(crate) fn all(&self) -> &[LimitedService] {
        &self.services
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(connections: u32) -> ServiceLimits {
        ServiceLimits { connections: std::num::NonZeroU32::new(connections), ..ServiceLimits::default() }
    }

    #[test]
    fn ports_of_one_service_share_its_state_and_keep_it_when_limits_change() {
        let id = |index| ServiceId::new(index, 0);
        let ports = [
            (id(0), ("a", "web"), limits(5)),
            (id(2), ("a", "web"), limits(5)),
            (id(1), ("b", "web"), limits(7)),
        ];
        let first = LimitedServices::build(ports.into_iter(), 4, 1, None);
        assert_eq!(first.all().len(), 2);
        assert_eq!(first.of_port(id(0)).map(LimitedService::ports), Some(&[id(0), id(2)][..]));
        assert!(first.of_port(id(3)).is_none() && LimitedServices::default().of_port(id(0)).is_none());
        let (state, table_index) =
            (&first.of_port(id(1)).unwrap().shared, first.of_port(id(1)).unwrap().table_index);
        // Another Service precedes it in the order of names, and the first one is removed.
        let ports = [(id(3), ("a", "api"), limits(1)), (id(1), ("b", "web"), limits(9))];
        let second = LimitedServices::build(ports.into_iter(), 4, 2, Some(&first));
        let kept = second.of_port(id(1)).unwrap();
        assert!(Arc::ptr_eq(&kept.shared, state) && kept.table_index == table_index);
        assert_eq!(kept.limits(), &limits(9));
        let new = second.of_port(id(3)).unwrap();
        assert!(new.table_index != table_index && new.since == 2);
    }
}
