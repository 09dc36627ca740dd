//! Certificates and keys of encrypted connections, from files in PEM.

use std::fmt::Display;
use std::path::Path;

use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::error::cause_text;

/// What was read, or for a person why not.
pub(super) type Read<T> = Result<T, String>;

/// A chain of certificates, and the private key of the first one in PEM.
pub(super) type Identity = (Vec<CertificateDer<'static>>, Vec<u8>);

/// The authorities of a file, or those that the system trusts.
pub(super) fn authorities(file: Option<&Path>) -> Read<Vec<CertificateDer<'static>>> {
    match file {
        Some(file) => certificates("CA certificate", file),
        None => Ok(rustls_native_certs::load_native_certs().certs),
    }
}

/// What a client shows of itself.
pub(super) fn identity(chain: &Path, key: &Path) -> Read<Identity> {
    const WHAT: &str = "client certificate";
    let certificates = certificates(WHAT, chain)?;
    let pem = read("client key", key)?;
    let secret = PrivateKeyDer::from_pem_slice(&pem);
    let secret = secret.map_err(|why| fault("client key", key, of_pem(&why, "private key")))?;
    match CertifiedKey::from_der(certificates.clone(), secret, &ring::default_provider()) {
        Ok(_) => Ok((certificates, pem)),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(fault(WHAT, chain, "the key does not belong to it"))
        }
        Err(why) => Err(fault(WHAT, chain, why)),
    }
}

fn certificates(what: &str, file: &Path) -> Read<Vec<CertificateDer<'static>>> {
    let pem = read(what, file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(fault(what, file, "no certificate in it")),
        Err(why) => Err(fault(what, file, of_pem(&why, "certificate"))),
    }
}

fn read(what: &str, file: &Path) -> Read<Vec<u8>> {
    std::fs::read(file).map_err(|why| fault(what, file, cause_text(&why)))
}

fn of_pem(why: &PemError, wanted: &str) -> String {
    match why {
        PemError::NoItemsFound => format!("no {wanted} in it"),
        why => why.to_string(),
    }
}

fn fault(what: &str, file: &Path, why: impl Display) -> String {
    format!("{what} `{}`: {why}", file.display())
}
