//! Programs that work beside the gateway: BIRD, keepalived and HAProxy.

use tidegate_model::config::Layer2Mode;

use super::subject::Subject;
use crate::finding::Finding;

/// A program that the gateway works with.
struct Program<'a> {
    /// Its path or name.
    program: &'a str,
    /// How it prints its version.
    version: &'static str,
    package: &'static str,
    /// The oldest version with which it is tested.
    tested: (u32, u32),
    /// What needs it.
    purpose: &'static str,
    /// Whether the configuration needs it.
    is_needed: bool,
}

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let announce = &subject.config.announce;
    let bird = announce.bgp.as_ref().map(|bgp| bgp.program.to_string_lossy().into_owned());
    let programs = [
        Program {
            program: bird.as_deref().unwrap_or("bird"),
            version: "--version",
            package: "bird2",
            tested: (2, 0),
            purpose: "announce.bgp",
            is_needed: bird.is_some(),
        },
        Program {
            program: "keepalived",
            version: "--version",
            package: "keepalived",
            tested: (2, 2),
            purpose: "announce.l2.mode: vrrp",
            is_needed: announce.l2.mode == Layer2Mode::Vrrp,
        },
        Program {
            program: "haproxy",
            version: "-v",
            package: "haproxy",
            tested: (2, 6),
            purpose: "layer 7 behind the gateway",
            is_needed: false,
        },
    ];
    programs.iter().map(|one| one.check(subject)).collect()
}

impl Program<'_> {
    fn check(&self, subject: &Subject<'_>) -> Finding {
        let Self { program, package, purpose, tested: (major, minor), .. } = self;
        let install = format!("apt-get install {package}");
        let Some(printed) = subject.machine.output(program, &[self.version]) else {
            let what = format!("{program} is not installed");
            return match self.is_needed {
                true => Finding::fault("programs", what, format!("{purpose} needs it"), install),
                false => Finding::ok("programs", format!("{what}; only {purpose} would need it")),
            };
        };
        let Some(version) = version(&printed) else {
            return Finding::ok("programs", format!("{program} is installed; its version is not known"));
        };
        let shown = format!("{program} {}.{}", version.0, version.1);
        if version >= self.tested || !self.is_needed {
            return Finding::ok("programs", shown);
        }
        let why = format!("{purpose} is tested with {major}.{minor} and newer");
        Finding::warning("programs", shown, why, format!("{install} (Debian 12 or newer)"))
    }
}

/// The first number with a point in the text.
fn version(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut parts = word.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    })
}
