//! Requests to an etcd cluster, by the JSON gateway of its members.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, http};

use super::address::{Address, EtcdAccess};
use super::messages::{
    Authenticate, AuthenticateAnswer, Grant, GrantAnswer, Header, KeepAliveAnswer, Nothing,
    OfLease, Read, ReadAnswer, Refusal, StatusAnswer, Streamed, TimeToLiveAnswer, Txn, TxnAnswer,
    Watch, WatchAnswer,
};
use crate::error::{Error, Operation, Result, begun_small};
use crate::sys::process::boottime;
use crate::sys::wait::pause;

/// How long a member may take for each part of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait after all members were tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The largest answer: a page of records, each of them smaller than etcd's limit for a request.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// For how long one watch is read. Its thread then ends.
const WATCH_LIMIT: Duration = Duration::from_secs(45);

// Codes of gRPC (google.golang.org/grpc/codes).
const UNKNOWN: i64 = 2;
const DEADLINE_EXCEEDED: i64 = 4;
const NOT_FOUND: i64 = 5;
const PERMISSION_DENIED: i64 = 7;
const RESOURCE_EXHAUSTED: i64 = 8;
const ABORTED: i64 = 10;
const OUT_OF_RANGE: i64 = 11;
const INTERNAL: i64 = 13;
const UNAVAILABLE: i64 = 14;
const UNAUTHENTICATED: i64 = 16;
const CANCELED: i64 = 1;

/// Why there is no good answer.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It may have been done, may yet be done, or not.
    Unknown(String),
    /// It was not done.
    Refused(Refused),
    /// It was not done: at this address is no gateway of etcd that would do it. At another one may be.
    NoGateway(String),
}

/// What an endpoint has said instead of an answer.
struct Said {
    endpoint: String,
    message: String,
    /// That does not change by itself.
    is_final: bool,
}

/// An answer that says no.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    code: i64,
    message: String,
}

impl Refused {
    /// There is no such lease, any more.
    pub(super) fn is_not_found(&self) -> bool {
        self.code == NOT_FOUND
    }

    /// The revision to be read has been compacted.
    pub(super) fn is_compacted(&self) -> bool {
        self.code == OUT_OF_RANGE && self.message.contains("compacted")
    }

    fn is_about_token(&self) -> bool {
        self.code == UNAUTHENTICATED || self.message.contains("auth store is old")
    }
}

pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// The members of a cluster. One of them is asked, until it does not answer.
pub(super) struct Client {
    address: Address,
    agent: Agent,
    names: Arc<Names>,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
    current: AtomicUsize,
    /// 0: no member has answered.
    cluster: AtomicI64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// The addresses of hosts. ureq asks for them at each request.
#[derive(Debug, Default)]
struct Names {
    known: Mutex<HashMap<String, ResolvedSocketAddrs>>,
}

impl Names {
    fn forget(&self) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

#[derive(Debug)]
struct Remembering(Arc<Names>);

impl Resolver for Remembering {
    fn resolve(
        &self,
        uri: &http::Uri,
        _config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let known = || self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&authority) {
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
        known().insert(authority, found.clone());
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

impl Client {
    pub(super) fn new(address: Address, access: &EtcdAccess) -> Result<Self> {
        let names = Arc::new(Names::default());
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A store is reached by its URL, whatever HTTP_PROXY says.
            .proxy(None)
            .max_redirects(0)
            .user_agent("onehold")
            .max_idle_age(Duration::from_mins(1));
        if address.is_encrypted {
            config = config.https_only(true).tls_config(tls(&address, access)?);
        }
        let agent = Agent::with_parts(
            config.build(),
            DefaultConnector::default(),
            Remembering(Arc::clone(&names)),
        );
        let password = access.password.clone().unwrap_or_default();
        Ok(Self {
            address,
            agent,
            names,
            user: access.user.clone().map(|user| (user, password)),
            token: Mutex::new(None),
            current: AtomicUsize::new(0),
            cluster: AtomicI64::new(0),
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// The endpoint that is asked.
    pub(super) fn endpoint(&self) -> &str {
        let endpoints = &self.address.endpoints;
        let at = self.current.load(Ordering::Relaxed) % endpoints.len().max(1);
        endpoints.get(at).map_or("", String::as_str)
    }

    /// Asks the next member from now on.
    pub(super) fn go_on(&self) {
        self.names.forget();
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    fn token(&self) -> Option<String> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.clone()
    }

    fn sign_in(&self) -> Answer<()> {
        let Some((name, password)) = &self.user else {
            return Ok(());
        };
        // Without the old token: etcd refuses any request with a token that has ended.
        let answer: AuthenticateAnswer = self.post_with(
            None,
            "/v3/auth/authenticate",
            &Authenticate { name, password },
            TIMEOUT,
        )?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.token);
        Ok(())
    }

    /// Sends a request to one member, once.
    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Answer<T> {
        if self.user.is_some() && self.token().is_none() {
            self.sign_in()?;
        }
        match self.post_with(self.token(), path, body, timeout) {
            Err(Failure::Refused(refused)) if self.user.is_some() && refused.is_about_token() => {
                self.sign_in()?;
                self.post_with(self.token(), path, body, timeout)
            }
            answer => answer,
        }
    }

    fn post_with<T: DeserializeOwned>(
        &self,
        token: Option<String>,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Answer<T> {
        let (status, text) = self.send(token, path, body, timeout)?;
        if status == 200 {
            return serde_json::from_slice(&text)
                .map_err(|error| Failure::Unknown(format!("its answer cannot be read: {error}")));
        }
        Err(refusal(status, &text))
    }

    fn request(
        &self,
        token: Option<String>,
        path: &str,
        timeout: Duration,
    ) -> ureq::config::ConfigBuilder<ureq::typestate::RequestScope<ureq::typestate::WithBody>> {
        let scheme = if self.address.is_encrypted {
            "https"
        } else {
            "http"
        };
        let mut request = self
            .agent
            .post(format!("{scheme}://{}{path}", self.endpoint()))
            // A member without a leader then says so at once, and ends its watches.
            .header("Grpc-Metadata-hasleader", "true")
            .content_type("application/json");
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        // Singly: one for all of it would start a thread for each request.
        request
            .config()
            .timeout_resolve(Some(timeout))
            .timeout_connect(Some(timeout))
            .timeout_send_request(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
    }

    fn send(
        &self,
        token: Option<String>,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Answer<(u16, Vec<u8>)> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::Unknown(error.to_string()))?;
        let request = self
            .request(token, path, timeout)
            .timeout_recv_body(Some(timeout.max(TIMEOUT)))
            .build();
        let mut answer = request
            .send(&body[..])
            .map_err(|error| unanswered(&error))?;
        let status = answer.status().as_u16();
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_vec()
            .map_err(|error| unanswered(&error))?;
        Ok((status, text))
    }

    /// Notes which cluster has answered. Endpoints of two clusters would be two stores.
    fn note(&self, header: Header) -> Answer<()> {
        let known = self.cluster.load(Ordering::Relaxed);
        if known == 0 {
            self.cluster.store(header.cluster_id, Ordering::Relaxed);
        } else if known != header.cluster_id {
            return Err(Failure::Refused(Refused {
                code: PERMISSION_DENIED,
                message: format!("{} is a member of another cluster", self.endpoint()),
            }));
        }
        Ok(())
    }

    pub(super) fn grant_once(&self, seconds: i64, timeout: Duration) -> Answer<GrantAnswer> {
        let answer: GrantAnswer = self.post("/v3/lease/grant", &Grant { ttl: seconds }, timeout)?;
        self.note(answer.header)?;
        Ok(answer)
    }

    /// Ends a lease and deletes its keys. Once, since it would end anyway.
    pub(super) fn revoke(&self, id: i64) {
        let _: Answer<serde_json::Value> = self.post("/v3/lease/revoke", &OfLease { id }, TIMEOUT);
    }

    pub(super) fn keep_alive_once(&self, id: i64, timeout: Duration) -> Answer<KeepAliveAnswer> {
        let answer: Streamed<KeepAliveAnswer> =
            self.post("/v3/lease/keepalive", &OfLease { id }, timeout)?;
        match (answer.result, answer.error) {
            (Some(result), None) => {
                self.note(result.header)?;
                Ok(result)
            }
            (_, error) => Err(Failure::Unknown(error.unwrap_or_default().message)),
        }
    }

    pub(super) fn time_to_live(&self, id: i64) -> Answer<TimeToLiveAnswer> {
        self.post("/v3/lease/timetolive", &OfLease { id }, TIMEOUT)
    }

    pub(super) fn status(&self) -> Answer<StatusAnswer> {
        self.post("/v3/maintenance/status", &Nothing {}, TIMEOUT)
    }

    pub(super) fn txn_once(&self, txn: &Txn, timeout: Duration) -> Answer<TxnAnswer> {
        let answer: TxnAnswer = self.post("/v3/kv/txn", txn, timeout)?;
        self.note(answer.header)?;
        Ok(answer)
    }

    /// A transaction that was prepared as JSON.
    pub(super) fn send_txn(&self, txn: &serde_json::Value) -> Answer<TxnAnswer> {
        self.post("/v3/kv/txn", txn, TIMEOUT)
    }

    pub(super) fn read_once(&self, read: &Read) -> Answer<ReadAnswer> {
        let answer: ReadAnswer = self.post("/v3/kv/range", read, TIMEOUT)?;
        self.note(answer.header)?;
        Ok(answer)
    }

    /// Sends a request, to one member after the other, until its fate is known. `go_on`: how long it
    /// may take, asked before each repetition. The second value: an earlier try may have been applied.
    pub(super) fn until_known<T>(
        &self,
        operation: &'static str,
        mut go_on: impl FnMut() -> bool,
        mut once: impl FnMut() -> Answer<T>,
    ) -> std::result::Result<(Answered<T>, bool), Error> {
        let mut said: Vec<Said> = Vec::new();
        let mut may_be_done = false;
        loop {
            let endpoint = self.endpoint().to_owned();
            let (message, is_final) = match once() {
                Ok(answer) => return Ok((Answered::Done(answer), may_be_done)),
                Err(Failure::Refused(refused)) => {
                    return Ok((Answered::Refused(refused), may_be_done));
                }
                Err(Failure::Unknown(message)) => {
                    may_be_done = true;
                    let is_final = is_about_certificates(&message);
                    (message, is_final)
                }
                Err(Failure::NoGateway(message)) => (message, true),
            };
            said.retain(|other| other.endpoint != endpoint);
            said.push(Said {
                endpoint,
                message,
                is_final,
            });
            self.go_on();
            let is_round_over = said.len() >= self.address.endpoints.len();
            let is_hopeless = || said.iter().all(|said| said.is_final);
            if is_round_over && (is_hopeless() || !go_on()) {
                return Err(self.unreachable(operation, &said));
            }
            if is_round_over {
                let _ = pause(RETRY_INTERVAL);
            }
        }
    }

    fn unreachable(&self, operation: &'static str, said: &[Said]) -> Error {
        let any = |is: fn(&str) -> bool| said.iter().any(|said| is(&said.message));
        // A member that does not trust a client closes the connection, mostly before it has said why. One that
        // expects the other scheme closes it as well.
        let is_closed = |message: &str| {
            let ways = [
                "broken pipe",
                "connection reset by peer",
                "peer disconnected",
                "unexpected end of file",
            ];
            ways.contains(&message)
        };
        let remedy = match self.address.is_encrypted {
            _ if any(|message| message.contains("CommonName")) => NO_COMMON_NAME,
            _ if any(|message| message == NO_GATEWAY) => {
                "use etcd 3.4 or later, not behind `etcd grpc-proxy`, with --enable-grpc-gateway"
            }
            true if any(is_about_certificates) => {
                "check ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY"
            }
            true if any(is_closed) => {
                "check ETCDCTL_CERT and ETCDCTL_KEY; if the members do not use TLS, use etcd:// instead of etcds://"
            }
            false if any(is_closed) => {
                "check whether the members use TLS; if so, use etcds:// instead of etcd://"
            }
            _ => "check that most members run: `etcdctl endpoint status`",
        };
        let said: Vec<String> = said
            .iter()
            .map(|said| format!("{}: {}", said.endpoint, said.message))
            .collect();
        Error::Remote {
            operation,
            store: self.address.url.clone(),
            reason: said.join("; "),
            remedy: Some(remedy.to_owned()),
        }
    }

    /// What a refusal means for a user.
    pub(super) fn refused(&self, operation: &'static str, refused: &Refused) -> Error {
        let (reason, remedy) = self.explained(refused);
        Error::Remote {
            operation,
            store: self.address.url.clone(),
            reason,
            remedy,
        }
    }

    fn explained(&self, refused: &Refused) -> (String, Option<String>) {
        let message = refused.message.trim_start_matches("etcdserver: ");
        let is = |text: &str| message.contains(text);
        let prefix = &self.address.prefix;
        let remedy = if is("user name is empty") {
            if self.user.is_some() {
                Some(NO_COMMON_NAME.to_owned())
            } else {
                Some("set ETCDCTL_USER and ETCDCTL_PASSWORD".to_owned())
            }
        } else if is("authentication failed") {
            Some("check ETCDCTL_USER and ETCDCTL_PASSWORD".to_owned())
        } else if refused.code == PERMISSION_DENIED && is("permission denied") {
            Some(format!(
                "to grant it to a role of the user, run `etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}//`"
            ))
        } else if refused.code == RESOURCE_EXHAUSTED && is("space") {
            Some(
                "free space: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`"
                    .to_owned(),
            )
        } else {
            None
        };
        (message.to_owned(), remedy)
    }

    /// Reads a watch in a thread of its own until `each` returns false, the watch ends, or some time has
    /// passed; then `each` gets `None`.
    pub(super) fn watch(
        self: &Arc<Self>,
        ranges: &[Watch],
        mut each: impl FnMut(Option<WatchAnswer>) -> bool + Send + 'static,
    ) {
        let body: Vec<u8> = ranges
            .iter()
            .filter_map(|range| serde_json::to_vec(range).ok())
            .flatten()
            .collect();
        let request = self
            .request(self.token(), "/v3/watch", TIMEOUT)
            .timeout_recv_body(Some(WATCH_LIMIT))
            .build();
        let read = move || {
            if let Ok(answer) = request.send(&body[..]) {
                let mut lines = BufReader::new(answer.into_body().into_reader());
                let mut line = String::new();
                while matches!(lines.read_line(&mut line), Ok(length) if length > 0) {
                    let answer = serde_json::from_str::<Streamed<WatchAnswer>>(&line);
                    let Some(answer) = answer.ok().and_then(|answer| answer.result) else {
                        break;
                    };
                    if answer.canceled {
                        break;
                    }
                    if !each(Some(answer)) {
                        return;
                    }
                    line.clear();
                }
            }
            let _ = each(None);
        };
        // Signals are for the main thread. Without a thread the waiter looks again in time.
        let _ = crate::sys::signal::without_signals(|| {
            let _ = std::thread::Builder::new()
                .name("watch".to_owned())
                .stack_size(256 * 1024)
                .spawn(read);
        });
    }
}

/// What a request came to.
pub(super) enum Answered<T> {
    Done(T),
    Refused(Refused),
}

/// How long a verb may take, as [`Client::until_known`] asks it.
pub(super) fn for_at_most(limit: Duration) -> impl FnMut() -> bool {
    let deadline = boottime().saturating_add(limit);
    move || boottime() < deadline
}

const NO_GATEWAY: &str = "no JSON gateway at this address";

const NO_COMMON_NAME: &str =
    "use a client certificate without a common name: the gateway refuses others";

/// The reason of a refusal of our own.
pub(super) const TOO_LARGE: &str = "the answer is too large";

fn unanswered(error: &ureq::Error) -> Failure {
    if let ureq::Error::BodyExceedsLimit(_) = error {
        return Failure::Refused(Refused {
            code: RESOURCE_EXHAUSTED,
            message: TOO_LARGE.to_owned(),
        });
    }
    Failure::Unknown(match error {
        ureq::Error::Io(error) => cause_of(error),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::HostNotFound => "no such host".to_owned(),
        other => other.to_string(),
    })
}

fn cause_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    begun_small(text.split(" (os error").next().unwrap_or(&text))
}

fn refusal(status: u16, text: &[u8]) -> Failure {
    let refusal = serde_json::from_slice::<Refusal>(text).ok();
    let Some(refusal) = refusal.filter(|refusal| refusal.code != 0) else {
        let shown = String::from_utf8_lossy(text);
        let shown = shown.trim().lines().next().unwrap_or_default().to_owned();
        return match status {
            404 => Failure::NoGateway(NO_GATEWAY.to_owned()),
            ..500 => Failure::NoGateway(format!("HTTP status {status}: {shown}")),
            _ => Failure::Unknown(format!("HTTP status {status}: {shown}")),
        };
    };
    // Of the path, and not of a lease.
    if status == 404 && refusal.message == "Not Found" {
        return Failure::NoGateway(NO_GATEWAY.to_owned());
    }
    let is_unknown = matches!(
        refusal.code,
        CANCELED | UNKNOWN | DEADLINE_EXCEEDED | ABORTED | INTERNAL | UNAVAILABLE
    ) || status >= 500
        // Later it may not be too busy.
        || refusal.message.contains("too many requests");
    if is_unknown {
        return Failure::Unknown(
            refusal
                .message
                .trim_start_matches("etcdserver: ")
                .to_owned(),
        );
    }
    Failure::Refused(Refused {
        code: refusal.code,
        message: refusal.message,
    })
}

/// Whether a member and the caller do not trust each other.
fn is_about_certificates(message: &str) -> bool {
    let message = message.to_lowercase();
    let words = ["certificate", "issuer", "unknownca"];
    words.iter().any(|word| message.contains(word))
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

fn tls(address: &Address, access: &EtcdAccess) -> Result<TlsConfig> {
    let invalid = |what: &str, reason: String| Error::Remote {
        operation: "use the store",
        store: address.url.clone(),
        reason: format!("{what}: {reason}"),
        remedy: None,
    };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|source| Error::Io {
            operation: Operation::Read,
            path: path.to_owned(),
            source,
        })
    };
    let roots = match &access.ca_certificate {
        Some(path) => {
            let pem = read(path)?;
            let found: Vec<Certificate<'static>> = parse_pem(&pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if found.is_empty() {
                return Err(invalid(
                    "CA certificate",
                    format!("`{}` has none", path.display()),
                ));
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
            ensure_matching(&read(certificate)?, &read(key)?)
                .map_err(|reason| invalid("client certificate", reason))?;
            let chain: Vec<Certificate<'static>> = parse_pem(&read(certificate)?)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            let key = PrivateKey::from_pem(&read(key)?)
                .map_err(|error| invalid("client key", error.to_string()))?;
            Some(ClientCert::new_with_certs(&chain, key))
        }
        (None, None) => None,
        _ => {
            return Err(invalid(
                "client certificate",
                "certificate and key are needed together".to_owned(),
            ));
        }
    };
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client)
        .disable_verification(access.skips_verification)
        .build())
}
