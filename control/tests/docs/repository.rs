//! The text files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories of build results and fuzz findings, and of git.
const NOT_OURS: [&str; 4] = [".git", "target", "corpus", "artifacts"];

/// A text file.
pub(crate) struct File {
    /// The path from the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// Whether the name has this extension, given without the dot.
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }
}

/// The root directory of the workspace.
pub(crate) fn root() -> PathBuf {
    let ancestors = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut roots = ancestors.filter(|directory| directory.join("docs/kubernetes.md").exists());
    roots.next().expect("the crate is inside the repository").to_owned()
}

/// All text files, sorted by path.
pub(crate) fn files() -> Vec<File> {
    let root = root();
    let mut files = Vec::new();
    collect(&root, &root, &mut files);
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 300, "the repository was read: {} files", files.len());
    files
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<File>) {
    for entry in fs::read_dir(directory).expect("a directory of the repository") {
        let entry = entry.expect("an entry");
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind of file"));
        if NOT_OURS.iter().any(|name| entry.file_name() == *name) {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, files);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root).expect("it is below the root");
            files.push(File { path: path.to_str().expect("plain names").to_owned(), text });
        }
    }
}

/// The headings of a Markdown file: the text after the `#` signs.
pub(crate) fn headings(markdown: &str) -> impl Iterator<Item = &str> {
    prose(markdown).filter_map(|(_, line)| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
    })
}

/// The lines of a Markdown file outside code blocks, with their numbers.
pub(crate) fn prose(markdown: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let lines = markdown.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}
