//! Why a forwarding state was not published, and why threads did not start.

use std::io;

use tidegate_spec::CompileError;
use tidegate_spec::ids::WorkerIndex;

/// Why a forwarding state was not published. The previous one stays in use.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The spec does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The generation doesn't exceed the published one.
    #[error("generation {given} is not newer than the published generation {published}")]
    Generation {
        /// The generation of the spec.
        given: u64,
        /// The published generation.
        published: u64,
    },
    /// The interfaces of the spec are not those of the gateway.
    #[error("the new state has {given} interfaces, but the gateway has {ports}")]
    Interfaces {
        /// The number of interfaces in the spec.
        given: usize,
        /// The number of ports.
        ports: usize,
    },
}

/// Why the threads did not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerPoolError {
    /// The first forwarding state doesn't compile.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A thread could not be created.
    #[error("cannot start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A worker could not start on its core.
    #[error("worker {worker} cannot start: {message}")]
    Worker {
        /// The worker.
        worker: WorkerIndex,
        /// The reason.
        message: String,
    },
}
