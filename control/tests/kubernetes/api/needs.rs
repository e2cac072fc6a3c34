//! What a story needs of its API server beyond the API: switches by which the test API server breaks, or a cluster whose
//! state the story may lose. A story names it first, with [`needs!`](crate::needs); where the server of this run lacks it,
//! the story is skipped, and a line on standard error says which and why.
//!
//! Invariant: with the test API server no story is skipped, and a story that names a switch uses it, and no other: the
//! list of what is skipped elsewhere cannot become wrong.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;

use super::mode::Mode;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Answers that fail, hang or break off; watches that end, repeat or reorder; forgotten history.
    Faults,
    /// The server's log of requests.
    Requests,
    /// A server that loses its objects, or goes back to a copy.
    LostObjects,
    /// A server that gets another certificate authority.
    NewAuthority,
    /// Objects in the store that the server of today refuses.
    PastValidation,
    /// A server that is started with options of the test API server.
    ServerOptions,
    /// Somebody empties namespaces that are deleted: the namespace controller.
    NamespaceController,
    /// No node runs what is installed.
    NoNodes,
    /// This minor version of Kubernetes, or a newer one.
    Version(u32),
}

impl Needs {
    /// Whether it is a method of [`super::Api`], which says that it was used.
    fn is_switch(self) -> bool {
        !matches!(self, Self::NamespaceController | Self::NoNodes | Self::Version(_))
    }

    /// What the server of this run lacks of it.
    fn lack(self) -> Option<String> {
        let mode = Mode::of_this_run();
        let is_there = match (self, mode) {
            (_, Mode::InProcess) => true,
            (Self::Requests | Self::LostObjects | Self::NoNodes, Mode::Binaries(_)) => true,
            (Self::NamespaceController, Mode::Binaries(binaries)) => binaries.controller_manager.is_some(),
            (Self::NamespaceController, Mode::Cluster(_)) => true,
            (Self::Version(minor), _) => mode.minor_version() >= minor,
            _ => false,
        };
        (!is_there).then(|| self.text())
    }

    fn text(self) -> String {
        match self {
            Self::Faults => {
                "faults(): answers that fail, hang or break off, watches that end, repeat or reorder".into()
            }
            Self::Requests => "requests(): the server's log of requests".into(),
            Self::LostObjects => "restart_empty() or restart_from(): a server that loses objects".into(),
            Self::NewAuthority => "renew_certificate(): a server that gets another authority".into(),
            Self::PastValidation => {
                "apply_past_validation(): stored objects that the server refuses today".into()
            }
            Self::ServerOptions => "World::with(): a server with options of the test API server".into(),
            Self::NamespaceController => {
                "the namespace controller: KUBE_CONTROLLER_MANAGER=PROGRAM starts one".into()
            }
            Self::NoNodes => "a cluster without nodes: it installs the DaemonSet".into(),
            Self::Version(minor) => format!("Kubernetes 1.{minor} or newer"),
        }
    }
}

thread_local! {
    /// What the story of this thread named, and what it used of that.
    static NAMED: RefCell<(Vec<Needs>, BTreeSet<Needs>)> = RefCell::default();
}

/// Names what a story needs, and returns from it where the API server of this run lacks it. Comes first in the story.
#[macro_export]
macro_rules! needs {
    ($($need:expr),+ $(,)?) => {
        fn story() {}
        if $crate::api::needs::is_skipped(std::any::type_name_of_val(&story), &[$($need),+]) {
            return;
        }
    };
}

/// Whether a story cannot run; says so where it is. For [`needs!`](crate::needs).
pub(crate) fn is_skipped(place: &str, needs: &[Needs]) -> bool {
    let lacks: Vec<String> = needs.iter().filter_map(|need| need.lack()).collect();
    if lacks.is_empty() {
        NAMED.with_borrow_mut(|named| *named = (needs.to_vec(), BTreeSet::new()));
        return false;
    }
    let name = place.trim_end_matches("::story");
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    // Not by a macro: the output of those is not shown for a test that passes.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: needs {}", lacks.join("; and "));
    true
}

/// The story of this thread uses a switch.
pub(crate) fn used(need: Needs) {
    NAMED.with_borrow_mut(|(named, used)| {
        assert!(
            named.contains(&need),
            "this story must begin with needs!(Needs::{need:?}): it uses {}",
            need.text()
        );
        used.insert(need);
    });
}

/// The story of this thread has ended: it used every switch that it named.
pub(crate) fn assert_all_used() {
    let (named, used) = NAMED.take();
    for need in named.into_iter().filter(|need| need.is_switch()) {
        assert!(used.contains(&need), "this story names Needs::{need:?} and does not use it");
    }
}

#[test]
#[should_panic(expected = "must begin with needs!(Needs::Faults)")]
fn a_story_that_uses_a_switch_must_name_it() {
    used(Needs::Faults);
}

#[test]
#[should_panic(expected = "names Needs::Requests and does not use it")]
fn a_story_that_names_a_switch_must_use_it() {
    NAMED.set((vec![Needs::Requests], BTreeSet::new()));
    assert_all_used();
}
