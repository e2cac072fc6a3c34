//! Removes secrets: from a configuration or a kubeconfig by key, and from any other text by the values found there.

use std::path::Path;

use tidegate_model::bounded_file::{self, FILE_BYTES_MAX};
use tidegate_model::yaml::{Entry, Node, Scalar, Sheet, Value, emit};

/// What stands in place of a secret.
const REMOVED: &str = "<removed>";
/// Mappings and strings that are secret, of a configuration.
const KEYS: [&str; 3] = ["key", "acceptKey", "selectionKey"];
/// Strings that are secret, of a kubeconfig.
const STRINGS: [&str; 6] =
    ["token", "password", "client-key-data", "id-token", "refresh-token", "client-secret"];
/// Files with a secret.
const FILES: [&str; 3] = ["passwordFile", "tokenFile", "client-key"];
/// Shorter texts are not searched for: they occur by chance.
const BYTES_MIN: usize = 4;

/// The secrets that were found.
#[derive(Default)]
pub(crate) struct Secrets {
    found: Vec<String>,
}

impl Secrets {
    /// The configuration without its secrets, which are kept for [`Self::remove_from`], like those of the files that it
    /// names. `None` if the file cannot be read or is not YAML: then nobody knows where its secrets are.
    pub(crate) fn configuration(&mut self, path: &Path) -> Option<String> {
        let bytes = bounded_file::read(path, FILE_BYTES_MAX).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let sheet = Sheet::new(path.to_string_lossy().as_ref());
        let documents = sheet.documents(&text);
        if sheet.errors() > 0 {
            return None;
        }
        let base = path.parent().unwrap_or(Path::new(""));
        let parts = documents.into_iter().map(|mut document| {
            self.redact(&mut document, base);
            emit::to_string(&document).ok()
        });
        Some(parts.collect::<Option<Vec<_>>>()?.join("---\n"))
    }

    fn redact(&mut self, node: &mut Node, base: &Path) {
        match &mut node.value {
            Value::Sequence(items) => items.iter_mut().for_each(|item| self.redact(item, base)),
            Value::Mapping(entries) => entries.iter_mut().for_each(|entry| self.entry(entry, base)),
            Value::Scalar(_) => {}
        }
    }

    fn entry(&mut self, Entry { key, node, .. }: &mut Entry, base: &Path) {
        let key = key.as_str();
        let file = |node: &Node| node.text().map(|path| base.join(path));
        match &mut node.value {
            Value::Mapping(entries) if KEYS.contains(&key) => {
                for Entry { key, node, .. } in entries {
                    match (key.as_str(), file(node)) {
                        ("file", Some(path)) => self.file(&path),
                        _ => self.value(node),
                    }
                }
            }
            // The variables of a credential plugin.
            Value::Sequence(variables) if key == "env" => {
                let fields = variables.iter_mut().filter_map(|variable| match &mut variable.value {
                    Value::Mapping(entries) => Some(entries),
                    _ => None,
                });
                let values = fields.flatten().filter(|entry| entry.key == "value");
                values.for_each(|entry| self.value(&mut entry.node));
            }
            _ if KEYS.contains(&key) || STRINGS.contains(&key) => self.value(node),
            _ if FILES.contains(&key) => file(node).iter().for_each(|path| self.file(path)),
            _ if key == "kubeconfig" => {
                file(node)
                    .filter(|path| path.is_file())
                    .iter()
                    .for_each(|path| drop(self.configuration(path)));
            }
            _ => self.redact(node, base),
        }
    }

    /// Removes every scalar of a value.
    fn value(&mut self, node: &mut Node) {
        match &mut node.value {
            Value::Sequence(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Mapping(entries) => entries.iter_mut().for_each(|entry| self.value(&mut entry.node)),
            Value::Scalar(scalar) => {
                let secret = std::mem::replace(scalar, Scalar::text(REMOVED));
                self.keep(secret.text);
            }
        }
    }

    fn file(&mut self, path: &Path) {
        // Each line, because a log may quote one line of a private key.
        let text = bounded_file::read(path, FILE_BYTES_MAX).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().for_each(|line| self.keep(line.trim().to_owned()));
    }

    fn keep(&mut self, secret: String) {
        if secret.len() >= BYTES_MIN && !self.found.contains(&secret) {
            self.found.push(secret);
            // The longest first: one secret may contain another.
            self.found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    /// The text without the secrets that were found.
    pub(crate) fn remove_from(&self, text: &str) -> String {
        self.found.iter().fold(text.to_owned(), |text, secret| text.replace(secret, REMOVED))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn secrets_of_a_configuration_and_of_its_files_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.yaml");
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
        write("bgp", "a-bgp-password\n");
        write("page", "the-token-of-the-page\n");
        write(
            "kubeconfig",
            "users: [{name: a, user: {token: the-token, exec: {env: [{name: A, value: variable}]}}}]\n",
        );
        write(
            "gateway.yaml",
            "# comment-secret\nannounce: {bgp: {peers: [{address: 192.0.2.1, passwordFile: bgp}]}}\n\
             flowSharing: {mode: nat, key: {value: 0011223344}, acceptKey: misplaced}\n\
             admin: {page: {tokenFile: page}}\n\
             source: {kubernetes: {kubeconfig: kubeconfig}}\n",
        );
        let mut secrets = Secrets::default();
        let text = secrets.configuration(&path).expect("it is YAML");
        assert!(
            text.contains("mode: nat") && text.contains("192.0.2.1") && text.contains("passwordFile: bgp"),
            "{text}"
        );
        for secret in ["a-bgp-password", "the-token", "variable", "0011223344", "misplaced", "comment-secret"]
        {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        let log = "page=the-token-of-the-page token=the-token password=a-bgp-password key=0011223344 acceptKey=misplaced value=variable";
        let clean = "page=<removed> token=<removed> password=<removed> key=<removed> acceptKey=<removed> value=<removed>";
        assert_eq!(secrets.remove_from(log), clean);
    }

    #[test]
    fn a_configuration_that_is_not_yaml_is_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("gateway.yaml");
        fs::write(&path, "flowSharing: {key: {value: \"00112233}}\n").expect("written");
        assert_eq!(Secrets::default().configuration(&path), None);
    }
}
