//! Certificates with their private keys: parsed, checked, and kept while a newer version cannot be used.
//!
//! HAProxy gets a pair as PEM text that is written here from the decoded values. So nothing of a Secret is passed on
//! unread: in a command of HAProxy's socket, an empty line would end the text, and the next line would be a command.
//!
//! Invariant: no message and no `Debug` text contains a private key.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use rustls::Error;
use rustls::crypto::ring::default_provider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{ObjectKey, Objects, TlsSecret};
use tidegate_policy::edge::{Finding, Pair, Reason};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// The largest certificate with its chain, and the largest key.
const BYTES_MAX: usize = 64 << 10;
/// A certificate that expires within this time is reported.
const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A certificate and its key, which match.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// Both as PEM.
    pem: Arc<str>,
    /// The DNS names and addresses of the certificate.
    pub names: Vec<String>,
    /// When it expires.
    pub not_after: Timestamp,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("names", &self.names).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Decodes a Secret.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn of(secret: &TlsSecret) -> Result<Self, String> {
        if secret.certificate.len() > BYTES_MAX || secret.key.len() > BYTES_MAX {
            return Err(format!("tls.crt or tls.key has more than {BYTES_MAX} bytes"));
        }
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&secret.certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| "tls.crt is not PEM")?;
        let first = chain.first().ok_or("tls.crt contains no certificate")?;
        let parsed = Certificate::from_der(first).map_err(|_| "tls.crt contains no X.509 certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&secret.key)
            .map_err(|_| "tls.key contains no unencrypted private key in PEM")?;
        let signing = default_provider().key_provider.load_private_key(key.clone_key());
        // The message of this error may describe the key.
        let signing = signing.map_err(|_| {
            "tls.key is not a key of a supported kind: RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519"
        })?;
        CertifiedKey::new(chain.clone(), signing).keys_match().map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                "tls.key is not the key of the first certificate in tls.crt".to_owned()
            }
            error => format!("the certificate in tls.crt cannot be used: {error}"),
        })?;
        let mut pem = String::new();
        chain.iter().for_each(|certificate| write_pem(&mut pem, "CERTIFICATE", certificate));
        let label = match &key {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        write_pem(&mut pem, label, key.secret_der());
        let expires = parsed.tbs_certificate().validity().not_after.to_unix_duration();
        let expires = i64::try_from(expires.as_secs()).unwrap_or(i64::MAX);
        Ok(Self {
            pem: pem.into(),
            names: names(&parsed),
            not_after: Timestamp::from_second(expires).unwrap_or(Timestamp::MAX),
        })
    }

    /// Certificate, chain and private key as PEM, without an empty line.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }
}

fn write_pem(out: &mut String, label: &str, der: &[u8]) {
    let text = STANDARD.encode(der);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in text.as_bytes().chunks(64) {
        out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
}

fn names(certificate: &Certificate) -> Vec<String> {
    let names = certificate.tbs_certificate().get_extension::<SubjectAltName>().ok().flatten();
    let name = |name: GeneralName| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).ok().map(|it| std::net::Ipv4Addr::from(it).to_string());
            v4.or_else(|| Some(std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()))
        }
        _ => None,
    };
    names.map(|(_, names)| names.0.into_iter().filter_map(name).collect()).unwrap_or_default()
}

/// The pairs of all Secrets.
#[derive(Debug, Default)]
pub struct Certificates {
    /// The Secrets as they were last read.
    read: BTreeMap<ObjectKey, Arc<TlsSecret>>,
    /// The last usable pair of each.
    usable: BTreeMap<ObjectKey, Arc<KeyPair>>,
    /// Why the latest version of a Secret is not used.
    faults: BTreeMap<ObjectKey, String>,
}

impl Certificates {
    /// Reads the Secrets that changed. A Secret that cannot be used keeps its last usable pair; one that is deleted
    /// doesn't.
    pub fn update(&mut self, objects: &Objects) {
        let secrets = &objects.tls_secrets;
        self.read.retain(|key, _| secrets.contains_key(key));
        self.usable.retain(|key, _| secrets.contains_key(key));
        self.faults.retain(|key, _| secrets.contains_key(key));
        for (key, secret) in secrets {
            if self.read.get(key).is_some_and(|before| Arc::ptr_eq(before, secret) || before == secret) {
                continue;
            }
            self.read.insert(key.clone(), Arc::clone(secret));
            match KeyPair::of(secret) {
                Ok(pair) => {
                    self.faults.remove(key);
                    self.usable.insert(key.clone(), Arc::new(pair));
                }
                Err(why) => drop(self.faults.insert(key.clone(), why)),
            }
        }
    }

    /// Records that HAProxy refuses the pair of a Secret, and uses `before` again, if there is one.
    pub fn refuse(&mut self, key: &ObjectKey, why: String, before: Option<&Arc<KeyPair>>) {
        let other = before.filter(|before| self.usable.get(key) != Some(before));
        match other {
            Some(before) => drop(self.usable.insert(key.clone(), Arc::clone(before))),
            None => drop(self.usable.remove(key)),
        }
        self.faults.insert(key.clone(), why);
    }

