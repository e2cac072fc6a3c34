//! The backends that refused or ignored new connections of one worker.
//!
//! A backend that fails several times in a row is set aside: it gets no new flows for a while. Then one new flow is the
//! trial: if the backend answers it, the backend gets new flows again, otherwise it's set aside again.
//! `pipeline/passive.rs` decides what a failure is.
//!
//! Nothing is shared: each worker counts the failures of its own flows, so workers may differ until
//! each has seen enough failures.
//!
//! Invariant: at most [`FAILING_BACKENDS_MAX`] backends are marked, and a backend that is not marked costs nothing.

use tidegate_spec::PassiveHealth;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::{BACKENDS_MAX, FAILING_BACKENDS_MAX, FAILURE_OF_SOURCE_MS, FAILURES_WITHIN_MS};
use tidegate_spec::now::Now;

#[derive(Debug)]
pub(crate) struct SetAside {
    /// The marks, by the index of the backend's id. Zeroed pages without marks are never touched, so they cost no
    /// memory.
    marks: Box<[[u32; 4]]>,
    marked: Vec<BackendId>,
    counts: SetAsideCounts,
}

/// How often backends were set aside, and how often they returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAsideCounts {
    /// A backend was set aside, for the first time or again after a trial.
    pub set_aside: u64,
    /// A backend that was set aside answered again.
    pub returned: u64,
}

/// The recent failures of a backend, and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    id: BackendId,
    state: State,
    failures: u8,
    /// A hash of the client of the last failed flow.
    source: u16,
    /// When the last failure was counted.
    counted: u32,
    /// When the next trial may start.
    until: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The backend gets new flows, but some have failed.
    Suspect = 1,
    /// The backend gets no new flow until its trial.
    Aside = 2,
    /// One new flow is the backend's trial.
    OnTrial = 3,
}

impl Mark {
    fn from_words(words: [u32; 4]) -> Option<Self> {
        let [id, rest, counted, until] = words;
        let state = match rest & 3 {
            1 => State::Suspect,
            2 => State::Aside,
            3 => State::OnTrial,
            _ => return None,
        };
        let (failures, source) = ((rest >> 8) as u8, (rest >> 16) as u16);
        Some(Self { id: BackendId::from_raw(id), state, failures, source, counted, until })
    }

    fn words(self) -> [u32; 4] {
        let rest = self.state as u32 | u32::from(self.failures) << 8 | u32::from(self.source) << 16;
        [self.id.raw(), rest, self.counted, self.until]
    }

    /// Whether the backend gets no new flow now.
    fn is_blocked(self, now: u32) -> bool {
        self.state != State::Suspect && is_before(now, self.until)
    }
}

/// Whether `time` is before `other`. Both are in wrapping milliseconds, less than 24 days apart.
fn is_before(time: u32, other: u32) -> bool {
    time.wrapping_sub(other) > u32::MAX / 2
}

