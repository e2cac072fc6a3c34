//! Slow start: a backend that has just become ready takes a growing share of its flows.
//!
//! There are two selectors: one for all backends, and one for the warm ones. A flow whose owner is warming up goes to
//! that backend if a number derived from the flow's hash is below the backend's current share; otherwise to its owner
//! among the warm ones. So flows of warm backends never move, each step moves flows only to the backend that warms up,
//! and gateways at the same step choose alike. Snapshot compilation builds it.
//!
//! Invariant: a flow that a warming backend takes at one step is also taken at all later steps.

use tidegate_spec::WARM_UP_STEPS;
use tidegate_spec::ids::BackendId;
use tidegate_structures::hash::{mix, scale};

/// The selectors of a service while some of its backends warm up. `S` chooses by the hash of a flow.
#[derive(Debug)]
pub struct WarmUp<S> {
    /// All backends, by their full weights.
    all: S,
    /// Only the warm backends; at least one.
    warm: S,
    /// The backends that are still warming up, with their steps, sorted by id.
    warming: Box<[(BackendId, u8)]>,
}

/// Separates the number of a flow from all other uses of its hash.
const DOMAIN: u64 = 0x7761_726d_2075_7021;

impl<S> WarmUp<S> {
    /// Selectors for `all` backends and for those that are `warm`. The others are `warming`, at these steps.
    pub fn new(all: S, warm: S, mut warming: Vec<(BackendId, u8)>) -> Self {
        warming.sort_unstable();
        Self { all, warm, warming: warming.into() }
    }

    /// The selector for a flow with this hash, whose owner among all backends is `owner`.
    #[inline]
    #[must_use]
    pub fn selector_for(&self, hash: u64, owner: Option<BackendId>) -> &S {
        let step = owner.and_then(|owner| self.step(owner));
        if step.is_none_or(|step| takes(step, hash)) { &self.all } else { &self.warm }
    }

    /// The selector for all backends.
    #[must_use]
    pub fn all(&self) -> &S {
        &self.all
    }

    /// The selector for the warm backends.
    #[must_use]
    pub fn warm(&self) -> &S {
        &self.warm
    }

    /// The backends that are warming up, with their steps.
    #[must_use]
    pub fn steps(&self) -> &[(BackendId, u8)] {
        &self.warming
    }

    /// The step of a backend, if it is warming up.
    #[must_use]
    pub fn step(&self, backend: BackendId) -> Option<u8> {
        let at = self.warming.binary_search_by_key(&backend, |&(id, _)| id).ok()?;
        Some(self.warming[at].1)
    }
}

/// Whether a backend at this step takes a flow with this hash: `step` of [`WARM_UP_STEPS`] flows.
#[inline]
fn takes(step: u8, hash: u64) -> bool {
    scale(mix(hash ^ DOMAIN), u32::from(WARM_UP_STEPS)) < u32::from(step)
}

/// Scales weights by the warm-up steps, for schedulers that don't choose by a hash.
pub fn scaled(weights: &[(u16, Option<u8>)]) -> Vec<u16> {
    let steps = u32::from(WARM_UP_STEPS);
    let most = weights.iter().map(|&(weight, _)| u32::from(weight)).max().unwrap_or(0);
    // Large weights express a step without a factor.
    let factor = if most * steps <= u32::from(u16::MAX) { steps } else { 1 };
    let scaled = |&(weight, step): &(u16, Option<u8>)| {
        let part = u32::from(weight) * factor * step.map_or(steps, u32::from) / steps;
        u16::try_from(part.max(1)).unwrap_or(u16::MAX)
    };
    weights.iter().map(scaled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_takes_its_share_and_keeps_the_flows_of_earlier_steps() {
        for step in 1..WARM_UP_STEPS {
            let taken: Vec<u64> = (0..100_000).map(mix).filter(|&hash| takes(step, hash)).collect();
            let expected = 100_000 / usize::from(WARM_UP_STEPS) * usize::from(step);
            assert!(taken.len().abs_diff(expected) < 1_000, "{step}: {}", taken.len());
            assert!(taken.iter().all(|&hash| takes(step + 1, hash)), "{step}");
        }
    }

    #[test]
    fn scaled_weights_are_in_proportion_and_never_0() {
        assert_eq!(scaled(&[(1, None), (1, Some(3)), (2, Some(9))]), [10, 3, 18]);
        assert_eq!(scaled(&[(60_000, None), (60_000, Some(1)), (1, Some(1))]), [60_000, 6_000, 1]);
        assert_eq!(scaled(&[(6_553, None), (6_553, Some(5))]), [65_530, 32_765]);
    }
}
