//! When credentials expire, read from the credentials themselves: the claims of a token (RFC 7519).
//!
//! Nothing is verified here: only the API server decides whether credentials are valid.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use kube::config::AuthInfo;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tidegate_events::{Event, Field, ObjectKind, Reason};

/// Credentials need attention when they expire within this time.
const SOON: SignedDuration = SignedDuration::from_hours(24);
/// Or when only this part of their lifetime is left, if that is later: a kubelet renews a token after 80 % of it.
const PART_LEFT: i64 = 10;
/// The maximum length of a token file, in bytes.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

/// When credentials expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) expires: Timestamp,
    /// From when on an operator should look after it.
    pub(super) attention: Timestamp,
}

/// Records that the credentials for this API server need attention; `None` if they no longer do.
pub(super) fn record(due: Option<Lifetime>, server: &str) {
    tidegate_events::record(match due {
        Some(Lifetime { expires, .. }) => {
            let message = "the credentials for the API server expire soon, or have expired";
            let event = Event::new(Reason::CredentialsExpiring, ObjectKind::Source, server, message);
            event.text(Field::At, expires.to_string())
        }
        None => {
            let message = "the credentials for the API server were renewed";
            Event::new(Reason::CredentialsRenewed, ObjectKind::Source, server, message)
        }
    });
}

/// The claims of a token that are used here.
#[derive(Deserialize)]
struct Claims {
    exp: i64,
    iat: Option<i64>,
}

impl Lifetime {
    /// That of the token of a user; `None` if there is no token, or it does not expire.
    pub(super) fn of_user(user: &AuthInfo) -> Option<Self> {
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) => token.expose_secret().to_owned(),
            (None, Some(path)) => {
                let mut text = String::new();
                let file = std::fs::File::open(path).ok()?;
                std::io::Read::read_to_string(&mut std::io::Read::take(file, TOKEN_BYTES_MAX), &mut text)
                    .ok()?;
                text
            }
            (None, None) => return None,
        };
        Self::of_token(token.trim())
    }

    fn of_token(token: &str) -> Option<Self> {
        let claims = token.split('.').nth(1)?;
        let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
        let Claims { exp, iat } = serde_json::from_slice(&claims).ok()?;
        let expires = Timestamp::from_second(exp).ok()?;
        let part = iat.map(|iat| SignedDuration::from_secs(exp.saturating_sub(iat) / PART_LEFT));
        let before = part.map_or(SOON, |part| part.min(SOON));
        Some(Self { expires, attention: expires.checked_sub(before).unwrap_or(expires) })
    }

    /// Whether the credentials expire soon, or have expired.
    pub(super) fn needs_attention(self, now: Timestamp) -> bool {
        now >= self.attention
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_needs_attention_in_the_last_tenth_of_its_lifetime() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let hour = Lifetime::of_token(&token(r#"{"iat": 1000000, "exp": 1003600}"#)).expect("claims");
        assert_eq!(hour, Lifetime { expires: at(1_003_600), attention: at(1_003_240) });
        assert!(!hour.needs_attention(at(1_003_239)) && hour.needs_attention(at(1_003_240)));
        let year = Lifetime::of_token(&token(r#"{"iat": 0, "exp": 31536000}"#)).expect("claims");
        assert_eq!(year.attention, at(31_536_000 - 86_400));
        let unknown = Lifetime::of_token(&token(r#"{"exp": 31536000}"#)).expect("claims");
        assert_eq!(unknown.attention, at(31_536_000 - 86_400));
        for opaque in
            ["", "abc", "a.b.c", &token("{}"), &token(r#"{"exp": "soon"}"#), &token(r#"{"exp": 9e99}"#)]
        {
            assert_eq!(Lifetime::of_token(opaque), None, "{opaque}");
        }
    }
}