impl SetAside {
    pub(crate) fn new() -> Self {
        Self {
            marks: vec![[0; 4]; BACKENDS_MAX].into_boxed_slice(),
            marked: Vec::with_capacity(FAILING_BACKENDS_MAX),
            counts: SetAsideCounts::default(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marked.is_empty()
    }

    pub(crate) fn marked(&self) -> &[BackendId] {
        &self.marked
    }

    pub(crate) fn counts(&self) -> SetAsideCounts {
        self.counts
    }

    fn mark(&self, id: BackendId) -> Option<Mark> {
        Mark::from_words(*self.marks.get(id.index())?).filter(|mark| mark.id == id)
    }

    /// Records that a backend failed for a client whose hash is `source`. `may_set_aside` returns whether the backend
    /// may be set aside now.
    pub(crate) fn failed(
        &mut self,
        id: BackendId,
        source: u16,
        rules: &PassiveHealth,
        now: Now,
        may_set_aside: impl FnOnce(&Self) -> bool,
    ) {
        let now = now.millis();
        let Some(mut mark) = self.mark(id).or_else(|| self.create(id, source, now)) else { return };
        let since = now.wrapping_sub(mark.counted);
        match mark.state {
            // The flow started before the backend was set aside.
            State::Aside if mark.is_blocked(now) => return,
            // The failed flow is the trial, or got the backend by affinity when the trial was due.
            State::Aside | State::OnTrial => self.set_aside(&mut mark, rules, now),
            State::Suspect => {
                if mark.failures > 0 && mark.source == source && since < FAILURE_OF_SOURCE_MS {
                    return;
                }
                let before = if since > FAILURES_WITHIN_MS { 0 } else { mark.failures };
                (mark.failures, mark.source, mark.counted) = (before.saturating_add(1), source, now);
                if rules.failures > 0 && mark.failures >= rules.failures {
                    // Reset the count even if the backend must stay, so that `may_set_aside` isn't
                    // called for each failure.
                    mark.failures = 0;
                    if may_set_aside(self) {
                        self.set_aside(&mut mark, rules, now);
                    }
                }
            }
        }
        self.store(mark);
    }

    /// Marks a backend for the first time; `None` if too many are marked.
    fn create(&mut self, id: BackendId, source: u16, now: u32) -> Option<Mark> {
        let before = Mark::from_words(*self.marks.get(id.index())?);
        if let Some(before) = before {
            // This mark belongs to an earlier backend with the same index.
            self.forget(before.id);
        }
        if self.marked.len() == FAILING_BACKENDS_MAX {
            return None;
        }
        self.marked.push(id);
        Some(Mark { id, state: State::Suspect, failures: 0, source, counted: now, until: now })
    }

    fn set_aside(&mut self, mark: &mut Mark, rules: &PassiveHealth, now: u32) {
        // `is_before` requires a value below 2^31.
        let aside = u32::try_from(rules.set_aside.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
        (mark.state, mark.until) = (State::Aside, now.wrapping_add(aside));
        self.counts.set_aside += 1;
    }

    fn store(&mut self, mark: Mark) {
        if let Some(words) = self.marks.get_mut(mark.id.index()) {
            *words = mark.words();
        }
    }

    /// Records that a backend has answered a new flow.
    #[cold]
    pub(crate) fn answered(&mut self, id: BackendId) {
        if let Some(mark) = self.mark(id) {
            self.counts.returned += u64::from(mark.state != State::Suspect);
            self.forget(id);
        }
    }

    pub(crate) fn forget(&mut self, id: BackendId) {
        if self.mark(id).is_some() {
            self.marks[id.index()] = [0; 4];
        }
        if let Some(at) = self.marked.iter().position(|&one| one == id) {
            self.marked.swap_remove(at);
        }
    }

    /// Whether a backend gets no new flow now.
    pub(crate) fn blocks(&self, id: BackendId, now: Now) -> bool {
        self.mark(id).is_some_and(|mark| mark.is_blocked(now.millis()))
    }

    /// Whether a backend is set aside, also while its trial is due or in progress.
    pub(crate) fn contains(&self, id: BackendId) -> bool {
        self.mark(id).is_some_and(|mark| mark.state != State::Suspect)
    }

    /// Records that a backend gets a new flow. If it was set aside, this flow is its trial, and the backend gets no
    /// other new flow until the set-aside time has passed again.
    pub(crate) fn record_new_flow(&mut self, id: BackendId, rules: &PassiveHealth, now: Now) {
        let Some(mut mark) = self.mark(id) else { return };
        if mark.state != State::Suspect && !mark.is_blocked(now.millis()) {
            let before = self.counts;
            self.set_aside(&mut mark, rules, now.millis());
            self.counts = before;
            mark.state = State::OnTrial;
            self.store(mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: usize = 7;

    fn id() -> BackendId {
        BackendId::new(ID, 0)
    }

    fn rules(failures: u8) -> PassiveHealth {
        PassiveHealth { failures, ..PassiveHealth::default() }
    }

    fn at(ms: u64) -> Now {
        Now(ms * 1_000_000)
    }

    /// A failure of the backend with another client each time.
    fn fail(aside: &mut SetAside, times: u16, failures: u8, ms: u64) {
        (0..times).for_each(|n| aside.failed(id(), n, &rules(failures), at(ms), |_| true));
    }

    #[test]
    fn a_backend_is_set_aside_after_failures_in_a_row() {
        let mut aside = SetAside::new();
        assert!(aside.is_empty());
        fail(&mut aside, 2, 3, 0);
        assert!(!aside.blocks(id(), at(0)) && !aside.contains(id()));
        aside.answered(id());
        assert!(aside.is_empty());
        fail(&mut aside, 2, 3, 0);
        assert!(!aside.blocks(id(), at(0)));
        fail(&mut aside, 3, 3, 0);
        assert!(aside.blocks(id(), at(9_999)) && aside.contains(id()));
        assert_eq!(aside.counts(), SetAsideCounts { set_aside: 1, returned: 0 });
    }

    #[test]
    fn one_client_counts_once_a_second() {
        let mut aside = SetAside::new();
        for ms in [0, 1, 999, 1_000, 1_500, 1_999] {
            aside.failed(id(), 5, &rules(3), at(ms), |_| true);
        }
        assert!(!aside.contains(id()));
        aside.failed(id(), 5, &rules(3), at(2_000), |_| true);
        assert!(aside.contains(id()));
    }

    #[test]
    fn distant_failures_are_not_in_a_row() {
        let mut aside = SetAside::new();
        for n in 0..6 {
            aside.failed(id(), n, &rules(2), at(u64::from(n) * 60_001), |_| true);
        }
        assert!(!aside.contains(id()));
    }

    #[test]
    fn one_flow_is_a_trial_when_the_time_is_over() {
        let mut aside = SetAside::new();
        fail(&mut aside, 1, 1, 0);
        assert!(aside.blocks(id(), at(9_999)));
        assert!(!aside.blocks(id(), at(10_000)));
        aside.record_new_flow(id(), &rules(1), at(10_000));
        assert!(aside.blocks(id(), at(10_001)), "others wait for the trial");
        fail(&mut aside, 1, 1, 10_500);
        assert!(aside.blocks(id(), at(20_499)) && !aside.blocks(id(), at(20_500)));
        aside.record_new_flow(id(), &rules(1), at(20_500));
        aside.answered(id());
        assert!(!aside.blocks(id(), at(20_501)) && aside.is_empty());
        assert_eq!(aside.counts(), SetAsideCounts { set_aside: 2, returned: 1 });
    }

    #[test]
    fn a_failure_after_the_time_sets_the_backend_aside_without_a_trial() {
        let mut aside = SetAside::new();
        fail(&mut aside, 1, 1, 0);
        fail(&mut aside, 1, 1, 9_999);
        assert!(!aside.blocks(id(), at(10_000)), "failures of earlier flows don't extend the time");
        fail(&mut aside, 1, 1, 10_500);
        assert!(aside.blocks(id(), at(20_499)) && !aside.blocks(id(), at(20_500)));
    }

    #[test]
    fn a_backend_that_must_stay_is_not_set_aside() {
        let mut aside = SetAside::new();
        for n in 0..20 {
            aside.failed(id(), n, &rules(3), at(0), |_| false);
        }
        assert!(!aside.contains(id()) && !aside.blocks(id(), at(0)));
        fail(&mut aside, 20, 0, 0);
        assert!(!aside.contains(id()), "0 disables setting aside");
    }

    #[test]
    fn a_backend_with_a_reused_index_has_no_failures() {
        let mut aside = SetAside::new();
        fail(&mut aside, 1, 1, 0);
        let next = BackendId::new(ID, 1);
        assert!(!aside.contains(next) && !aside.blocks(next, at(1)));
        aside.failed(next, 0, &rules(2), at(1), |_| true);
        assert!(!aside.contains(id()) && !aside.contains(next));
        assert_eq!(aside.marked(), [next]);
    }

    #[test]
    fn the_number_of_marked_backends_is_bounded() {
        let mut aside = SetAside::new();
        for n in 0..FAILING_BACKENDS_MAX + 10 {
            aside.failed(BackendId::new(n, 0), 0, &rules(1), at(0), |_| true);
        }
        assert_eq!(aside.marked().len(), FAILING_BACKENDS_MAX);
        assert!(!aside.contains(BackendId::new(FAILING_BACKENDS_MAX, 0)));
        for n in 0..FAILING_BACKENDS_MAX {
            aside.forget(BackendId::new(n, 0));
        }
        assert!(aside.is_empty());
    }
}
