//! Recent changes of weights: which backends had another weight when the window of their change began.
//!
//! With `flowTracking: on-change` a gateway tracks no flow while its owner stays the same. For a window after a change
//! it must know the former owner of each flow. That owner follows from the former weights: seats are assigned twice, by
//! the former and by the current weights, and a flow whose two owners differ is in flux. The control plane keeps this
//! history; snapshot compilation builds both sets of seats from it.
//!
//! Pure: nothing here reads a clock.
//!
//! Invariant: after a window without a change, the history is empty.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_spec::{EarlierWeight, WeightChange};

/// The recent changes of one service port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WeightHistory {
    /// The weights of the backends that take new flows.
    weights: BTreeMap<SocketAddr, u16>,
    /// The backends whose weight differs from the one at the start of their window.
    changed: BTreeMap<SocketAddr, ChangedWeight>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChangedWeight {
    /// The weight at the start of the window; 0 if the backend took no new flows.
    former: u16,
    /// The end of the window.
    until: Duration,
}

impl WeightHistory {
    /// The history that an earlier process had, at `now`. Its weights were read at time 0.
    #[must_use]
    pub fn of_earlier(seats: &[EarlierWeight], window: Duration, now: Duration) -> Self {
        let weights = seats.iter().filter(|seat| seat.weight > 0).map(|seat| (seat.backend, seat.weight));
        let changed = seats.iter().filter(|seat| seat.weight != seat.former);
        let changed = changed.map(|seat| {
            (seat.backend, ChangedWeight { former: seat.former, until: window.saturating_sub(seat.ago) })
        });
        // A window that is over must not hide a later change.
        let changed = changed.filter(|(_, one)| one.until > now);
        Self { weights: weights.collect(), changed: changed.collect() }
    }

    /// The history after a change to these weights at `now`. Flows whose owner changes are in flux until `window`
    /// later.
    ///
    /// Without a `previous` history no earlier owner is known, and nothing is in flux. A backend that changes again
    /// within its window keeps its first former weight: only flows that began under that weight may still lack an
    /// entry. If it returns to that weight, its change is dropped.
    #[must_use]
    pub fn next(
        previous: Option<&Self>,
        weights: BTreeMap<SocketAddr, u16>,
        window: Duration,
        now: Duration,
    ) -> Self {
        let Some(previous) = previous else { return Self { weights, changed: BTreeMap::new() } };
        let weight = |of: &BTreeMap<SocketAddr, u16>, at: &SocketAddr| of.get(at).copied().unwrap_or(0);
        let mut changed = previous.changed.clone();
        for backend in previous.weights.keys().chain(weights.keys()) {
            let (was, is) = (weight(&previous.weights, backend), weight(&weights, backend));
            if was != is {
                let one = changed.entry(*backend).or_insert(ChangedWeight { former: was, until: now });
                one.until = now + window;
            }
        }
        changed.retain(|backend, one| one.until > now && one.former != weight(&weights, backend));
        Self { weights, changed }
    }

