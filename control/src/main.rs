//! The binary `tidegate`: hands the command line to [`tidegate::cli`] and ends with its exit code.
//!
//! Nothing else lives here, so that everything can be reached by tests of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}
