//! A Secret of type `kubernetes.io/tls`: a certificate and its private key.
//!
//! Only edges read Secrets. The texts are as written: nothing here checks that they are PEM, or that they match.
//!
//! Invariant: the private key is never part of a text that this type writes.

use std::fmt;
use std::sync::Arc;

use super::Metadata;

/// A certificate with its private key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsSecret {
    /// Name, origin.
    pub meta: Metadata,
    /// `tls.crt`: the certificate, followed by its chain.
    pub certificate: Arc<[u8]>,
    /// `tls.key`: the private key.
    pub key: Arc<[u8]>,
}

impl fmt::Debug for TlsSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSecret").field("key", &self.meta.key).finish_non_exhaustive()
    }
}
