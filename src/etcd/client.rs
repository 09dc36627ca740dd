//! Requests to an etcd cluster, by the JSON gateway of its members.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;

use super::address::{Address, EtcdAccess};
use super::failure::Failure;
use super::messages::{
    Authenticate, AuthenticateAnswer, Grant, Header, LeaseAnswer, Nothing, OfLease, Read,
    ReadAnswer, StatusAnswer, Streamed, Txn, TxnAnswer, Watch, WatchAnswer,
};
use super::transport::{Names, agent};
use crate::error::{Fault, Result};
use crate::sys::process::boottime_milliseconds;

/// How long a member may take for each part of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer: a page of records, each of them smaller than etcd's limit for a request.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// For how long one watch is read. Its thread then ends.
const WATCH_LIMIT: Duration = Duration::from_secs(45);

pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// The members of a cluster. One of them is asked, until it does not answer.
pub(super) struct Client {
    pub(super) address: Address,
    agent: Agent,
    names: Names,
    pub(super) user: Option<(String, String)>,
    token: Mutex<Option<String>>,
    current: AtomicUsize,
    /// 0: no member has answered.
    cluster: AtomicI64,
}

/// A lease that was granted, and what it is worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) id: i64,
    /// As the server has granted it, in seconds.
    pub(super) ttl: i64,
    /// When the request was sent by which it is known to be kept, by the boot-time clock.
    pub(super) since_ms: u64,
    /// The term of the leader then.
    pub(super) term: i64,
}

impl Granted {
    pub(super) fn ttl_ms(&self) -> u64 {
        let seconds = u64::try_from(self.ttl).unwrap_or(0);
        seconds.saturating_mul(1000)
    }

    /// Keeps it alive. `None`: it is not known whether it is, and the next member is to be asked.
    pub(super) fn keep(&mut self, client: &Client) -> Option<bool> {
        let sent = boottime_milliseconds();
        let Ok(kept) = client.keep_alive_once(self.id, TIMEOUT) else {
            client.go_on();
            return None;
        };
        let is_kept = kept.ttl > 0;
        if is_kept {
            self.since_ms = sent;
            self.term = kept.header.raft_term;
        }
        Some(is_kept)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(address: Address, access: &EtcdAccess) -> Result<Self> {
        let (agent, names) = agent(&address, access)?;
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
            Err(Failure::Refused(refused))
                if self.user.is_some() && refused.fault == Fault::Token =>
            {
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
        let body = serde_json::to_vec(body).map_err(|error| Failure::Unknown(error.to_string()))?;
        let request = self.request(token, path, timeout).build();
        let unanswered = |error| Failure::unanswered(&error);
        let mut answer = request.send(&body[..]).map_err(unanswered)?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER);
        let text = body.read_to_vec().map_err(unanswered)?;
        if status != 200 {
            return Err(Failure::of_answer(status, &text));
        }
        serde_json::from_slice(&text)
            .map_err(|error| Failure::Unknown(format!("its answer cannot be read: {error}")))
    }

    fn request(
        &self,
        token: Option<String>,
        path: &str,
        timeout: Duration,
    ) -> ureq::config::ConfigBuilder<ureq::typestate::RequestScope<ureq::typestate::WithBody>> {
        let is_encrypted = self.address.is_encrypted;
        let scheme = if is_encrypted { "https" } else { "http" };
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
            .timeout_recv_body(Some(TIMEOUT))
    }

    /// Notes which cluster has answered. Endpoints of two clusters would be two stores.
    fn note(&self, header: Header) -> Answer<()> {
        let known = self.cluster.load(Ordering::Relaxed);
        if known == 0 {
            self.cluster.store(header.cluster_id, Ordering::Relaxed);
        } else if known != header.cluster_id {
            return Err(Failure::other_cluster(self.endpoint()));
        }
        Ok(())
    }

    pub(super) fn grant_once(&self, seconds: i64) -> Answer<Granted> {
        let since_ms = boottime_milliseconds();
        let answer: LeaseAnswer = self.post("/v3/lease/grant", &Grant { ttl: seconds }, TIMEOUT)?;
        self.note(answer.header)?;
        Ok(Granted {
            id: answer.id,
            ttl: answer.ttl,
            since_ms,
            term: answer.header.raft_term,
        })
    }

    /// Ends a lease and deletes its keys. Once, since it would end anyway.
    pub(super) fn revoke(&self, id: i64) {
        let _: Answer<serde_json::Value> = self.post("/v3/lease/revoke", &OfLease { id }, TIMEOUT);
    }

    pub(super) fn keep_alive_once(&self, id: i64, timeout: Duration) -> Answer<LeaseAnswer> {
        let answer: Streamed<LeaseAnswer> =
            self.post("/v3/lease/keepalive", &OfLease { id }, timeout)?;
        match (answer.result, answer.error) {
            (Some(result), None) => self.note(result.header).map(|()| result),
            (_, error) => Err(Failure::Unknown(error.unwrap_or_default().message)),
        }
    }

    /// How much is left of a lease. `None`: nothing, or that is not known.
    pub(super) fn time_to_live(&self, id: i64) -> Option<Duration> {
        let answer: Answer<LeaseAnswer> =
            self.post("/v3/lease/timetolive", &OfLease { id }, TIMEOUT);
        let left = u64::try_from(answer.ok()?.ttl).ok();
        left.map(Duration::from_secs)
    }

    pub(super) fn status(&self) -> Answer<StatusAnswer> {
        self.post("/v3/maintenance/status", &Nothing {}, TIMEOUT)
    }

    pub(super) fn txn_once(&self, txn: &Txn, timeout: Duration) -> Answer<TxnAnswer> {
        let answer: TxnAnswer = self.post("/v3/kv/txn", txn, timeout)?;
        self.note(answer.header).map(|()| answer)
    }

    /// A transaction that was prepared as JSON.
    pub(super) fn send_txn(&self, txn: &serde_json::Value) -> Answer<TxnAnswer> {
        self.post("/v3/kv/txn", txn, TIMEOUT)
    }

    pub(super) fn read_once(&self, read: &Read) -> Answer<ReadAnswer> {
        let answer: ReadAnswer = self.post("/v3/kv/range", read, TIMEOUT)?;
        self.note(answer.header).map(|()| answer)
    }

    /// Reads a watch in a thread of its own until `each` returns false, the watch ends, or some time has
    /// passed; then `each` is dropped.
    pub(super) fn watch(
        &self,
        ranges: &[Watch],
        mut each: impl FnMut(WatchAnswer) -> bool + Send + 'static,
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
            let Ok(answer) = request.send(&body[..]) else {
                return;
            };
            let lines = BufReader::new(answer.into_body().into_reader()).lines();
            for line in lines.map_while(std::io::Result::ok) {
                let answer = serde_json::from_str::<Streamed<WatchAnswer>>(&line);
                let answer = answer.ok().and_then(|answer| answer.result);
                let goes_on = answer
                    .filter(|answer| !answer.canceled)
                    .is_some_and(&mut each);
                if !goes_on {
                    return;
                }
            }
        };
        // Without a thread the waiter looks again in time.
        let _ = crate::sys::start_thread("watch", 256 * 1024, read);
    }
}
