//! `admin.page`: the status page for browsers.

use std::net::SocketAddr;

use super::files::Files;
use super::listen::{address, clash};
use crate::yaml::Fields;

/// The validated `admin.page` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageConfig {
    /// `listen`: address of the page. Without a token, a loopback address.
    pub listen: SocketAddr,
    /// The token in `tokenFile`, which a browser must present.
    pub token: Option<PageToken>,
}

/// The token of the status page, which is never displayed.
#[derive(Clone, PartialEq, Eq)]
pub struct PageToken(String);

impl PageToken {
    /// Whether this is the token. Takes as long for a wrong one.
    #[must_use]
    pub fn is(&self, presented: &str) -> bool {
        let differences = self.0.bytes().zip(presented.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == presented.len() && differences == 0
    }
}

impl std::fmt::Debug for PageToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageToken")
    }
}

const TOKEN_ACCEPTED: &str =
    "a file with 16 to 256 letters, digits, - and _, such as the output of `openssl rand -hex 16`";

/// `taken` are the addresses of the other listeners, with their keys.
pub(super) fn decode(
    parent: &Fields<'_>,
    files: &Files<'_>,
    taken: [(&str, Option<SocketAddr>); 2],
) -> Option<PageConfig> {
    let page = parent.section("page", |fields| {
        let (field, file) = (fields.get("listen"), fields.get("tokenFile"));
        let listen = field.as_ref().and_then(address).flatten();
        let token = file.as_ref().map(|file| {
            files.secret(file, |path, text| {
                let token = token(text);
                if token.is_none() {
                    file.error(format_args!("{} contains no token", path.display()), TOKEN_ACCEPTED);
                }
                token
            })
        });
        let (Some(field), Some(listen)) = (&field, listen) else {
            if let (None, Some(file)) = (&field, &file) {
                file.error("there is no admin.page.listen", "admin.page.listen, or no tokenFile");
            }
            return None;
        };
        for (key, other) in taken {
            if other.is_some_and(|other| clash(listen, other)) {
                field.error(format_args!("{listen} is taken by {key}"), "another address or port");
            }
        }
        if token.is_none() && !listen.ip().is_loopback() {
            field.error(
                format_args!("{listen} is not a loopback address, and there is no admin.page.tokenFile"),
                "a loopback address, or admin.page.tokenFile",
            );
        }
        Some(PageConfig { listen, token: token.flatten() })
    });
    page.flatten()
}

fn token(text: &str) -> Option<PageToken> {
    let text = text.trim();
    let is_accepted = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_token = (16..=256).contains(&text.len()) && text.chars().all(is_accepted);
    is_token.then(|| PageToken(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_the_token() {
        let page = token(" 0123456789abcdef\n").expect("a token");
        assert!(page.is("0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(!page.is(wrong), "{wrong}");
        }
        assert_eq!((token("too-short"), token("0123456789abcde f")), (None, None));
    }
}
