//! Where each field of an object was written, so that later stages can report its location.
//!
//! A source creates an [`Origin`] for each object. `reconcile`, `pools` and annotation parsing look up the location of
//! a field path such as `spec.ports[1].protocol` or `metadata.annotations[tidegate.dev/forwarding]`. For a path that
//! was not written (a default), the result is the location of its nearest written parent.
//!
//! Positions are stored by a 64-bit hash of the path, with 16 bytes each: 100,000 endpoints need about 20 MB. The only
//! effect of a collision is a wrong line in a message.
//!
//! Invariant: all origins compare as equal, so moving an object within its file does not change the snapshot.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::diagnostic::Location;
use crate::fnv::{self, fnv1a};

/// The locations of an object's fields. Cheap to clone; ignored by equality.
#[derive(Clone, Default)]
pub struct Origin(Option<Arc<Positions>>);

struct Positions {
    file: Arc<str>,
    /// The position of the whole object.
    root: (u32, u32),
    /// (hash of the field path, line, column), sorted by hash.
    fields: Box<[(u64, u32, u32)]>,
}

impl Origin {
    /// The origin of an object that was not read from a file.
    pub fn unknown() -> Self {
        Self(None)
    }

    /// The positions in `file`, as (line, column), of the whole object and of its fields by path.
    pub fn new<'a>(
        file: impl Into<Arc<str>>,
        root: (u32, u32),
        fields: impl IntoIterator<Item = (&'a str, (u32, u32))>,
    ) -> Self {
        let hashed = |(path, (line, column))| (path_hash(PATH_START, path), line, column);
        Self::from_hashed(file.into(), root, fields.into_iter().map(hashed).collect())
    }

    /// Like [`Self::new`], with fields identified by the [`path_hash`] of their path.
    pub(crate) fn from_hashed(file: Arc<str>, root: (u32, u32), mut fields: Vec<(u64, u32, u32)>) -> Self {
        fields.sort_unstable();
        Self(Some(Arc::new(Positions { file, root, fields: fields.into() })))
    }

    /// The file, if the object came from one.
    pub fn file(&self) -> Option<&str> {
        self.0.as_ref().map(|p| &*p.file)
    }

    /// The location of the whole object.
    pub fn location(&self) -> Option<Location> {
        self.field("")
    }

    /// The location of the value at `path`, or of the nearest parent that was written.
    ///
    /// Paths are written as in Kubernetes messages: `spec.ports[1].protocol`,
    /// `metadata.annotations[tidegate.dev/forwarding]`.
    pub fn field(&self, path: &str) -> Option<Location> {
        let positions = self.0.as_ref()?;
        let mut path = path;
        while !path.is_empty() {
            if let Ok(i) = positions.fields.binary_search_by_key(&path_hash(PATH_START, path), |f| f.0) {
                let (_, line, column) = positions.fields[i];
                return Some(Location { path: positions.file.clone(), line, column });
            }
            path = parent(path);
        }
        let (line, column) = positions.root;
        Some(Location { path: positions.file.clone(), line, column })
    }
}

/// The hash of the empty path.
pub const PATH_START: u64 = fnv::START;

/// Continues the hash of a path with `more`.
pub fn path_hash(so_far: u64, more: &str) -> u64 {
    fnv1a(so_far, more.bytes())
}

/// `a.b[c.d/e]` -> `a.b` -> `a` -> ``. A key in brackets may contain dots.
fn parent(path: &str) -> &str {
    let cut = if path.ends_with(']') { path.rfind('[') } else { path.rfind('.') };
    &path[..cut.unwrap_or(0)]
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origin {}

impl PartialOrd for Origin {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Origin {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Hash for Origin {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location() {
            Some(location) => write!(f, "Origin({location})"),
            None => f.write_str("Origin(unknown)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        let annotation = "metadata.annotations[tidegate.dev/forwarding]";
        Origin::new("a.yaml", (1, 1), [("spec", (5, 3)), ("spec.ports[1]", (9, 7)), (annotation, (4, 31))])
    }

    #[test]
    fn a_field_that_was_not_written_falls_back_to_its_nearest_parent() {
        let line = |p| origin().field(p).expect("read from a file").line;
        assert_eq!(line("spec.ports[1].protocol"), 9);
        assert_eq!(line("spec.ports[0].protocol"), 5);
        assert_eq!(line("status"), 1);
        assert_eq!(line("metadata.annotations[tidegate.dev/forwarding]"), 4);
        assert_eq!(line("metadata.annotations[a.b/c]"), 1);
    }

    #[test]
    fn origins_take_no_part_in_equality() {
        assert_eq!(origin(), Origin::unknown());
        assert_eq!(Origin::unknown().field("spec"), None);
    }
}
