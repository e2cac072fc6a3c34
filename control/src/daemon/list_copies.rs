//! Saves a copy of each list of `protection` on disk. If a list is invalid when the gateway starts, the gateway uses
//! the copy ([`config::load_at_start`]).

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tidegate_host::atomic_file;
use tidegate_model::config::{self, GatewayConfig, List};

/// The lists of `protection` at the start.
pub(super) struct Lists {
    /// The valid ones.
    pub(super) read: Vec<List>,
    /// The invalid files, whose copies are used.
    pub(super) copied: Vec<PathBuf>,
}

/// The copies of the lists of one gateway.
#[derive(Debug)]
pub(super) struct ListCopies {
    /// The directory of the copies; `None` if the gateway saves nothing.
    directory: Option<PathBuf>,
    /// Serialises saves, which write the same files.
    saving: Mutex<()>,
    trouble: Mutex<Option<String>>,
}

impl ListCopies {
    /// The copies of the gateway with this configuration. A reload can change neither its name nor its directory.
    pub(super) fn of(config: &GatewayConfig) -> Self {
        let directory = config.source.state_directory().map(|state| config::copies(state, &config.name));
        Self { directory, saving: Mutex::default(), trouble: Mutex::default() }
    }

    /// Saves these lists, and removes the copies of files that are not in `named`.
    pub(super) fn save(&self, lists: &[List], named: &[PathBuf]) {
        let Some(directory) = &self.directory else { return };
        let _one = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = lists
            .iter()
            .try_for_each(|list| save(&config::copy_of(directory, &list.path), &list.contents))
            .and_then(|()| {
                let named: Vec<PathBuf> = named.iter().map(|path| config::copy_of(directory, path)).collect();
                remove_others(directory, &named)
            });
        let trouble = saved.err().map(|error| {
            format!(
                "cannot save copies of the protection lists in {}: {error}; until this succeeds, a restart needs valid \
                 lists; SIGHUP retries",
                directory.display()
            )
        });
        let mut before = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trouble) = &trouble
            && before.as_ref() != Some(trouble)
        {
            tracing::warn!("{trouble}");
        }
        *before = trouble;
    }

    /// Why the latest lists are not saved.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Saves one list, unless its copy is up to date.
fn save(copy: &Path, contents: &[u8]) -> io::Result<()> {
    match fs::read(copy) {
        Ok(before) if before == contents => Ok(()),
        _ => atomic_file::replace_durably(copy, |out| out.write_all(contents)),
    }
}

fn remove_others(directory: &Path, named: &[PathBuf]) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        // Nothing has ever been saved.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if !named.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration in a separate directory, with two lists.
    fn write(at: &Path, rest: &str) -> PathBuf {
        let path = at.join("gateway.yaml");
        let text = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {{name: edge}}\n\
             dataplane:\n  cores: [0]\n  interfaces: [{{name: up, device: net_null0, addresses: [10.0.0.1/24]}}]\n\
             source: {{directory: {{path: manifests, stateDirectory: state}}}}\n\
             protection: {{deny: {{files: [deny]}}, allow: {{files: [allow]}}}}\n{rest}"
        );
        fs::write(&path, text).expect("a temporary directory");
        path
    }

    fn denied(config: &GatewayConfig, address: &str) -> bool {
        let address: std::net::IpAddr = address.parse().expect("an address");
        config.protection.sources.denies(&address.into())
    }

    #[test]
    fn a_start_but_not_a_reload_uses_the_copies_of_invalid_lists() {
        let at = tempfile::tempdir().expect("a temporary directory");
        let (deny, allow) = (at.path().join("deny"), at.path().join("allow"));
        let path = write(at.path(), "");
        fs::write(&deny, "192.0.2.0/24\n").expect("the directory");
        fs::write(&allow, "192.0.2.7\n").expect("the directory");
        let loaded = config::load_at_start(&path);
        let config = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report));
        assert!(loaded.copied.is_empty());
        let copies = ListCopies::of(&config);
        copies.save(&loaded.lists, &config.protection.files);
        assert_eq!(copies.trouble(), None);

        // An invalid line, and a missing file.
        fs::write(&deny, "192.0.2.0/24\n198.51.100.0/24\nnonsense\n").expect("the directory");
        fs::remove_file(&allow).expect("it is there");
        let refused = config::load(&path);
        assert!(refused.config.is_none() && refused.only_files_refused, "{}", refused.report);
        let started = config::load_at_start(&path);
        assert_eq!(started.copied, [deny.clone(), allow.clone()]);
        let report = started.report.to_string();
        assert!(report.contains("deny:3:1: warning: \"nonsense\" is not an address or a prefix"), "{report}");
        assert!(report.contains("allow cannot be read") && report.contains("the 1 prefixes"), "{report}");
        let config = started.config.unwrap_or_else(|| panic!("{report}"));
        assert!(denied(&config, "192.0.2.8") && !denied(&config, "192.0.2.7"));
        assert!(!denied(&config, "198.51.100.1"), "the whole list is the last valid one");
        // The copies stay, for the next start.
        copies.save(&started.lists, &config.protection.files);
        assert_eq!(config::load_at_start(&path).copied.len(), 2);

        // The copy of a file that is no longer named is removed.
        fs::write(&deny, "192.0.2.0/24\n").expect("the directory");
        copies.save(&[], std::slice::from_ref(&deny));
        let refused = config::load_at_start(&path);
        assert!(refused.config.is_none() && refused.only_files_refused, "{}", refused.report);
        let also = config::load_at_start(&write(at.path(), "pools: 5\n"));
        assert!(also.config.is_none() && !also.only_files_refused, "{}", also.report);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_reported() {
        let at = tempfile::tempdir().expect("a temporary directory");
        fs::write(at.path().join("state"), "a file").expect("the directory");
        for list in ["deny", "allow"] {
            fs::write(at.path().join(list), "").expect("the directory");
        }
        let loaded = config::load(&write(at.path(), ""));
        let config = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report));
        let copies = ListCopies::of(&config);
        copies.save(&loaded.lists, &config.protection.files);
        let trouble = copies.trouble().expect("the directory is a file");
        assert!(trouble.contains("state/lists/edge"), "{trouble}");
    }
}
