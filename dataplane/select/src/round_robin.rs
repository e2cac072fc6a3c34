//! `scheduler: wrr`: the order in which a worker gives new flows to the backends of a service.
//!
//! Snapshot compilation writes the order out as a ring, in which each backend has as many positions as its weight,
//! spread evenly. A worker remembers only its current position, so a choice costs the same for any number of backends
//! and any weights. All workers share the ring and start at different positions.
//!
//! Invariant: equal (identities, weights up to a common factor) give equal rings, regardless of their order.

use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::WRR_RING_MAX;

use crate::maglev::gcd;

/// The ring of the backends that take new flows.
#[derive(Debug)]
pub struct RoundRobin {
    /// Indices into `owners`, in round-robin order.
    ring: Box<[u16]>,
    owners: Box<[BackendId]>,
}

/// A ring, and the number by which weights were divided.
#[derive(Debug)]
pub struct Built {
    /// The ring.
    pub ring: RoundRobin,
    /// Above 1 if the sum of the weights exceeds [`WRR_RING_MAX`], after division by their common factor.
    pub divisor: u32,
}

impl RoundRobin {
    /// The ring of these backends, in the order of (address, port). Weights are above 0.
    ///
    /// # Panics
    /// If there are 65,536 backends or more. Snapshot compilation checks that.
    pub fn build(members: &[(BackendId, u16)]) -> Built {
        assert!(members.len() <= usize::from(u16::MAX), "positions are below 65,536");
        let common = members.iter().fold(0, |common, &(_, weight)| gcd(common, weight)).max(1);
        let sum: u64 = members.iter().map(|&(_, weight)| u64::from(weight / common)).sum();
        // Each quotient is rounded up, which adds at most one per member to the sum.
        let spare = WRR_RING_MAX.saturating_sub(members.len()).max(1) as u64;
        let divisor = if sum > WRR_RING_MAX as u64 { sum.div_ceil(spare) } else { 1 };
        let mut ring: Vec<(u64, u16)> = Vec::new();
        for (position, &(_, weight)) in (0_u16..).zip(members) {
            let weight = u64::from(weight / common).div_ceil(divisor);
            // The middle of each of `weight` equal parts of the ring.
            ring.extend((0..weight).map(|nth| (((2 * nth + 1) << 32) / (2 * weight), position)));
        }
        ring.sort_unstable();
        let ring = ring.into_iter().map(|(_, position)| position).collect();
        let owners = members.iter().map(|&(owner, _)| owner).collect();
        // The sum of weights of 65,535 members is below 2^32.
        Built { ring: Self { ring, owners }, divisor: divisor as u32 }
    }

    /// The backend at a ring position. Positions beyond the end wrap around.
    #[inline]
    #[must_use]
    pub fn owner(&self, position: u32) -> Option<BackendId> {
        let position = position.checked_rem(self.len())?;
        self.owners.get(usize::from(*self.ring.get(position as usize)?)).copied()
    }

    /// The number of positions in the ring.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        // At most `WRR_RING_MAX`.
        self.ring.len() as u32
    }

    /// Whether no backend takes new flows.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// The backends in round-robin order. For display.
    pub fn all(&self) -> impl Iterator<Item = BackendId> + '_ {
        self.ring.iter().map(|&position| self.owners[usize::from(position)])
    }

    /// The backends that take new flows.
    #[must_use]
    pub fn owners(&self) -> &[BackendId] {
        &self.owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(weights: &[u16]) -> (Vec<usize>, u32) {
        let members: Vec<_> = (0..).zip(weights).map(|(n, &weight)| (BackendId::new(n, 0), weight)).collect();
        let built = RoundRobin::build(&members);
        (built.ring.all().map(BackendId::index).collect(), built.divisor)
    }

    #[test]
    fn each_backend_has_as_many_positions_as_its_weight_and_they_are_spread() {
        assert_eq!(ring(&[1, 1, 1]), (vec![0, 1, 2], 1));
        assert_eq!(ring(&[4, 2]), (vec![0, 1, 0], 1), "a common factor has no effect");
        assert_eq!(ring(&[5, 1, 1]), (vec![0, 0, 0, 1, 2, 0, 0], 1));
        assert_eq!(ring(&[]), (vec![], 1));
        let (order, _) = ring(&[97, 3]);
        let rare: Vec<usize> = (0..100).filter(|&position| order[position] == 1).collect();
        assert!(rare.windows(2).all(|pair| (33..=34).contains(&(pair[1] - pair[0]))), "{rare:?}");
    }

    #[test]
    fn large_weights_are_divided_to_bound_the_ring_and_no_backend_is_lost() {
        let mut weights = vec![65_535; 1_000];
        weights.push(1);
        let (order, divisor) = ring(&weights);
        assert!(divisor > 1 && order.len() <= WRR_RING_MAX, "{divisor}, {}", order.len());
        assert_eq!(order.iter().filter(|&&owner| owner == 1_000).count(), 1);
        let of_first = order.iter().filter(|&&owner| owner == 0).count();
        assert_eq!(of_first, (65_535_u32.div_ceil(divisor)) as usize);
    }

    #[test]
    fn positions_beyond_the_ring_wrap_around() {
        let built = RoundRobin::build(&[(BackendId::new(7, 0), 1), (BackendId::new(8, 0), 2)]);
        let owner = |position| built.ring.owner(position).map(BackendId::index);
        assert_eq!([owner(0), owner(1), owner(2), owner(3)], [Some(8), Some(7), Some(8), Some(8)]);
        assert_eq!(RoundRobin::build(&[]).ring.owner(5), None);
    }
}
