//! Threads for work that must not delay anything else, such as comparisons.

use std::io;
use std::thread;

/// The nice value of the threads (`setpriority(2)`): they run when no other process needs the CPU.
const NICE: i32 = 19;

/// Starts a thread with this name and the lowest priority.
///
/// # Errors
/// If it cannot be started.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let body = move || {
        // On Linux this affects only the calling thread. If it fails, the work is done at normal priority.
        let _ = rustix::process::setpriority_process(None, NICE);
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
