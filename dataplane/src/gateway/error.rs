//! Why a forwarding state was not published, and why threads did not start.

use std::io;

use tidegate_core::ids::WorkerIndex;
use tidegate_core::snapshot::CompileError;

/// Why a forwarding state was not published. The last good one stays.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The spec does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Generations grow.
    #[error("generation {given} is not above the published one, {published}")]
    Generation {
        /// Of the spec.
        given: u64,
        /// The one in use.
        published: u64,
    },
    /// The spec names other interfaces than the gateway has.
    #[error("the spec has {given} interfaces, the gateway {ports}")]
    Interfaces {
        /// In the spec.
        given: usize,
        /// Ports that there are.
        ports: usize,
    },
}

/// Why the threads did not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerPoolError {
    /// The first forwarding state does not compile.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A thread could not be made.
    #[error("cannot start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A worker could not take its place.
    #[error("worker {worker} cannot start: {message}")]
    Worker {
        /// Which one.
        worker: WorkerIndex,
        /// Why.
        message: String,
    },
}
