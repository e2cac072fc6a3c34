//! When credentials expire, read from the credentials themselves: the claims of a token (RFC 7519), or the validity of a
//! client certificate (RFC 5280).
//!
//! Nothing is verified here: only the API server decides whether credentials are valid.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use kube::config::AuthInfo;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// A token needs attention when it expires within this time.
const SOON: SignedDuration = SignedDuration::from_hours(24);
/// A client certificate needs attention when it expires within this time: usually a person renews it.
const SOON_CERTIFICATE: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Or when only this part of their lifetime is left, if that is later: a kubelet renews a token after 80 % of it.
const PART_LEFT: i64 = 10;
/// The maximum length of a token file or a certificate file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The kinds of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Token,
    ClientCertificate,
    /// Those of a plugin, which returned the time.
    OfPlugin,
}

/// When credentials expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) kind: Kind,
    pub(super) expires: Timestamp,
    /// From when on an operator should look after it.
    pub(super) attention: Timestamp,
}

/// Records that the credentials for this API server need attention; `None` if they no longer do.
pub(super) fn record(due: Option<Lifetime>, server: &str) {
    tidegate_events::record(match due {
        Some(Lifetime { kind, expires, .. }) => {
            let message = match kind {
                Kind::Token => "the token for the API server expires soon, or has expired",
                Kind::ClientCertificate => {
                    "the client certificate for the API server expires soon, or has expired"
                }
                Kind::OfPlugin => {
                    "the plugin's credentials for the API server expire, and it returns no others"
                }
            };
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
    /// That of the token or of the client certificate of a user, whichever needs attention first; `None` if neither
    /// expires.
    pub(super) fn of_user(user: &AuthInfo) -> Option<Self> {
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) => Some(token.expose_secret().to_owned()),
            (None, Some(path)) => read(path).and_then(|bytes| String::from_utf8(bytes).ok()),
            (None, None) => None,
        };
        let certificate = match (&user.client_certificate_data, &user.client_certificate) {
            (Some(data), _) => STANDARD.decode(data).ok(),
            (None, Some(path)) => read(path),
            (None, None) => None,
        };
        let token = token.and_then(|token| Self::of_token(token.trim()));
        let certificate = certificate.and_then(|pem| Self::of_certificate(&pem));
        token.into_iter().chain(certificate).min_by_key(|lifetime| lifetime.attention)
    }

    fn new(kind: Kind, from: Option<i64>, to: i64, soon: SignedDuration) -> Option<Self> {
        let expires = Timestamp::from_second(to).ok()?;
        let part = from.map(|from| SignedDuration::from_secs(to.saturating_sub(from) / PART_LEFT));
        let before = part.map_or(soon, |part| part.min(soon));
        Some(Self { kind, expires, attention: expires.checked_sub(before).unwrap_or(expires) })
    }

    /// That of the first certificate of a PEM file: the others are those of its issuers.
    fn of_certificate(pem: &[u8]) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        let certificate = Certificate::from_der(&certificate).ok()?;
        let validity = certificate.tbs_certificate().validity();
        let [from, to] = [validity.not_before, validity.not_after]
            .map(|time| i64::try_from(time.to_unix_duration().as_secs()).ok());
        Self::new(Kind::ClientCertificate, from, to?, SOON_CERTIFICATE)
    }

    fn of_token(token: &str) -> Option<Self> {
        let claims = token.split('.').nth(1)?;
        let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
        let Claims { exp, iat } = serde_json::from_slice(&claims).ok()?;
        Self::new(Kind::Token, iat, exp, SOON)
    }

    /// Whether the credentials expire soon, or have expired.
    pub(super) fn needs_attention(self, now: Timestamp) -> bool {
        now >= self.attention
    }
}

/// The beginning of a file, if it can be read.
fn read(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_BYTES_MAX), &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_needs_attention_in_the_last_tenth_of_its_lifetime() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let hour = Lifetime::of_token(&token(r#"{"iat": 1000000, "exp": 1003600}"#)).expect("claims");
        assert_eq!(hour, Lifetime { kind: Kind::Token, expires: at(1_003_600), attention: at(1_003_240) });
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

    fn certificate(from: [i32; 3], to: [i32; 3]) -> String {
        let date = |[year, month, day]: [i32; 3]| date_time_ymd(year, month as u8, day as u8);
        let mut wanted = CertificateParams::new(Vec::new()).expect("no names");
        (wanted.not_before, wanted.not_after) = (date(from), date(to));
        wanted.self_signed(&KeyPair::generate().expect("a key")).expect("signed").pem()
    }

    #[test]
    fn a_client_certificate_needs_attention_a_week_before_it_expires() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let year = certificate([2026, 1, 1], [2027, 1, 1]);
        // The certificates of issuers follow it.
        let chain = year + &certificate([2020, 1, 1], [2021, 1, 1]);
        let lifetime = Lifetime::of_certificate(chain.as_bytes()).expect("a certificate");
        let expected = (Kind::ClientCertificate, at("2027-01-01T00:00:00Z"), at("2026-12-25T00:00:00Z"));
        assert_eq!((lifetime.kind, lifetime.expires, lifetime.attention), expected);
        let days = certificate([2026, 1, 1], [2026, 1, 11]);
        let lifetime = Lifetime::of_certificate(days.as_bytes()).expect("a certificate");
        assert_eq!(lifetime.attention, at("2026-01-10T00:00:00Z"), "the last tenth");
        // After 2049, times have another form.
        let far = certificate([2026, 1, 1], [2060, 1, 1]);
        let lifetime = Lifetime::of_certificate(far.as_bytes()).expect("a certificate");
        assert_eq!(lifetime.expires, at("2060-01-01T00:00:00Z"));
        for invalid in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert_eq!(Lifetime::of_certificate(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn of_several_credentials_those_that_need_attention_first_decide() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tls.crt");
        std::fs::write(&path, certificate([2026, 1, 1], [2027, 1, 1])).expect("it is written");
        let at = |second| token(&format!(r#"{{"exp": {second}}}"#));
        let user = |token: Option<String>| AuthInfo {
            token: token.map(Into::into),
            client_certificate: Some(path.display().to_string()),
            ..AuthInfo::default()
        };
        let kind = |token| Lifetime::of_user(&user(token)).map(|lifetime| lifetime.kind);
        assert_eq!(kind(None), Some(Kind::ClientCertificate));
        assert_eq!(kind(Some(at(1_767_225_600))), Some(Kind::Token), "a year earlier");
        assert_eq!(kind(Some(at(4_102_444_800_i64))), Some(Kind::ClientCertificate), "decades later");
        assert_eq!(kind(Some("opaque".to_owned())), Some(Kind::ClientCertificate));
        let data = STANDARD.encode(certificate([2026, 1, 1], [2060, 1, 1]));
        let with_data = AuthInfo { client_certificate_data: Some(data), ..user(None) };
        let expires = Lifetime::of_user(&with_data).map(|lifetime| lifetime.expires.as_second());
        assert_eq!(expires, Some(2_840_140_800), "the data comes before the file");
    }
}
