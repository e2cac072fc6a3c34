//! The demand of Services for space in the tables that they share.

use std::ops::{AddAssign, SubAssign};

use tidegate_spec::limits;

/// Numbers of service ports, backends, slots and source ranges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Service ports: (VIP, protocol, port).
    pub frontends: usize,
    /// Backends, counted on each service port.
    pub backends: usize,
    /// Slots of Maglev tables that Services request by annotation, beyond the configured tables. A slot takes two
    /// bytes, and about ten nanoseconds at each change of backends.
    pub slots: usize,
    /// Source ranges. The ports of a Service share them.
    pub ranges: usize,
}

impl Demand {
    /// The limit for all Services together: as many service ports as fit into the tables, three quarters of the
    /// backends (the rest is for removed backends that keep their flows), 256 MiB of Maglev tables beyond the
    /// configured ones, and the maximum source ranges of 32 Services.
    pub const MAX: Self = Self {
        frontends: limits::SERVICES_MAX,
        backends: limits::BACKENDS_MAX / 4 * 3,
        slots: 1 << 27,
        ranges: 32 * limits::SOURCE_RANGES_MAX,
    };

    /// The number of backends for which the tables have space if this is the limit for all Services. It includes
    /// removed backends that keep their flows.
    pub(super) fn backends_of_tables(&self) -> usize {
        self.backends.saturating_mul(4) / 3
    }

    /// Whether each value is at most the value in `max`.
    pub(super) fn fits(&self, max: &Self) -> bool {
        self.frontends <= max.frontends
            && self.backends <= max.backends
            && self.slots <= max.slots
            && self.ranges <= max.ranges
    }
}

impl AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.frontends += other.frontends;
        self.backends += other.backends;
        self.slots += other.slots;
        self.ranges += other.ranges;
    }
}

impl SubAssign for Demand {
    fn sub_assign(&mut self, other: Self) {
        self.frontends -= other.frontends;
        self.backends -= other.backends;
        self.slots -= other.slots;
        self.ranges -= other.ranges;
    }
}
