//! The requirements of a test on its API server beyond the API: fault switches of the test API server, or a cluster
//! whose state the test may lose. A test declares them first, with [`needs!`](crate::needs). If the server of this run
//! lacks one, the test is skipped, and a line on standard error names the test and the reason.
//!
//! Invariant: with the test API server, only tests of a real server are skipped, and a test uses exactly the switches
//! that it declares. The list of skipped tests on other servers therefore stays correct.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use super::mode::Mode;

/// A requirement on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Answers that fail, hang or break off; watches that end, repeat or reorder; discarded history.
    Faults,
    /// The server's record of requests.
    Requests,
    /// A server that loses its objects, or returns to an earlier copy.
    LostObjects,
    /// A server that gets another certificate authority.
    NewAuthority,
    /// Stored objects that a current server refuses.
    PastValidation,
    /// A server that is started with options of the test API server.
    ServerOptions,
    /// A namespace controller, which empties deleted namespaces.
    NamespaceController,
    /// A cluster without nodes, so installed Pods do not run.
    NoNodes,
    /// This minor version of Kubernetes, or a newer one.
    Version(u32),
    /// The code of Kubernetes: its validation, types and limits, of which the test API server has a part.
    RealServer,
    /// A real server whose history is discarded and that is started again.
    DiscardedHistory,
    /// Pods, from Deployments: a control plane with its controllers, and the programs of the Pods' images.
    Pods,
}

impl Needs {
    /// Whether it is a method of [`super::Api`], which records its use.
    fn is_switch(self) -> bool {
        !matches!(
            self,
            Self::NamespaceController | Self::NoNodes | Self::Pods | Self::RealServer | Self::Version(_)
        )
    }

    /// The reason why the server of this run does not fulfil it, if so.
    fn lack(self) -> Option<String> {
        let mode = Mode::of_this_run();
        let is_there = match (self, mode) {
            (Self::Pods | Self::RealServer | Self::DiscardedHistory, Mode::InProcess) => false,
            (_, Mode::InProcess) | (Self::RealServer, _) => true,
            (
                Self::Requests
                | Self::LostObjects
                | Self::NoNodes
                | Self::NewAuthority
                | Self::DiscardedHistory,
                Mode::Binaries(_),
            ) => true,
            (Self::NamespaceController, Mode::Binaries(binaries)) => binaries.controller_manager.is_some(),
            (Self::NamespaceController, Mode::Cluster(_)) => true,
            (Self::Pods, Mode::Binaries(binaries)) => {
                binaries.controller_manager.is_some() && programs().is_some()
            }
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
                "apply_past_validation(): stored objects that a current server refuses".into()
            }
            Self::ServerOptions => "World::with(): a server with options of the test API server".into(),
            Self::NamespaceController => {
                "the namespace controller: KUBE_CONTROLLER_MANAGER=PROGRAM starts one".into()
            }
            Self::NoNodes => "a cluster without nodes: it installs the DaemonSet".into(),
            Self::Version(minor) => format!("Kubernetes 1.{minor} or newer"),
            Self::RealServer => "admin(): a real API server (make test-apiserver)".into(),
            Self::DiscardedHistory => {
                "restart_without_history(): a real API server that a test may stop".into()
            }
            Self::Pods => "Pods, with the programs of their images (make conformance)".into(),
        }
    }
}

/// The directory of the programs of images and of the conformance suite, which `deploy/scripts/conformance.sh` builds.
pub(crate) fn programs() -> Option<PathBuf> {
    std::env::var_os("TIDEGATE_CONFORMANCE").filter(|value| !value.is_empty()).map(PathBuf::from)
}

thread_local! {
    /// The requirements that the test of this thread declared, and those that it used.
    static NAMED: RefCell<(Vec<Needs>, BTreeSet<Needs>)> = RefCell::default();
}

/// Declares the requirements of a test, and returns from the test if the API server of this run lacks one. Must be the
/// first statement of the test.
#[macro_export]
macro_rules! needs {
    ($($need:expr),+ $(,)?) => {
        fn this_test() {}
        if $crate::api::needs::is_skipped(std::any::type_name_of_val(&this_test), &[$($need),+]) {
            return;
        }
    };
}

/// Whether a test must be skipped. Prints the reason. For [`needs!`](crate::needs).
pub(crate) fn is_skipped(test: &str, needs: &[Needs]) -> bool {
    let lacks: Vec<String> = needs.iter().filter_map(|need| need.lack()).collect();
    if lacks.is_empty() {
        NAMED.with_borrow_mut(|named| *named = (needs.to_vec(), BTreeSet::new()));
        return false;
    }
    let name = test.trim_end_matches("::this_test");
    let name = name.split_once("::").map_or(name, |(_, name)| name);
    // The output of print macros is not shown for a test that passes.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: needs {}", lacks.join("; and "));
    true
}

/// Records that the test of this thread uses a switch.
pub(crate) fn used(need: Needs) {
    NAMED.with_borrow_mut(|(named, used)| {
        assert!(
            named.contains(&need),
            "this test must begin with needs!(Needs::{need:?}): it uses {}",
            need.text()
        );
        used.insert(need);
    });
}

/// Asserts at the end of a test that it used every switch that it declared.
pub(crate) fn assert_all_used() {
    let (named, used) = NAMED.take();
    for need in named.into_iter().filter(|need| need.is_switch()) {
        assert!(used.contains(&need), "this test names Needs::{need:?} and does not use it");
    }
}

#[test]
#[should_panic(expected = "must begin with needs!(Needs::Faults)")]
fn a_test_that_uses_a_switch_must_declare_it() {
    used(Needs::Faults);
}

#[test]
#[should_panic(expected = "names Needs::Requests and does not use it")]
fn a_test_that_declares_a_switch_must_use_it() {
    NAMED.set((vec![Needs::Requests], BTreeSet::new()));
    assert_all_used();
}
