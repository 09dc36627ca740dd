//! Requests to an etcd cluster, by the JSON gateway of its members.

use std::io::{BufRead, BufReader};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::RequestBuilder;
use ureq::typestate::WithBody;

use super::address::{Address, EtcdAccess};
use super::failure::{Failure, is_about_certificates, is_about_connecting};
use super::messages::{
    Authenticate, AuthenticateAnswer, Grant, Header, LeaseAnswer, Nothing, OfLease, Read,
    ReadAnswer, StatusAnswer, Streamed, TxnAnswer, Watch, WatchAnswer,
};
use super::transport::Transport;
use super::user::{Pass, User};
use crate::backend::{Deadline, Patience};
use crate::error::Result;
use crate::sys::locked;
use crate::sys::process::boottime_milliseconds;
use crate::sys::random_u64;
use crate::sys::wait::pause;

/// How long a member may take for each part of an answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);

/// The largest answer: a page of records, each of them smaller than etcd's limit for a request.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// For how long one watch is read. Its thread then ends.
const WATCH_LIMIT: Duration = Duration::from_secs(45);

/// How long a member may take to accept a connection until the others are asked as well.
const FIRST_CONNECT: Duration = Duration::from_millis(200);

/// How long a caller waits for a sign-in at least. A member spends 0.1 s of a processor on each (`--bcrypt-cost`), also
/// for a caller that has given up. So a crontab line of 200 machines keeps it busy for many seconds.
pub(super) const SIGN_IN: Duration = Duration::from_secs(30);

/// How long after a lease could not be kept alive that is tried again.
const RETRY_MS: u64 = 300;

/// How often one member is asked to sign a user in that it has answered otherwise, and for how long to pause before.
const SIGN_INS: u32 = 4;
const SIGN_IN_PAUSE_MS: u64 = 2_000;

/// Requests that need no token: a keepalive up to the versions 3.4.41, 3.5.27 and 3.6.8, the other one mostly.
const KEEP_ALIVE: &str = "/v3/lease/keepalive";
const STATUS: &str = "/v3/maintenance/status";

pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// The members of a cluster. One of them is asked, until it does not answer.
pub(super) struct Client {
    pub(super) address: Address,
    access: EtcdAccess,
    transport: Transport,
    pub(super) user: Option<User>,
    pass: Mutex<Pass>,
    /// Held by who signs in.
    signing_in: Mutex<()>,
    current: AtomicUsize,
    /// The one that has failed last.
    failed: AtomicUsize,
    /// The current one has answered.
    has_answered: AtomicBool,
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
    /// When to keep it alive again.
    pub(super) due_ms: u64,
}

impl Granted {
    pub(super) fn ttl_ms(&self) -> u64 {
        let seconds = u64::try_from(self.ttl).unwrap_or(0);
        seconds.saturating_mul(1000)
    }

    /// When a hold with this lease is lost, and when its work must be over.
    pub(super) fn deadlines_ms(&self) -> (u64, u64) {
        let ttl = self.ttl_ms();
        (self.since_ms + ttl / 10 * 6, self.since_ms + ttl / 10 * 9)
    }

    /// Keeps it alive if that is due, as [`Self::keep`].
    pub(super) fn keep_in_time(&mut self, client: &Client) -> Option<bool> {
        if boottime_milliseconds() < self.due_ms {
            return Some(true);
        }
        self.keep(client)
    }

    /// Keeps it alive. `None`: it is not known whether it is, and the next member is asked from now on.
    pub(super) fn keep(&mut self, client: &Client) -> Option<bool> {
        let mut sent = 0;
        let kept = client.signed_in(Patience::SHORT, |client| {
            sent = boottime_milliseconds();
            client.keep_alive_once(self.id, TIMEOUT)
        });
        let Ok(kept) = kept else {
            client.go_on();
            self.due_ms = boottime_milliseconds() + RETRY_MS;
            return None;
        };
        self.due_ms = sent + self.ttl_ms() / 3;
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
        // Not all of them at the same member.
        let count = address.endpoints.len().max(1);
        let first = usize::try_from(random_u64() % (count as u64)).unwrap_or(0);
        Ok(Self {
            transport: Transport::new(&address, access)?,
            address,
            user: User::of(access)?,
            access: access.clone(),
            pass: Mutex::new(Pass::None),
            signing_in: Mutex::new(()),
            current: AtomicUsize::new(first),
            failed: AtomicUsize::new(first),
            has_answered: AtomicBool::new(false),
            cluster: AtomicI64::new(0),
        })
    }

