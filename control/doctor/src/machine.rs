//! Reads the files and runs the programs of a machine, below one root.
//!
//! The root is `/`. Tests state the contents of `/proc`, `/sys`, `/etc` and `/run` in a directory, and put programs
//! into its `usr/sbin`. Nothing here decides what a value means, and nothing changes the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where administrators' programs are. The `PATH` of a user often lacks `sbin`.
const PROGRAMS: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];

/// A machine.
#[derive(Debug, Clone)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here() -> Self {
        Self::at("/")
    }

    /// The machine whose files are in this directory.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the file of this machine is.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file without spaces around it; `None` if it cannot be read.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The numbers in a file that contains a list of CPUs (`0-3,8`); `None` if there is no such file.
    pub(crate) fn cpus(&self, path: impl AsRef<Path>) -> Option<BTreeSet<u16>> {
        self.text(path).map(|text| cpu_list(&text))
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The file name of a link's target, such as the name of a driver.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The path of a program: a path, or a name that is searched for.
    pub(crate) fn program(&self, name: &str) -> Option<PathBuf> {
        let places: Vec<PathBuf> = match name.contains('/') {
            true => vec![self.path(name)],
            false => PROGRAMS.iter().map(|directory| self.path(directory).join(name)).collect(),
        };
        places.into_iter().find(|place| place.is_file())
    }

    /// Everything that a program prints; `None` if it cannot be started.
    pub(crate) fn output(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(self.program(program)?);
        let output = command.args(arguments).stdin(Stdio::null()).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// The value of a line `NAME:   VALUE` of a file of /proc.
    pub(crate) fn field(&self, path: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.text(path)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    }
}

/// The numbers of a list of CPUs as the kernel writes it. Other words, such as `(null)`, are no numbers.
pub(crate) fn cpu_list(text: &str) -> BTreeSet<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The list of CPUs as the kernel accepts it: `1,2,5`.
pub(crate) fn show_cpus<'a>(cpus: impl IntoIterator<Item = &'a u16>) -> String {
    let numbers: Vec<String> = cpus.into_iter().map(ToString::to_string).collect();
    numbers.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        for (text, cpus) in
            [("0-2,8", vec![0, 1, 2, 8]), ("3", vec![3]), ("", vec![]), (" (null)", vec![]), ("2-1", vec![])]
        {
            assert_eq!(cpu_list(text), cpus.into_iter().collect(), "{text}");
        }
        assert_eq!(show_cpus(&cpu_list("0-2,8")), "0,1,2,8");
    }
}
