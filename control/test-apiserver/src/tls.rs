//! The server's own certificate authority, a certificate for 127.0.0.1 and localhost, and certificates for clients.
//!
//! A client may connect without a certificate. A certificate of another authority is refused in the handshake.

use std::io;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// The TLS settings of the listener, and the certificate that clients must trust.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) authority_pem: String,
    pub(crate) acceptor: TlsAcceptor,
    issuer: Arc<Issuer<'static, KeyPair>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tls")
    }
}

impl Tls {
    /// Creates a new authority and a new certificate.
    pub(crate) fn generate() -> io::Result<Self> {
        let other = |error: rcgen::Error| io::Error::other(error);
        let authority_key = KeyPair::generate().map_err(other)?;
        let mut authority = CertificateParams::new(Vec::new()).map_err(other)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signed = authority.self_signed(&authority_key).map_err(other)?;
        let authority_pem = signed.pem();
        let mut roots = RootCertStore::empty();
        roots.add(signed.der().clone()).map_err(io::Error::other)?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().map_err(other)?;
        let names = vec!["127.0.0.1".to_string(), "localhost".to_string()];
        let certificate =
            CertificateParams::new(names).map_err(other)?.signed_by(&key, &issuer).map_err(other)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(io::Error::other)?;
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { authority_pem, acceptor, issuer: Arc::new(issuer) })
    }

    /// Creates a certificate for a client: DER, PEM, and its key as PEM.
    pub(crate) fn client_certificate(&self) -> io::Result<(Vec<u8>, String, String)> {
        let other = |error: rcgen::Error| io::Error::other(error);
        let key = KeyPair::generate().map_err(other)?;
        let mut wanted = CertificateParams::new(Vec::new()).map_err(other)?;
        wanted.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = wanted.signed_by(&key, &*self.issuer).map_err(other)?;
        Ok((certificate.der().to_vec(), certificate.pem(), key.serialize_pem()))
    }
}
