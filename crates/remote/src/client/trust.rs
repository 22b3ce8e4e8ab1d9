//! By what a client knows a server, and shows itself.

use crate::fingerprint::Fingerprint;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// By what a server is known.
#[derive(Clone, Debug)]
pub enum Trust {
    /// By its certificate itself; if none is known yet, none is trusted, but the client learns what it would
    /// be.
    Certificate(Option<Fingerprint>),
    /// By those who issued its certificate, which must be for the name that the client connects to.
    Issuers(Vec<CertificateDer<'static>>),
}

/// A certificate of the client's own, and the key to it.
#[derive(Debug)]
pub struct ClientCertificate {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// A file with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TrustError {
    path: PathBuf,
    reason: String,
}

impl Trust {
    /// Those in a PEM file.
    ///
    /// # Errors
    /// There is none in it.
    pub fn issuers(path: &Path) -> Result<Trust, TrustError> {
        certificates(path).map(Trust::Issuers)
    }
}

impl ClientCertificate {
    /// From PEM files, which may be the same.
    ///
    /// # Errors
    /// They don't hold a certificate and a key.
    pub fn load(certificate: &Path, key: &Path) -> Result<ClientCertificate, TrustError> {
        let failed = |error: rustls::pki_types::pem::Error| TrustError {
            path: key.to_owned(),
            reason: format!("no private key: {error}"),
        };
        let private = PrivateKeyDer::from_pem_file(key).map_err(failed)?;
        Ok(ClientCertificate { certificates: certificates(certificate)?, key: private })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let failed = |reason: String| TrustError { path: path.to_owned(), reason };
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| failed(format!("no certificate: {error}")))?;
    if found.is_empty() { Err(failed("no certificate in it".to_owned())) } else { Ok(found) }
}

/// The certificate that a server showed, if it is known by that, and what it should have shown.
#[derive(Debug)]
pub(super) struct Seen {
    expected: Option<Fingerprint>,
    distrusted: Mutex<Option<Fingerprint>>,
    provider: Arc<CryptoProvider>,
}

impl Seen {
    /// A certificate that was not trusted, and the one that would have been.
    pub(super) fn distrusted(&self) -> Option<(Fingerprint, Option<Fingerprint>)> {
        let found = *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner);
        found.map(|found| (found, self.expected))
    }
}

/// The certificate is compared as a whole: nobody else has to vouch for it, and it does not age. That the
/// server has the key is verified as always.
impl ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(certificate);
        if self.expected == Some(found) {
            return Ok(ServerCertVerified::assertion());
        }
        *self.distrusted.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // It is not offered.
        Err(rustls::PeerIncompatible::Tls12NotOfferedOrEnabled.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// How to connect to a server that is known so.
pub(super) fn config(
    trust: Trust,
    identity: Option<ClientCertificate>,
) -> Result<(ClientConfig, Arc<Seen>), rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&[&TLS13])?;
    let expected = match &trust {
        Trust::Certificate(expected) => *expected,
        Trust::Issuers(_) => None,
    };
    let seen = Arc::new(Seen { expected, distrusted: Mutex::default(), provider });
    let builder = match trust {
        Trust::Certificate(_) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&seen) as Arc<dyn ServerCertVerifier>),
        Trust::Issuers(issuers) => {
            let mut roots = RootCertStore::empty();
            issuers.into_iter().try_for_each(|issuer| roots.add(issuer))?;
            builder.with_root_certificates(roots)
        }
    };
    let mut config = match identity {
        Some(identity) => builder.with_client_auth_cert(identity.certificates, identity.key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, seen))
}
