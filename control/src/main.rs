//! The binary `tidegate`: sets the allocator, passes the command line to [`tidegate::cli`], and exits with its exit
//! code.
//!
//! All other code is in the library, so that tests can reach it.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// Replaces glibc's allocator, which before 2.38 does not reuse a freed block for an aligned block of the same size.
/// The tables of a snapshot are aligned to cache lines, so each publication would take new memory: 65 MB a second at
/// 100 changes a second of 10,000 Services.
#[global_allocator]
static HEAP: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}
