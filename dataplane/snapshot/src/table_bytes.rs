//! The memory of the tables that packets read: of a snapshot, and of one that would have given numbers of service ports
//! and backends. `tidegate size` uses the latter before there is a gateway.
//!
//! Counters are those of one worker. Not included: what is for display only ([`ServiceInfo`](crate::service::ServiceInfo)), routes and next hops.
//!
//! Invariant: both are computed by the functions that size the tables.

use tidegate_select::rendezvous::{Identity, Member, Rendezvous};
use tidegate_select::selector::Selector;
use tidegate_spec::ids::BackendId;
use tidegate_wire::Addr;

use crate::Snapshot;
use crate::backend::{Backends, Endpoints};
use crate::counters::Tallies;
use crate::service::Services;

/// Bytes of a snapshot's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableBytes {
    /// The records and indices of service ports, backends and endpoints. All workers share them.
    pub records: usize,
    /// The seats, or the slots of Maglev tables, by which backends are chosen. All workers share them.
    pub selection: usize,
}

impl TableBytes {
    /// The bytes for service ports that share `backends` backends evenly, each at an endpoint of its own. The scheduler
    /// is `maglev` with tables of this many slots, or `rendezvous`.
    #[must_use]
    pub fn of(services: usize, backends: usize, maglev_slots: Option<u32>) -> Self {
        let of_each = backends.div_ceil(services.max(1));
        let selection = match maglev_slots {
            Some(table_size) => table_size as usize * size_of::<u16>() + of_each * size_of::<BackendId>(),
            None => Rendezvous::build(&members(of_each)).rendezvous.bytes(),
        };
        Self {
            records: Services::bytes_for(services)
                + Backends::bytes_for(backends)
                + Endpoints::bytes_for(backends),
            selection: services * selection,
        }
    }

    /// The bytes of the counters of one worker, with capacity for these numbers of service ports and backends.
    #[must_use]
    pub fn counters(services: usize, backends: usize) -> usize {
        Tallies::with_capacity(services, backends).written().into_iter().map(|range| range.len()).sum()
    }
}

impl Snapshot {
    /// The bytes of its tables.
    #[must_use]
    pub fn table_bytes(&self) -> TableBytes {
        TableBytes {
            records: self.services.memory_bytes()
                + self.backends.memory_bytes()
                + self.endpoints.memory_bytes(),
            selection: self.services().map(|(service, _)| selection(service.selector())).sum(),
        }
    }
}

/// The bytes by which a service port chooses. A table that Services share counts for each of them.
fn selection(selector: &Selector) -> usize {
    match selector {
        Selector::Rendezvous(seats) => seats.bytes(),
        Selector::Maglev(slots) => size_of_val(&**slots.table()) + size_of_val(slots.owners()),
        Selector::InFlux(both) => both.present.bytes() + both.former.bytes(),
        Selector::WarmUp(both) => selection(both.all()),
        Selector::RoundRobin(ring) => ring.all().count() * size_of::<BackendId>(),
        Selector::Loads(loads) => size_of_val(&*loads.members),
    }
}

/// Backends of equal weight.
fn members(count: usize) -> Vec<Member> {
    let member = |n: u32| Member {
        identity: Identity::of_port(Addr::v4((0x0a00_0000 + n).to_be_bytes()), 80, 6),
        weight: 1,
        owner: BackendId::new(n as usize, 0),
    };
    (0..u32::try_from(count).unwrap_or(u32::MAX)).map(member).collect()
}