    /// The usable pair of a Secret.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<KeyPair>> {
        self.usable.get(key)
    }

    /// Which Secrets can be used.
    #[must_use]
    pub fn pairs(&self) -> BTreeMap<ObjectKey, Pair> {
        let refused = self.faults.iter().map(|(key, why)| (key.clone(), Pair::Refused(why.clone())));
        let usable = self.usable.keys().map(|key| (key.clone(), Pair::Usable));
        // A last usable pair replaces the fault.
        refused.chain(usable).collect()
    }

    /// The Secrets whose latest version is not used although an earlier one is, and those that expire soon.
    #[must_use]
    pub fn findings(&self, now: Timestamp) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (key, pair) in &self.usable {
            let meta = &self.read[key].meta;
            if let Some(why) = self.faults.get(key) {
                let what = format!("Secret {key} cannot be used: {why}; its last usable version is served");
                let diagnostic = Diagnostic::error(what).accepting("a certificate with its private key");
                findings.push(Finding::at(meta, "data", Reason::CertificateRefused, diagnostic));
            }
            if pair.not_after < now + SOON {
                let when = if pair.not_after < now { "has expired" } else { "expires" };
                let what = format!("the certificate of Secret {key} {when} at {}", pair.not_after);
                let diagnostic = Diagnostic::warning(what).accepting("a renewed certificate");
                findings.push(Finding::at(meta, "data", Reason::CertificateExpires, diagnostic));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair as Generated, date_time_ymd};
    use tidegate_model::objects::Metadata;

    use super::*;

    fn secret(certificate: &str, key: &str) -> TlsSecret {
        let meta = Metadata::new(ObjectKey::new("shop", "a"));
        TlsSecret { meta, certificate: certificate.as_bytes().into(), key: key.as_bytes().into() }
    }

    /// A certificate of these names that expires in this year, and its key.
    fn generate(names: &[&str], expires: i32) -> (String, String) {
        let key = Generated::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_after = date_time_ymd(expires, 1, 1);
        (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
    }

    fn objects(secret: TlsSecret) -> Objects {
        let mut objects = Objects::default();
        objects.tls_secrets.insert(secret.meta.key.clone(), Arc::new(secret));
        objects
    }

    #[test]
    fn a_pair_is_rewritten_without_what_surrounds_it() {
        let (certificate, key) = generate(&["web.example", "203.0.113.1"], 2060);
        let surrounded = |text: &str| format!("before\n\nset server a/b state maint\n\n{text}\n\nafter\n");
        let pair = KeyPair::of(&secret(&surrounded(&certificate), &surrounded(&key))).expect("usable");
        assert_eq!(pair.names, ["web.example", "203.0.113.1"]);
        assert_eq!(pair.not_after.to_string(), "2060-01-01T00:00:00Z");
        let is_pem = |line: &str| {
            line.starts_with("-----") || line.chars().all(|c| c.is_ascii_alphanumeric() || "+/=".contains(c))
        };
        assert!(pair.pem().lines().all(|line| !line.is_empty() && is_pem(line)), "{}", pair.pem());
        let again = KeyPair::of(&secret(pair.pem(), pair.pem())).expect("usable");
        assert_eq!(again, pair);
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_refused_without_its_text() {
        let (certificate, key) = generate(&["web.example"], 2060);
        let (_, other) = generate(&["web.example"], 2060);
        let corrupt = key.replace('M', "N");
        let huge = " ".repeat(BYTES_MAX + 1);
        for (certificate, key, why) in [
            ("", key.as_str(), "no certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", &key, "no X.509"),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &key, "not PEM"),
            (&certificate, "", "no unencrypted private key"),
            (&certificate, &corrupt, "not a key of a supported kind"),
            (&certificate, &other, "not the key of the first certificate"),
            (&huge, &key, "more than 65536 bytes"),
        ] {
            let refused = KeyPair::of(&secret(certificate, key)).expect_err(why);
            assert!(refused.contains(why), "{refused}");
            assert!(
                key.lines().filter(|line| line.len() > 20).all(|line| !refused.contains(line)),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_last_usable_pair_stays_until_the_secret_is_deleted() {
        let (certificate, key) = generate(&["web.example"], 2060);
        let name = ObjectKey::new("shop", "a");
        let mut certificates = Certificates::default();
        certificates.update(&objects(secret(&certificate, "")));
        assert!(matches!(certificates.pairs()[&name], Pair::Refused(_)));
        certificates.update(&objects(secret(&certificate, &key)));
        assert_eq!(certificates.pairs()[&name], Pair::Usable);
        let now = Timestamp::now();
        assert_eq!(certificates.findings(now), []);
        certificates.update(&objects(secret(&certificate, "")));
        assert_eq!(certificates.pairs()[&name], Pair::Usable);
        let reasons: Vec<Reason> = certificates.findings(now).iter().map(|f| f.reason).collect();
        assert_eq!(reasons, [Reason::CertificateRefused]);
        assert!(!format!("{certificates:?}").contains("BEGIN"), "{certificates:?}");
        certificates.update(&Objects::default());
        assert!(certificates.pairs().is_empty() && certificates.get(&name).is_none());
    }

    #[test]
    fn a_certificate_is_reported_a_month_before_it_expires() {
        let (certificate, key) = generate(&["web.example"], 2060);
        let mut certificates = Certificates::default();
        certificates.update(&objects(secret(&certificate, &key)));
        let at = |time: &str| certificates.findings(time.parse().expect("a time")).len();
        assert_eq!(
            (at("2059-12-01T00:00:00Z"), at("2059-12-03T00:00:00Z"), at("2061-01-01T00:00:00Z")),
            (0, 1, 1)
        );
    }
}
