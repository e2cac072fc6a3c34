//! `scheduler: lc`, `sed` and `nq`: the backends of a service with the rule that compares their loads.
//!
//! Snapshot compilation builds the list; the pipeline keeps the loads (`schedule.rs` of `tidegate-pipeline`) and
//! compares them. A flow table counts the entries of each backend: one for a DSR flow, two for a NAT flow (one per
//! direction). An entry is active until its direction has ended the connection, and ended after that, for as long as
//! the table keeps it. So a NAT connection that one side has ended counts as half active.

use tidegate_spec::LoadRule;
use tidegate_spec::ids::BackendId;

/// The flow entries of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Entries whose direction has not ended the connection.
    pub active: u32,
    /// Entries whose direction has sent a FIN or a RST.
    pub ended: u32,
}

impl Load {
    /// Packs both numbers into one word, so that other threads read them together.
    #[inline]
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.active) << 32 | u64::from(self.ended)
    }

    /// Unpacks a word of [`Self::word`].
    #[inline]
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        Self { active: (word >> 32) as u32, ended: word as u32 }
    }

    /// The sum of both loads.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            active: self.active.saturating_add(other.active),
            ended: self.ended.saturating_add(other.ended),
        }
    }
}

/// A backend that takes new flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadMember {
    /// The backend's id, the result of a choice.
    pub owner: BackendId,
    /// Its weight, above 0.
    pub weight: u16,
}

/// The backends that take new flows, with the rule of their service.
#[derive(Debug)]
pub struct LoadSelector {
    /// How they are compared.
    pub rule: LoadRule,
    /// The backends in the order of (address, port).
    pub members: Box<[LoadMember]>,
}

/// A choice compares at most this many backends. If a service has more, the choice compares two runs of them that start
/// at random positions. That bounds the cost of a new flow, and the best of 32 or more candidates is close to the best
/// of all.
pub const LOADS_COMPARED: usize = 64;

impl LoadSelector {
    /// The backend with the lowest cost for its weight; `None` without backends. `random` selects the first backend to
    /// compare. Of equal backends the first one wins; because of the random start, workers and gateways don't all
    /// choose the same.
    #[inline]
    pub fn least(&self, random: u64, unit: u32, load: impl Fn(BackendId) -> Load) -> Option<BackendId> {
        let count = self.members.len();
        let run = count.min(LOADS_COMPARED);
        let runs = if count <= LOADS_COMPARED { 1 } else { 2 };
        let mut best: Option<(u64, u64, BackendId)> = None;
        for nth in 0..runs {
            let half = (random >> (32 * nth)) as u32;
            // Below `count`.
            let first = ((u64::from(half) * count as u64) >> 32) as usize;
            let (wrapped, straight) = self.members.split_at(first);
            for member in straight.iter().chain(wrapped).take(run / runs) {
                let cost = cost(self.rule, load(member.owner), unit);
                let weight = u64::from(member.weight.max(1));
                if best.is_none_or(|(least, of, _)| cost * of < least * weight) {
                    best = Some((cost, weight, member.owner));
                }
            }
        }
        best.map(|(.., owner)| owner)
    }
}

/// The cost of a backend with this load, before it is divided by its weight. `unit` is the number of entries of one
/// flow.
#[inline]
fn cost(rule: LoadRule, load: Load, unit: u32) -> u64 {
    let active = u64::from(load.active);
    match rule {
        LoadRule::LeastConnections => 256 * active + u64::from(load.ended),
        LoadRule::NeverQueue if active == 0 => 0,
        LoadRule::ShortestDelay | LoadRule::NeverQueue => active + u64::from(unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(rule: LoadRule, weights: &[u16]) -> LoadSelector {
        let member = |(n, &weight)| LoadMember { owner: BackendId::new(n, 0), weight };
        LoadSelector { rule, members: weights.iter().enumerate().map(member).collect() }
    }

    fn least(rule: LoadRule, weights: &[u16], loads: &[(u32, u32)]) -> usize {
        let load = |id: BackendId| Load { active: loads[id.index()].0, ended: loads[id.index()].1 };
        loaded(rule, weights).least(0, 1, load).expect("there are backends").index()
    }

    #[test]
    fn lc_divides_256_active_and_1_ended_by_the_weight() {
        use LoadRule::LeastConnections as Lc;
        assert_eq!(least(Lc, &[1, 1], &[(3, 0), (2, 200)]), 1);
        assert_eq!(least(Lc, &[1, 1], &[(3, 0), (2, 300)]), 0);
        assert_eq!(least(Lc, &[3, 1], &[(5, 0), (2, 0)]), 0);
        assert_eq!(least(Lc, &[3, 1], &[(7, 0), (2, 0)]), 1);
    }

    #[test]
    fn sed_counts_the_new_connection_and_nq_takes_an_idle_backend_first() {
        use LoadRule::{NeverQueue, ShortestDelay};
        // 2 / 3 against 1 / 1.
        assert_eq!(least(ShortestDelay, &[3, 1], &[(1, 9), (0, 0)]), 0);
        assert_eq!(least(NeverQueue, &[3, 1], &[(1, 9), (0, 0)]), 1);
        assert_eq!(least(NeverQueue, &[3, 1], &[(1, 0), (1, 0)]), 0);
    }

    #[test]
    fn many_backends_are_compared_in_two_runs_of_a_bounded_number() {
        let many = loaded(LoadRule::LeastConnections, &vec![1; 5_000]);
        let compared = std::cell::Cell::new(0);
        let load = |id: BackendId| {
            compared.set(compared.get() + 1);
            Load { active: if id.index() == 3 { 0 } else { 1 }, ended: 0 }
        };
        assert_eq!(
            many.least(u64::MAX << 32, 1, load).map(BackendId::index),
            Some(3),
            "it is in the first run"
        );
        assert_eq!(compared.get(), LOADS_COMPARED);
        assert_eq!(loaded(LoadRule::LeastConnections, &[]).least(9, 1, load), None);
    }

    #[test]
    fn a_load_survives_its_word() {
        let load = Load { active: 7, ended: u32::MAX };
        assert_eq!(Load::from_word(load.word()), load);
    }
}
