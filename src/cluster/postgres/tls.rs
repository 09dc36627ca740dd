//! Encryption of a connection, as libpq's `sslmode` asks for it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use super::address::{Address, Encryption, SYSTEM};
use crate::cluster::certificates::{Read, authorities, identity};
use crate::cluster::engine::{Answer, Failure, Kind};

/// What begins an encrypted connection to a host. Its files are read now.
pub(super) fn begin(address: &Address, host: &str) -> Answer<ClientConnection> {
    let failed = |why: String| Failure::new(Kind::Untrusted, why);
    let verifier = Verifier::of(address).map_err(failed)?;
    let certificate = address.certificate.as_ref();
    let certificate = certificate.map(|(chain, key)| identity(chain, key));
    let certificate = certificate.transpose().map_err(failed)?;
    let begin = || -> std::result::Result<_, Error> {
        let config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match certificate {
            Some((chain, key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key);
                let key = key.map_err(|error| Error::General(error.to_string()))?;
                config.with_client_auth_cert(chain, key)?
            }
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| Error::General(error.to_string()))?;
        ClientConnection::new(Arc::new(config), name)
    };
    begin().map_err(|error| failed(format!("TLS: {error}")))
}

/// Verifies what `sslmode` asks for: nothing, the issuer, or also the name.
#[derive(Debug)]
struct Verifier {
    of_roots: Option<Arc<WebPkiServerVerifier>>,
    checks_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn of(address: &Address) -> Read<Self> {
        let provider = Arc::new(ring::default_provider());
        let root = address.root.as_deref();
        let is_of_system = root == Some(Path::new(SYSTEM));
        let has_root = is_of_system || root.is_some_and(Path::exists);
        // As libpq: with a root certificate, `require` verifies it.
        let must_trust = address.encryption >= Encryption::VerifyCa
            || (address.encryption == Encryption::Require && has_root);
        let of_roots = must_trust.then(|| {
            let mut roots = RootCertStore::empty();
            let file = root.unwrap_or(Path::new("~/.postgresql/root.crt"));
            roots.add_parsable_certificates(authorities((!is_of_system).then_some(file))?);
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| format!("CA certificate: {error}"))
        });
        Ok(Self {
            of_roots: of_roots.transpose()?,
            checks_name: address.encryption == Encryption::VerifyFull,
            provider,
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(of_roots) = &self.of_roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let result =
            of_roots.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match result {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
