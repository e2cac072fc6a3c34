//! A certificate authority of the server's own and a certificate for 127.0.0.1, for tests of kubeconfig CAs.

use std::io;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// What a TLS listener needs, and what its clients must trust.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) authority_pem: String,
    pub(crate) acceptor: TlsAcceptor,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tls")
    }
}

impl Tls {
    /// A new authority and a new certificate.
    pub(crate) fn generate() -> io::Result<Self> {
        let other = |error: rcgen::Error| io::Error::other(error);
        let authority_key = KeyPair::generate().map_err(other)?;
        let mut authority = CertificateParams::new(Vec::new()).map_err(other)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_pem = authority.self_signed(&authority_key).map_err(other)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().map_err(other)?;
        let names = vec!["127.0.0.1".to_string(), "localhost".to_string()];
        let certificate =
            CertificateParams::new(names).map_err(other)?.signed_by(&key, &issuer).map_err(other)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(io::Error::other)?;
        Ok(Self { authority_pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}