    /// A client of one member.
    pub(super) fn of_member(&self, endpoint: &str) -> Result<Self> {
        let address = Address {
            endpoints: vec![endpoint.to_owned()],
            ..self.address.clone()
        };
        Self::new(address, &self.access)
    }

    /// The endpoint that is asked.
    pub(super) fn endpoint(&self) -> &str {
        let endpoints = &self.address.endpoints;
        let at = self.current.load(Ordering::Relaxed);
        endpoints.get(at).map_or("", String::as_str)
    }

    /// Asks the next member from now on.
    pub(super) fn go_on(&self) {
        let from = self.current.load(Ordering::Relaxed);
        self.failed.store(from, Ordering::Relaxed);
        self.go_to((from + 1) % self.address.endpoints.len().max(1));
    }

    /// Asks this one from now on.
    fn go_to(&self, at: usize) {
        self.transport.names.forget();
        self.has_answered.store(false, Ordering::Relaxed);
        self.current.store(at, Ordering::Relaxed);
    }

    /// Asks the member from now on that accepts a connection first, but not the one that has failed last. `false`: none
    /// of them does.
    #[cold]
    fn go_to_the_first(&self, within: Duration) -> bool {
        let endpoints = &self.address.endpoints;
        let failed = self.failed.load(Ordering::Relaxed);
        let (sender, first) = mpsc::channel();
        let all = endpoints.iter().enumerate();
        for (at, endpoint) in all.filter(|(at, _)| *at != failed) {
            let (sender, endpoint) = (sender.clone(), endpoint.clone());
            let connect = move || {
                let mut addresses = endpoint.to_socket_addrs().into_iter().flatten();
                if addresses.any(|address| TcpStream::connect_timeout(&address, within).is_ok()) {
                    let _ = sender.send(at);
                }
            };
            let _ = crate::sys::start_thread("connect", 256 * 1024, connect);
        }
        drop(sender);
        let first = first.recv_timeout(within);
        if let Ok(at) = first {
            self.go_to(at);
        }
        first.is_ok()
    }

