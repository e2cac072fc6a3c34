//! The files that a configuration names: lists of `protection`, and files with a secret.
//!
//! Other programs write these files at any time. A running gateway keeps the contents that it has read until all
//! files are valid again. A starting gateway has no such contents, so the daemon saves a copy of each valid list, and
//! a starting gateway uses the copy of a list that has a fault. `check` and a reload never use copies; they report
//! the fault.

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bounded_file::{self, FILE_BYTES_MAX};
use crate::fnv::{self, fnv1a};
use crate::yaml::{Field, Fields, Value};

/// The directory for copies in the state directory. It has a subdirectory for each gateway.
const COPIES: &str = "lists";
/// The maximum size of a file with a secret. Keys, passwords and tokens have at most a few hundred characters.
const SECRET_FILE_BYTES_MAX: u64 = 4 << 10;

/// A list that was read and has no fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Its path.
    pub path: PathBuf,
    /// Its contents.
    pub contents: Vec<u8>,
}

/// The directory with the copies of a gateway's lists.
#[must_use]
pub fn copies(state_directory: &Path, gateway: &str) -> PathBuf {
    state_directory.join(COPIES).join(gateway)
}

/// The copy of the list at `path`, in the directory for copies.
#[must_use]
pub fn copy_of(copies: &Path, path: &Path) -> PathBuf {
    // A relative path means another list in another working directory.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let hash = fnv1a(fnv::START, path.as_os_str().as_bytes().iter().copied());
    copies.join(format!("{hash:016x}"))
}

/// The files that one configuration names, while it is decoded.
pub(super) struct Files<'a> {
    /// The directory of the configuration.
    pub(super) base: &'a Path,
    /// The directory for copies, if they may be used.
    pub(super) copies: Option<PathBuf>,
    /// The lists without a fault.
    pub(super) lists: RefCell<Vec<List>>,
    /// The lists whose copies are used.
    pub(super) copied: RefCell<Vec<PathBuf>>,
    /// The number of errors about files.
    pub(super) errors: Cell<usize>,
    /// The path and the text of the configuration itself, if it is in a file.
    pub(super) own: Option<(&'a Path, &'a str)>,
}

impl<'a> Files<'a> {
    pub(super) fn new(base: &'a Path) -> Self {
        Self {
            base,
            copies: None,
            lists: RefCell::default(),
            copied: RefCell::default(),
            errors: Cell::new(0),
            own: None,
        }
    }

    /// Warns about a file with a secret that every user of this machine can read.
    pub(super) fn keep_secret(&self, field: &Field<'_>, path: &Path) {
        const OTHERS_READ: u32 = 0o004;
        if std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & OTHERS_READ != 0) {
            let path = path.display();
            let what = format_args!("every user of this machine can read the secret in {path}");
            field.warning(what, format!("a file that others cannot read: chmod o= {path}"));
        }
    }

    /// Like [`Self::keep_secret`], for a secret in the text of the configuration. A secret from the environment is
    /// not in the text.
    pub(super) fn keep_inline_secret(&self, field: &Field<'_>, secret: &str) {
        if let Some((path, text)) = self.own
            && text.contains(secret)
        {
            self.keep_secret(field, path);
        }
    }

    /// Reads a key that is given as `value` or in a `file`. Errors never repeat the text, which may be most of a key.
    pub(super) fn key<T>(
        &self,
        fields: &Fields<'_>,
        parse: impl Fn(&str) -> Option<T>,
        accepted: &str,
    ) -> Option<T> {
        let read = |field: &Field<'_>, text: &str| {
            let key = parse(text.trim());
            if key.is_none() {
                let count = text.trim().chars().count();
                field.error(format_args!("the text of {count} characters is not a key"), accepted);
            }
            key
        };
        if let Some(value) = fields.get("value") {
            let text = value.secret(accepted)?;
            self.keep_inline_secret(&value, text);
            return read(&value, text);
        }
        fields.read("file", |file| self.secret(file, |_, text| read(file, text)))
    }

    /// Reads the file with a secret that `field` names, such as a mounted Secret. `read` gets its path and its text, and
    /// reports a fault in it without repeating the text. No copy of it is kept: a gateway with an outdated key would
    /// choose other backends than its peers.
    pub(super) fn secret<T>(
        &self,
        field: &Field<'_>,
        read: impl FnOnce(&Path, &str) -> Option<T>,
    ) -> Option<T> {
        let path = self.base.join(field.not_blank("the path of a file")?);
        self.keep_secret(field, &path);
        let secret = match bounded_file::read(&path, SECRET_FILE_BYTES_MAX) {
            // Text that is not UTF-8 is not a secret, and is reported as such.
            Ok(bytes) => read(&path, &String::from_utf8_lossy(&bytes)),
            Err(error) => {
                field.error(format_args!("{} cannot be read: {error}", path.display()), error.accepted());
                None
            }
        };
        self.count(usize::from(secret.is_none()));
        secret
    }

    /// The copy of the list at `path`, if there is one and it may be used.
    pub(super) fn copy(&self, path: &Path) -> Option<Vec<u8>> {
        bounded_file::read(&copy_of(self.copies.as_deref()?, path), FILE_BYTES_MAX).ok()
    }

    pub(super) fn count(&self, errors: usize) {
        self.errors.set(self.errors.get() + errors);
    }
}

/// Whether a key is given as `value` and in a `file`, which is reported.
pub(super) fn is_given_twice(fields: &Fields<'_>) -> bool {
    let (Some(_), Some(file)) = (fields.get("value"), fields.get("file")) else { return false };
    file.error("both value and file are given", "either value or file");
    true
}

/// Reads the mapping `key`, which contains a secret, with `read`. If the secret is written in place of the mapping,
/// the error does not repeat it.
pub(super) fn secret_section<'f, T>(
    parent: &Fields<'f>,
    key: &'static str,
    read: impl FnOnce(&Fields<'f>) -> Option<T>,
) -> Option<T> {
    if let Some(field) = parent.get(key).filter(|field| !matches!(field.node.value, Value::Mapping(_))) {
        let accepted = format!("{key}: {{file: FILE}} or {key}: {{value: KEY}}");
        field.error("the value is not a mapping", accepted);
        return None;
    }
    parent.section(key, read).flatten()
}
