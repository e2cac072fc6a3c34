//! `tidegate.dev/hash`: which part of a packet determines its backend, and the Services that can't use the annotation.
//!
//! `client` is a promise to the backends: all connections of a client reach the same backend. If the scheduler can't
//! keep it, the Service is not served, like other requests that can't be served as written. `flow` promises nothing,
//! so it is only reported where it has no effect.

use tidegate_model::config::Scheduler;
use tidegate_model::objects::Service;
use tidegate_spec::HashInput;
use tidegate_wire::Named;

use super::annotation_reader::Reader;
use super::annotations::{annotation_field, key};
use super::view::{PortRefusal, RefusalReason};

/// Checks the annotation against the scheduler and the affinity of the Service. Returns why no port is programmed, if
/// the connections of a client would be spread.
pub(super) fn check(read: &mut Reader<'_>, service: &Service, scheduler: Scheduler) -> Option<PortRefusal> {
    let hash = HashInput::named(service.meta.annotations.get(key::HASH)?.trim())?;
    let why = match scheduler {
        Scheduler::Rendezvous | Scheduler::Maglev => None,
        Scheduler::SourceHash if hash == HashInput::Client => None,
        Scheduler::SourceHash => Some("chooses by the client's address"),
        Scheduler::DestinationHash => Some("chooses by the VIP"),
        Scheduler::WeightedRoundRobin | Scheduler::Loads(_) if hash == HashInput::Flow => None,
        Scheduler::WeightedRoundRobin | Scheduler::Loads(_) => Some("does not choose by a hash"),
    };
    let why = why.map(|why| format!("scheduler {} {why}", scheduler.as_str()));
    match (why, service.session_affinity, hash) {
        (_, Some(_), HashInput::Flow) => {
            let why = "sessionAffinity: ClientIP chooses by the client's address";
            read.ignored(key::HASH, why, "the value client, no annotation, or sessionAffinity: None");
        }
        (Some(why), None, HashInput::Client) => return Some(refusal(read, &why)),
        (Some(why), ..) => {
            read.ignored(key::HASH, &why, "tidegate.dev/scheduler rendezvous or maglev, or no annotation");
        }
        (None, ..) => {}
    }
    None
}

fn refusal(read: &mut Reader<'_>, why: &str) -> PortRefusal {
    let what =
        format!("annotation {}: \"client\" cannot be guaranteed: {why}; no port is programmed", key::HASH);
    let accepted = "tidegate.dev/scheduler rendezvous, maglev or sh, or sessionAffinity: ClientIP";
    read.invalid_at(&annotation_field(key::HASH), what, accepted);
    PortRefusal::new(RefusalReason::NotProgrammed, format!("{}: client: {why}", key::HASH))
}