    /// The backends that changed, each with its former weight, sorted.
    pub fn former_weights(&self) -> impl Iterator<Item = (SocketAddr, u16)> + '_ {
        self.changed.iter().map(|(backend, changed)| (*backend, changed.former))
    }

    /// The backends that changed, for a gateway that has not seen the changes.
    pub fn changes(&self, now: Duration) -> impl Iterator<Item = WeightChange> + '_ {
        let changes = self.changed.iter().map(move |(backend, changed)| WeightChange {
            backend: *backend,
            former: changed.former,
            remaining: changed.until.saturating_sub(now),
        });
        changes.filter(|change| !change.remaining.is_zero())
    }

    /// Imports a change that another gateway saw before this one started. It is older than all changes that this
    /// gateway knows. Its remaining window is limited to `window`.
    pub fn import(&mut self, change: &WeightChange, window: Duration, now: Duration) {
        let until = now + change.remaining.min(window);
        let known =
            self.changed.entry(change.backend).or_insert(ChangedWeight { former: change.former, until });
        (known.former, known.until) = (change.former, known.until.max(until));
        let present = self.weights.get(&change.backend).copied().unwrap_or(0);
        if known.former == present || known.until <= now {
            self.changed.remove(&change.backend);
        }
    }

    /// When the next window ends.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.changed.values().map(|changed| changed.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u8) -> SocketAddr {
        SocketAddr::new([10, 0, 0, n].into(), 80)
    }

    fn weights(list: &[(u8, u16)]) -> BTreeMap<SocketAddr, u16> {
        list.iter().map(|&(n, weight)| (at(n), weight)).collect()
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn former(history: &WeightHistory) -> Vec<(SocketAddr, u16)> {
        history.former_weights().collect()
    }

    #[test]
    fn a_changed_backend_keeps_its_former_weight_for_the_window() {
        let window = seconds(300);
        let first = WeightHistory::next(None, weights(&[(1, 1), (2, 3)]), window, seconds(0));
        assert_eq!((former(&first), first.next_deadline()), (vec![], None), "nothing is known before");
        let second = WeightHistory::next(Some(&first), weights(&[(2, 4), (3, 1)]), window, seconds(10));
        assert_eq!(former(&second), [(at(1), 1), (at(2), 3), (at(3), 0)]);
        assert_eq!(second.next_deadline(), Some(seconds(310)));
        let same = weights(&[(2, 4), (3, 1)]);
        let third = WeightHistory::next(Some(&second), same.clone(), window, seconds(309));
        assert_eq!(third, second, "only a change prolongs a window");
        let over = WeightHistory::next(Some(&third), same, window, seconds(310));
        assert_eq!((former(&over), over.next_deadline()), (vec![], None));
    }

    #[test]
    fn a_process_continues_the_windows_of_the_earlier_one() {
        let (window, now) = (seconds(100), seconds(5));
        let seat =
            |n: u8, weight, former, ago| EarlierWeight { backend: at(n), weight, former, ago: seconds(ago) };
        // Before the restart, 1 was removed and 3 added, 5 and 6 long before. During the restart 2 and 6 are removed
        // and 4 is added.
        let seats =
            [seat(1, 0, 1, 40), seat(2, 1, 1, 0), seat(3, 1, 0, 30), seat(5, 0, 1, 95), seat(6, 1, 0, 96)];
        let earlier = WeightHistory::of_earlier(&seats, window, now);
        let present = weights(&[(3, 1), (4, 1)]);
        let next = WeightHistory::next(Some(&earlier), present.clone(), window, now);
        assert_eq!(former(&next), [(at(1), 1), (at(2), 1), (at(3), 0), (at(4), 0), (at(6), 1)]);
        assert_eq!(next.next_deadline(), Some(seconds(60)));
        let over = WeightHistory::next(Some(&next), present, window, seconds(105));
        assert_eq!(former(&over), []);
    }

    #[test]
    fn a_gateway_that_has_just_started_imports_the_changes_of_another() {
        let window = seconds(100);
        let old = WeightHistory::next(None, weights(&[(1, 1), (2, 1)]), window, seconds(500));
        let old = WeightHistory::next(Some(&old), weights(&[(2, 1), (3, 5)]), window, seconds(510));
        let mut new = WeightHistory::next(None, weights(&[(2, 1), (3, 5)]), window, seconds(0));
        // The new gateway sees a later change of the same backend itself.
        let now = seconds(30);
        new = WeightHistory::next(Some(&new), weights(&[(2, 1), (3, 7)]), window, now);
        old.changes(seconds(540)).for_each(|change| new.import(&change, window, now));
        assert_eq!(former(&new), [(at(1), 1), (at(3), 0)], "the change of the older gateway is older");
        assert_eq!(new.next_deadline(), Some(seconds(100)), "the change was 30 s ago");
        assert_eq!(old.changes(seconds(610)).count(), 0, "the window is over");
        // A backend that has its former weight here has not changed.
        new.import(&WeightChange { backend: at(2), former: 1, remaining: window }, window, now);
        // A window is never longer than that of the Service.
        new.import(&WeightChange { backend: at(4), former: 9, remaining: Duration::MAX }, window, now);
        assert_eq!(former(&new), [(at(1), 1), (at(3), 0), (at(4), 9)]);
        let over = WeightHistory::next(Some(&new), weights(&[(2, 1), (3, 7)]), window, seconds(130));
        assert_eq!(former(&over), []);
    }

    #[test]
    fn a_second_change_keeps_the_first_weight_and_a_return_drops_it() {
        let window = seconds(100);
        let first = WeightHistory::next(None, weights(&[(1, 1), (2, 1)]), window, seconds(0));
        let gone = WeightHistory::next(Some(&first), weights(&[(2, 1)]), window, seconds(10));
        let heavier = WeightHistory::next(Some(&gone), weights(&[(1, 7), (2, 1)]), window, seconds(60));
        assert_eq!((former(&heavier), heavier.next_deadline()), (vec![(at(1), 1)], Some(seconds(160))));
        let back = WeightHistory::next(Some(&gone), weights(&[(1, 1), (2, 1)]), window, seconds(60));
        assert_eq!(former(&back), []);
        let at_once = WeightHistory::next(Some(&first), weights(&[(2, 1)]), seconds(0), seconds(10));
        assert_eq!(former(&at_once), [], "without a window nothing is in flux");
    }
}