    fn pass(&self) -> MutexGuard<'_, Pass> {
        locked(&self.pass)
    }

    /// Sends a request again once the user has signed in, if that is what it lacks.
    pub(super) fn signed_in<T>(
        &self,
        patience: Patience<'_>,
        mut once: impl FnMut(&Self) -> Answer<T>,
    ) -> Answer<T> {
        for _ in 0..SIGN_INS {
            match once(self) {
                Err(Failure::SignedOut) => self.sign_in(patience)?,
                answer => return answer,
            }
        }
        once(self)
    }

    /// Signs the user in, unless another thread has done that meanwhile.
    ///
    /// It stays with one member: that one works on after a caller has given up, so to ask the next one makes all of
    /// them slower.
    pub(super) fn sign_in(&self, patience: Patience<'_>) -> Answer<()> {
        let Some(user) = &self.user else {
            return Ok(());
        };
        if patience.at_most.is_zero() {
            return Err(Failure::SignedOut);
        }
        let _one_at_a_time = locked(&self.signing_in);
        if *self.pass() != Pass::None {
            return Ok(());
        }
        if !self.has_answered.load(Ordering::Relaxed) {
            // One that is away must not be waited for. Whatever it says, it is there.
            match self.ask::<StatusAnswer>(None, STATUS, &Nothing {}, TIMEOUT) {
                Ok(_) | Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        let deadline = Deadline::of(patience.for_at_most(patience.at_most.max(SIGN_IN)));
        let mut tries = 0;
        let pass = loop {
            match self.authenticate(user, &deadline) {
                Ok(answer) => break Pass::Token(answer.token),
                // As etcd's own clients do: so it can be turned on while there are holds.
                Err(Failure::Refused(refused)) if refused.is_authentication_off() => {
                    break Pass::NotNeeded;
                }
                Err(Failure::Refused(refused))
                    if refused.is_wrong_password() && user.has_new_password() => {}
                // It is too busy.
                Err(failure @ Failure::Unknown(_)) => {
                    tries += 1;
                    let pause_ms = random_u64() % SIGN_IN_PAUSE_MS;
                    let left = deadline.next_sleep(Duration::from_millis(pause_ms));
                    let Some(left) = left.filter(|_| tries < SIGN_INS) else {
                        return Err(failure);
                    };
                    let _ = pause(left);
                }
                Err(failure) => return Err(failure),
            }
        };
        *self.pass() = pass;
        Ok(())
    }

    /// Asks for a token, in a thread, so that it can be waited for as long as the caller wants.
    fn authenticate(&self, user: &User, deadline: &Deadline<'_>) -> Answer<AuthenticateAnswer> {
        let body = written(&Authenticate {
            name: &user.name,
            password: &user.password(),
        })?;
        // Without the old token: etcd refuses any request with a token that has ended.
        let request = self.request(None, "/v3/auth/authenticate", TIMEOUT, TIMEOUT);
        let request = request.config().timeout_recv_response(Some(SIGN_IN * 4));
        let request = request.build();
        let (sender, answered) = mpsc::sync_channel(1);
        let ask = move || {
            let _ = sender.send(answer_of(request.send(&body[..])));
        };
        crate::sys::start_thread("sign-in", 256 * 1024, ask)
            .map_err(|error| Failure::Unanswered(error.to_string()))?;
        while let Some(left) = deadline.next_sleep(SIGN_IN) {
            match answered.recv_timeout(left) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(answer) => return answer,
            }
        }
        Err(Failure::Unanswered(
            "no answer to a sign-in in time".to_owned(),
        ))
    }

    /// Sends a request to one member, once.
    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Answer<T> {
        let pass = self.pass().clone();
        let needs_token = self.user.is_some() && ![KEEP_ALIVE, STATUS].contains(&path);
        if needs_token && pass == Pass::None {
            return Err(Failure::SignedOut);
        }
        self.ask(pass.token(), path, body, timeout)
            .map_err(|failure| self.of_pass(&pass, failure))
    }

    /// A failure of a request that was sent with this pass: perhaps the user has to sign in.
    fn of_pass(&self, pass: &Pass, failure: Failure) -> Failure {
        let Failure::Refused(refused) = &failure else {
            return failure;
        };
        if self.user.is_none() || !refused.is_of_pass(pass.token().is_some()) {
            return failure;
        }
        let mut now = self.pass();
        // Another thread may have signed in again.
        if *now == *pass {
            *now = Pass::None;
        }
        Failure::SignedOut
    }

    fn ask<T: DeserializeOwned>(
        &self,
        token: Option<&str>,
        path: &str,
        body: &impl Serialize,
        timeout: Duration,
    ) -> Answer<T> {
        let body = written(body)?;
        let is_one_of_many =
            self.address.endpoints.len() > 1 && !self.has_answered.load(Ordering::Relaxed);
        let connect = if is_one_of_many {
            FIRST_CONNECT.min(timeout)
        } else {
            timeout
        };
        let attempt = |connect| self.request(token, path, timeout, connect).send(&body[..]);
        let mut sent = attempt(connect);
        if is_one_of_many
            && sent.as_ref().is_err_and(is_about_connecting)
            && self.go_to_the_first(timeout)
        {
            sent = attempt(timeout);
        }
        let mut answer = answer_of(sent);
        if let Err(failure) = &answer
            && failure.is_unanswered()
            && self
                .transport
                .has_new_certificates(&self.address, &self.access)
            && is_about_certificates(failure.message())
        {
            answer = answer_of(attempt(timeout));
        }
        let has_answered = !answer.as_ref().is_err_and(Failure::is_unanswered);
        self.has_answered.store(has_answered, Ordering::Relaxed);
        answer
    }

    fn request(
        &self,
        token: Option<&str>,
        path: &str,
        timeout: Duration,
        connect: Duration,
    ) -> RequestBuilder<WithBody> {
        let is_encrypted = self.address.is_encrypted;
        let scheme = if is_encrypted { "https" } else { "http" };
        let mut request = self
            .transport
            .agent()
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
            .timeout_resolve(Some(connect))
            .timeout_connect(Some(connect))
            .timeout_send_request(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_recv_body(Some(TIMEOUT))
            .build()
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
        let mut granted = Granted {
            id: answer.id,
            ttl: answer.ttl,
            since_ms,
            term: answer.header.raft_term,
            due_ms: 0,
        };
        granted.due_ms = since_ms + granted.ttl_ms() / 3;
        Ok(granted)
    }

    /// The term of the leader, as a majority knows it: by a lease that ends by itself. Before 3.4.42, 3.5.28 and 3.6.9
    /// that needs no token.
    pub(super) fn term_without_token(&self, timeout: Duration) -> Answer<i64> {
        let answer: LeaseAnswer = self.ask(None, "/v3/lease/grant", &Grant { ttl: 1 }, timeout)?;
        self.note(answer.header).map(|()| answer.header.raft_term)
    }

    /// Ends a lease and deletes its keys. Once, since it would end anyway.
    pub(super) fn revoke(&self, id: i64) {
        let _: Answer<serde_json::Value> = self.signed_in(Patience::SHORT, |client| {
            client.post("/v3/lease/revoke", &OfLease { id }, TIMEOUT)
        });
    }

    pub(super) fn keep_alive_once(&self, id: i64, timeout: Duration) -> Answer<LeaseAnswer> {
        let pass = self.pass().clone();
        let answer: Streamed<LeaseAnswer> = self.post(KEEP_ALIVE, &OfLease { id }, timeout)?;
        match (answer.result, answer.error) {
            (Some(result), None) => self.note(result.header).map(|()| result),
            (_, error) => {
                let failure = Failure::of_refusal(error.unwrap_or_default());
                Err(self.of_pass(&pass, failure))
            }
        }
    }

    /// How much is left of a lease. `None`: nothing, or that is not known.
    pub(super) fn time_to_live(&self, id: i64) -> Option<Duration> {
        let answer: Answer<LeaseAnswer> = self.signed_in(Patience::SHORT, |client| {
            client.post("/v3/lease/timetolive", &OfLease { id }, TIMEOUT)
        });
        let left = u64::try_from(answer.ok()?.ttl).ok();
        left.map(Duration::from_secs)
    }

    /// What the member says of itself.
    pub(super) fn status(&self) -> Answer<StatusAnswer> {
        self.signed_in(Patience::SHORT, |client| {
            client.post(STATUS, &Nothing {}, TIMEOUT)
        })
    }

    /// `txn`: a [`Txn`](super::messages::Txn), or what it was written as.
    pub(super) fn txn_once(&self, txn: &impl Serialize, timeout: Duration) -> Answer<TxnAnswer> {
        let answer: TxnAnswer = self.post("/v3/kv/txn", txn, timeout)?;
        self.note(answer.header).map(|()| answer)
    }

    pub(super) fn read_once(&self, read: &Read) -> Answer<ReadAnswer> {
        let answer: ReadAnswer = self.post("/v3/kv/range", read, TIMEOUT)?;
        self.note(answer.header).map(|()| answer)
    }

    /// Reads a watch in a thread of its own until `each` returns false, the watch ends, or some time has
    /// passed; `each` is then told nothing, once, and dropped. `false`: there is no thread, and nothing is read.
    pub(super) fn watch(
        &self,
        ranges: &[Watch],
        mut each: impl FnMut(Option<WatchAnswer>) -> bool + Send + 'static,
    ) -> bool {
        let body: Vec<u8> = ranges
            .iter()
            .filter_map(|range| serde_json::to_vec(range).ok())
            .flatten()
            .collect();
        let pass = self.pass().clone();
        let request = self.request(pass.token(), "/v3/watch", TIMEOUT, TIMEOUT);
        let request = request.config().timeout_recv_body(Some(WATCH_LIMIT));
        let request = request.build();
        let read = move || {
            if let Ok(answer) = request.send(&body[..]) {
                let lines = BufReader::new(answer.into_body().into_reader()).lines();
                let lines = lines.map_while(std::io::Result::ok);
                let answers = lines.map_while(|line| {
                    let answer: Streamed<WatchAnswer> = serde_json::from_str(&line).ok()?;
                    answer.result.filter(|answer| !answer.canceled)
                });
                let _ = answers.map(Some).all(&mut each);
            }
            each(None);
        };
        crate::sys::start_thread("watch", 256 * 1024, read).is_ok()
    }
}

fn written(body: &impl Serialize) -> Answer<Vec<u8>> {
    serde_json::to_vec(body).map_err(|error| Failure::Unknown(error.to_string()))
}

/// What a member has answered.
fn answer_of<T: DeserializeOwned>(
    sent: std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Answer<T> {
    let unanswered = |error| Failure::unanswered(&error);
    let mut answer = sent.map_err(unanswered)?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(MAX_ANSWER);
    let text = body.read_to_vec().map_err(unanswered)?;
    if status != 200 {
        return Err(Failure::of_answer(status, &text));
    }
    serde_json::from_slice(&text)
        .map_err(|error| Failure::Unknown(format!("its answer cannot be read: {error}")))
}
