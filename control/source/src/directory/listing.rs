//! Lists the directory: every manifest by its path, and each directory once.
//!
//! Symbolic links are followed, so that a mounted ConfigMap works. A link may lead back up the tree, and two links may
//! lead to one directory. A directory is therefore identified by device and inode, and read through the first path that
//! leads to it. Paths without links come first, then links sorted by name, so that a tree always results in the same
//! paths.
//!
//! No file is opened here.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tidegate_model::diagnostic::{Diagnostic, Location, Report};

/// The maximum number of skipped files that are reported.
const NAMED_MAX: usize = 8;

/// The maximum depth of directories below the given one.
const DEPTH_MAX: usize = 16;

/// The metadata that distinguish two states of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of the last modification, then of the last change of the inode.
    times: [i64; 4],
}

impl Signature {
    fn of(metadata: &fs::Metadata) -> Self {
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        Self { device: metadata.dev(), inode: metadata.ino(), size: metadata.size(), times }
    }

    /// When the file was last modified, to the second.
    pub(super) fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.times[0].try_into().unwrap_or(0))
    }
}

/// The type of a path with the name of a manifest.
#[derive(Debug)]
pub(super) enum Found {
    /// A file.
    File(Signature),
    /// Not a file, with a description for messages.
    NoFile(&'static str),
    /// A symbolic link to a path that does not exist.
    BrokenLink,
}

/// The result of walking the directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// All paths with the name of a manifest.
    pub(super) found: BTreeMap<PathBuf, Found>,
    /// Directories that could not be listed, and entries whose metadata could not be read.
    pub(super) unreadable: Vec<PathBuf>,
    /// The faults of these paths.
    pub(super) report: Report,
    /// Files without the name of a manifest.
    other_files: Vec<PathBuf>,
    /// The device of each directory that was read.
    pub(super) devices: BTreeMap<PathBuf, u64>,
    /// Directories read so far, by device and inode.
    seen: HashSet<(u64, u64)>,
    /// Links to directories with their depth. They are followed after everything that can be reached without them.
    links: BTreeSet<(PathBuf, usize)>,
}

impl Listing {
    /// Walks everything below `root`.
    pub(super) fn of(root: &Path) -> Self {
        let mut listing = Self::default();
        listing.directory(root, 0);
        while let Some((path, depth)) = listing.links.pop_first() {
            listing.directory(&path, depth);
        }
        listing.warn(root);
        listing
    }

    /// Warns about likely mistakes: skipped files, and a directory without manifests.
    fn warn(&mut self, root: &Path) {
        const ACCEPTED: &str = "names that end in .yaml, .yml or .json";
        for (n, path) in self.other_files.iter().take(NAMED_MAX).enumerate() {
            let what = match self.other_files.len().saturating_sub(NAMED_MAX) {
                more if more > 0 && n + 1 == NAMED_MAX => {
                    format!(
                        "the file and {more} more files are not read: they do not have the names of manifests"
                    )
                }
                _ => "the file is not read: it does not have the name of a manifest".to_owned(),
            };
            let location = Location::start_of(path.to_string_lossy().as_ref());
            self.report.push(Diagnostic::warning(what).accepting(ACCEPTED).at(location));
        }
        if self.found.is_empty() && self.unreadable.is_empty() {
            let location = Location::start_of(root.to_string_lossy().as_ref());
            let what = "the directory has no manifest, so there is no Service";
            self.report.push(Diagnostic::warning(what).accepting(ACCEPTED).at(location));
        }
    }

    fn directory(&mut self, path: &Path, depth: usize) {
        let entries = match self.entries(path) {
            Ok(Some(entries)) if depth <= DEPTH_MAX => entries,
            Ok(Some(_)) => {
                return self.fault(
                    path,
                    format!("the directory is not read: it is nested deeper than {DEPTH_MAX} directories"),
                );
            }
            Ok(None) => return,
            Err(error) => return self.fault(path, format!("the directory cannot be read: {error}")),
        };
        for path in entries {
            let hidden = path.file_name().is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
            if !hidden {
                self.entry(path, depth);
            }
        }
    }

    /// The entries of a directory sorted by name; `None` if it was read before.
    fn entries(&mut self, path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
        let metadata = fs::metadata(path)?;
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return Ok(None);
        }
        let mut entries = fs::read_dir(path)?.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
        entries.sort_unstable();
        self.devices.insert(path.to_owned(), metadata.dev());
        Ok(Some(entries))
    }

    fn entry(&mut self, path: PathBuf, depth: usize) {
        let wanted = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                if wanted {
                    self.found.insert(path.clone(), Found::NoFile("the path is a directory now"));
                }
                if path.is_symlink() {
                    self.links.insert((path, depth + 1));
                } else {
                    self.directory(&path, depth + 1);
                }
            }
            Ok(metadata) if wanted && metadata.is_file() => {
                self.found.insert(path, Found::File(Signature::of(&metadata)));
            }
            Ok(_) if wanted => {
                self.found.insert(path, Found::NoFile("the path is neither a file nor a directory now"));
            }
            Ok(metadata) if metadata.is_file() && path.extension().is_none_or(|e| e != "md") => {
                self.other_files.push(path);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The entry was removed after the listing, or is a broken symbolic link.
                if wanted && path.is_symlink() {
                    self.found.insert(path, Found::BrokenLink);
                }
            }
            Err(error) if wanted => self.faulty(&path, format!("cannot be read: {error}"), "a readable file"),
            Err(_) => {}
        }
    }

    fn fault(&mut self, path: &Path, what: String) {
        self.faulty(path, what, "a readable directory of manifests");
    }

    fn faulty(&mut self, path: &Path, what: String, accepted: &str) {
        let location = Location::start_of(path.to_string_lossy().as_ref());
        self.report.push(Diagnostic::error(what).accepting(accepted).at(location));
        self.unreadable.push(path.to_owned());
    }
}
