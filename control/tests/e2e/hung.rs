//! Stops single threads of a process. They continue when the value is dropped. A signal would stop all of them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A thread that another process has stopped with ptrace(2). When that process exits, the kernel resumes the thread.
pub(crate) struct StoppedThread {
    tracer: Child,
}

/// Seizes and interrupts a thread, waits until it has stopped, and exits with its standard input. 0x40000000 is
/// `__WALL`.
const TRACER: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
thread, seize, interrupt = int(sys.argv[1]), 0x4206, 0x4207
for request in seize, interrupt:
    if libc.ptrace(request, thread, None, None) != 0:
        sys.exit('ptrace: ' + os.strerror(ctypes.get_errno()))
os.waitpid(thread, 0x40000000)
print('stopped', flush=True)
sys.stdin.read()
";

impl StoppedThread {
    /// Stops the thread of this name.
    pub(crate) fn stop(process: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
        let thread = tasks
            .map(|task| task.expect("a thread").path())
            .find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name))
            .unwrap_or_else(|| panic!("there is a thread {name}"));
        let thread = thread.file_name().expect("a number").to_owned();
        let mut python = Command::new("python3");
        python.args(["-c", TRACER]).arg(thread).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tracer = python.spawn().expect("python3 starts");
        let mut line = String::new();
        let out = tracer.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("the tracer talks");
        assert_eq!(line.trim(), "stopped", "the thread stops");
        Self { tracer }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        drop(self.tracer.stdin.take());
        // If it could not be ended, the thread would stay stopped, and the test would fail.
        let _ = self.tracer.wait();
    }
}
