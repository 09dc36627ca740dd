//! How the members of a cluster are reached: their addresses, and TLS.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, http};

use super::address::{Address, EtcdAccess};
use crate::cluster::address::look_up;
use crate::cluster::certificates::{authorities, identity};
use crate::error::{Error, Fault, Result};
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
        let all = look_up(&authority, *timeout.after).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
            _ => ureq::Error::Io(error),
        })?;
        // As many as there is room for.
        let _ = all
            .into_iter()
            .try_for_each(|address| found.try_push(address));
        if found.is_empty() {
            return Err(ureq::Error::HostNotFound);
        }
        self.known().insert(authority, found.clone());
        Ok(found)
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
    let invalid = |reason: String| Error::Remote {
        operation: "use the store",
        store: address.url.clone(),
        reason,
        remedy: None,
        fault: Fault::Final,
    };
    let roots = authorities(access.ca_certificate.as_deref()).map_err(invalid)?;
    let client = match (&access.certificate, &access.key) {
        (Some(certificate), Some(key)) => {
            let (chain, key) = identity(certificate, key).map_err(invalid)?;
            let key = PrivateKey::from_pem(&key).map_err(|error| invalid(error.to_string()))?;
            Some(ClientCert::new_with_certs(&of_ureq(&chain), key))
        }
        (None, None) => None,
        _ => {
            let reason = "client certificate: certificate and key are needed together";
            return Err(invalid(reason.to_owned()));
        }
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&of_ureq(&roots)))
        .client_cert(client)
        .disable_verification(access.skips_verification)
        .build())
}

fn of_ureq(all: &[CertificateDer<'_>]) -> Vec<Certificate<'static>> {
    let all = all.iter();
    all.map(|one| Certificate::from_der(one).to_owned())
        .collect()
}
