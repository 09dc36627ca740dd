//! How the members of a cluster are reached: their addresses, and TLS.

use std::collections::HashMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, http};

use super::address::{Address, EtcdAccess};
use crate::error::{Context as _, Operation, Result};
use crate::sys::locked;

/// The addresses of hosts. ureq asks for them at each request.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(Arc<Mutex<HashMap<String, ResolvedSocketAddrs>>>);

impl Names {
    fn known(&self) -> MutexGuard<'_, HashMap<String, ResolvedSocketAddrs>> {
        locked(&self.0)
    }

    pub(super) fn forget(&self) {
        self.known().clear();
    }
}

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &http::Uri,
        _config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if let Some(found) = self.known().get(&authority) {
            return Ok(found.clone());
        }
        let mut found = self.empty();
        // No thread is needed for what is an address already.
        if let Ok(address) = authority.parse() {
            found.push(address);
        } else {
            let mut all = look_up(authority.clone(), timeout)?;
            // As many as there is room for.
            let _ = all.try_for_each(|address| found.try_push(address));
        }
        if found.is_empty() {
            return Err(ureq::Error::HostNotFound);
        }
        self.known().insert(authority, found.clone());
        Ok(found)
    }
}

/// Asks for the addresses of a host in a thread, since that has no timeout. ureq's own resolver panics if no
/// thread can be started.
fn look_up(
    authority: String,
    timeout: NextTimeout,
) -> std::result::Result<std::vec::IntoIter<SocketAddr>, ureq::Error> {
    let (sender, found) = mpsc::sync_channel(1);
    let ask = move || {
        let _ = sender.send(authority.to_socket_addrs());
    };
    let start = || std::thread::Builder::new().spawn(ask);
    crate::sys::signal::without_signals(start)??;
    match found.recv_timeout(*timeout.after) {
        Ok(found) => Ok(found?),
        Err(_) => Err(ureq::Error::Timeout(timeout.reason)),
    }
}

/// Checks that there is a certificate, and that the key belongs to it. ureq would panic.
fn ensure_matching(certificate: &[u8], key: &[u8]) -> std::result::Result<(), String> {
    let chain: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("no certificate in its file".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => Err("the key does not belong to it".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// What sends requests to the members of a cluster.
pub(super) struct Transport {
    pub(super) names: Names,
    agent: Mutex<Agent>,
    /// What is in the files of an encrypted connection, as it is used.
    used: Mutex<Option<Files>>,
}

/// The contents of the files that an encrypted connection needs.
type Files = [Option<Vec<u8>>; 3];

impl Transport {
    pub(super) fn new(address: &Address, access: &EtcdAccess) -> Result<Self> {
        let names = Names::default();
        let used = address.is_encrypted.then(|| contents(access));
        let tls = address.is_encrypted.then(|| tls(address, access));
        Ok(Self {
            agent: Mutex::new(agent(names.clone(), tls.transpose()?)),
            names,
            used: Mutex::new(used),
        })
    }

    pub(super) fn agent(&self) -> Agent {
        locked(&self.agent).clone()
    }

    /// Reads the files again, since there was no answer. Whether there are other certificates in them, which are used
    /// from now on.
    #[cold]
    pub(super) fn has_new_certificates(&self, address: &Address, access: &EtcdAccess) -> bool {
        let mut used = locked(&self.used);
        let now = used.is_some().then(|| contents(access));
        if *used == now {
            return false;
        }
        // They may be written just now.
        let Ok(tls) = tls(address, access) else {
            return false;
        };
        *used = now;
        *locked(&self.agent) = agent(self.names.clone(), Some(tls));
        true
    }
}

fn contents(access: &EtcdAccess) -> Files {
    let files = [&access.ca_certificate, &access.certificate, &access.key];
    files.map(|file| std::fs::read(file.as_ref()?).ok())
}

fn agent(names: Names, tls: Option<TlsConfig>) -> Agent {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        // A store is reached by its URL, whatever HTTP_PROXY says.
        .proxy(None)
        .max_redirects(0)
        .user_agent("onehold")
        .max_idle_age(Duration::from_mins(1));
    if let Some(tls) = tls {
        config = config.https_only(true).tls_config(tls);
    }
    Agent::with_parts(config.build(), DefaultConnector::default(), names)
}

fn tls(address: &Address, access: &EtcdAccess) -> Result<TlsConfig> {
    let invalid = |what: &str, reason: String| {
        address.error("use the store", format!("{what}: {reason}"), None)
    };
    let roots = match &access.ca_certificate {
        Some(path) => {
            let found = certificates(&read(path)?);
            if found.is_empty() {
                let reason = format!("`{}` has none", path.display());
                return Err(invalid("CA certificate", reason));
            }
            found
        }
        None => rustls_native_certs::load_native_certs()
            .certs
            .into_iter()
            .map(|certificate| Certificate::from_der(&certificate).to_owned())
            .collect(),
    };
    let client = match (&access.certificate, &access.key) {
        (Some(certificate), Some(key)) => {
            let (certificate, key) = (read(certificate)?, read(key)?);
            ensure_matching(&certificate, &key)
                .map_err(|reason| invalid("client certificate", reason))?;
            let key = PrivateKey::from_pem(&key)
                .map_err(|error| invalid("client key", error.to_string()))?;
            Some(ClientCert::new_with_certs(&certificates(&certificate), key))
        }
        (None, None) => None,
        _ => {
            let reason = "certificate and key are needed together".to_owned();
            return Err(invalid("client certificate", reason));
        }
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client)
        .disable_verification(access.skips_verification)
        .build())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).context(Operation::Read, path)
}

fn certificates(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificate = |item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    };
    parse_pem(pem).flatten().filter_map(certificate).collect()
}
