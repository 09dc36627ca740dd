//! Requests to an etcd cluster, by the JSON gateway of its members.

use std::io::{BufRead, BufReader};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::RequestBuilder;
use ureq::typestate::WithBody;

use super::address::{Address, EtcdAccess};
use super::failure::{
    against_refusal, against_silence, is_about_connecting, is_of_pass, is_refused_with, of_answer,
    of_refusal, other_cluster, unanswered,
};
use super::members::examine;
use super::messages::{
    self, Header, LeaseMessage, ReadMessage, StatusMessage, Streamed, TokenMessage, TxnMessage,
    WatchMessage,
};
use super::transport::Transport;
use super::user::{Pass, User};
use crate::backend::{Deadline, Patience};
use crate::cluster::engine::{Answer, Engine, EngineLimits, Failure, Kind, Listener, TIMEOUT};
use crate::cluster::txn::{Epoch, Lease, Read, ReadAnswer, Txn, TxnAnswer, Watch};
use crate::error::Result;
use crate::finding::Finding;
use crate::sys::wait::pause;
use crate::sys::{locked, random_u64};

/// The largest answer: a page of records, each of them smaller than etcd's limit for a request.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;

/// For how long one watch is read. Its thread then ends.
const WATCH_LIMIT: Duration = Duration::from_mins(5);

/// How long a member may take to accept a connection until the others are asked as well.
const FIRST_CONNECT: Duration = Duration::from_millis(200);

/// How long a caller waits for a sign-in at least. A member spends 0.1 s of a processor on each (`--bcrypt-cost`), also
/// for a caller that has given up. So a crontab line of 200 machines keeps it busy for many seconds.
const SIGN_IN: Duration = Duration::from_secs(30);

/// How often one member is asked to sign a user in that it has answered otherwise, and for how long to pause before.
const SIGN_INS: u32 = 4;
const SIGN_IN_PAUSE_MS: u64 = 2_000;

/// Requests that need no token: a keepalive up to the versions 3.4.41, 3.5.27 and 3.6.8, the other one mostly.
const KEEP_ALIVE: &str = "/v3/lease/keepalive";
const STATUS: &str = "/v3/maintenance/status";
const GRANT: &str = "/v3/lease/grant";

/// The members of a cluster. One of them is asked, until it does not answer.
pub(super) struct Gateway {
    address: Address,
    access: EtcdAccess,
    transport: Transport,
    user: Option<User>,
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

impl Gateway {
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

    /// What one of the members says of itself.
    fn status_of(&self, endpoint: &str) -> Answer<StatusMessage> {
        let address = Address {
            endpoints: vec![endpoint.to_owned()],
            ..self.address.clone()
        };
        let member = Self::new(address, &self.access)
            .map_err(|error| Failure::new(Kind::Unanswered, error.to_string()))?;
        let engine: &dyn Engine = &member;
        engine.signed_in(Patience::SHORT, || member.status())
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
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

    /// Asks for a token, in a thread, so that it can be waited for as long as the caller wants.
    fn authenticate(&self, user: &User, deadline: &Deadline<'_>) -> Answer<TokenMessage> {
        let body = messages::of_user(&user.name, user.password()).to_string();
        // Without the old token: etcd refuses any request with a token that has ended.
        let request = self.request(None, "/v3/auth/authenticate", TIMEOUT, TIMEOUT);
        let request = request.config().timeout_recv_response(Some(SIGN_IN * 4));
        let request = request.build();
        let (sender, answered) = mpsc::sync_channel(1);
        let ask = move || {
            let _ = sender.send(answer_to(request.send(&body)));
        };
        crate::sys::start_thread("sign-in", 256 * 1024, ask)
            .map_err(|error| Failure::new(Kind::Unanswered, error.to_string()))?;
        while let Some(left) = deadline.next_sleep(SIGN_IN) {
            match answered.recv_timeout(left) {
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Ok(answer) => return answer,
            }
        }
        let message = "no answer to a sign-in in time";
        Err(Failure::new(Kind::Unanswered, message))
    }

    /// Sends a request to one member, once.
    fn post<T: DeserializeOwned>(&self, path: &str, body: &Value, timeout: Duration) -> Answer<T> {
        let pass = self.pass().clone();
        let needs_token = self.user.is_some() && ![KEEP_ALIVE, STATUS].contains(&path);
        if needs_token && pass == Pass::None {
            return Err(signed_out());
        }
        self.ask(pass.token(), path, body, timeout)
            .map_err(|failure| self.sent_with(&pass, failure))
    }

    /// A failure of a request that was sent with this pass: perhaps the user has to sign in.
    fn sent_with(&self, pass: &Pass, failure: Failure) -> Failure {
        if self.user.is_none() || !is_of_pass(&failure, pass.token().is_some()) {
            return failure;
        }
        let mut now = self.pass();
        // Another thread may have signed in again.
        if *now == *pass {
            *now = Pass::None;
        }
        signed_out()
    }

    /// Sends a request with this token.
    fn ask<T: DeserializeOwned>(
        &self,
        token: Option<&str>,
        path: &str,
        body: &Value,
        timeout: Duration,
    ) -> Answer<T> {
        let body = body.to_string();
        let is_one_of_many =
            self.address.endpoints.len() > 1 && !self.has_answered.load(Ordering::Relaxed);
        let connect = if is_one_of_many {
            FIRST_CONNECT.min(timeout)
        } else {
            timeout
        };
        let attempt = |connect| self.request(token, path, timeout, connect).send(&body);
        let mut sent = attempt(connect);
        if is_one_of_many
            && sent.as_ref().is_err_and(is_about_connecting)
            && self.go_to_the_first(timeout)
        {
            sent = attempt(timeout);
        }
        let mut answer = answer_to(sent);
        if let Err(failure) = &answer
            && failure.is_unanswered()
            && self
                .transport
                .has_new_certificates(&self.address, &self.access)
            && failure.kind == Kind::Untrusted
        {
            answer = answer_to(attempt(timeout));
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
            .post(format!("{scheme}://{}{path}", self.member()))
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

    /// Notes which cluster this member is of. Endpoints of two clusters would be two stores.
    fn note(&self, header: Header, member: usize) -> Answer<Epoch> {
        let (known, answered) = (&self.cluster, header.cluster_id.0);
        match known.load(Ordering::Relaxed) {
            0 => known.store(answered, Ordering::Relaxed),
            known if known != answered => return Err(other_cluster(self.member())),
            _ => {}
        }
        Ok(Epoch::new(member, answered, header.raft_term.0))
    }

    fn lease(&self, answer: &LeaseMessage, member: usize) -> Answer<Lease> {
        Ok(Lease {
            id: answer.id.0,
            ttl: answer.ttl.0,
            epoch: self.note(answer.header, member)?,
        })
    }

    /// What the member says of itself.
    fn status(&self) -> Answer<StatusMessage> {
        self.post(STATUS, &messages::nothing(), TIMEOUT)
    }
}

impl Engine for Gateway {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn title(&self) -> &'static str {
        "etcd"
    }

    fn url(&self) -> &str {
        &self.address.url
    }

    fn prefix(&self) -> &str {
        &self.address.prefix
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits {
            // `--max-txn-ops`
            operations: 128,
            // Sign-ins of others may keep members so busy that they lose their leader.
            while_busy: self.user.as_ref().map(|_| SIGN_IN),
            looks_each: None,
            ticket_seconds: 30,
            look: Duration::from_mins(1),
            has_lease_ready: true,
        }
    }

    fn members(&self) -> usize {
        self.address.endpoints.len()
    }

    fn member(&self) -> &str {
        let endpoints = &self.address.endpoints;
        endpoints.get(self.current()).map_or("", String::as_str)
    }

    fn go_on(&self) {
        let from = self.current();
        self.failed.store(from, Ordering::Relaxed);
        self.go_to((from + 1) % self.address.endpoints.len().max(1));
    }

    /// Signs the user in, unless another thread has done that meanwhile.
    ///
    /// It stays with one member: that one works on after a caller has given up, so to ask the next one makes all of
    /// them slower.
    fn sign_in(&self, patience: Patience<'_>) -> Answer<()> {
        let Some(user) = &self.user else {
            return Ok(());
        };
        if patience.at_most.is_zero() {
            return Err(signed_out());
        }
        let _one_at_a_time = locked(&self.signing_in);
        if *self.pass() != Pass::None {
            return Ok(());
        }
        if !self.has_answered.load(Ordering::Relaxed) {
            // One that is away must not be waited for. Whatever it says, it is there.
            let status = self.ask::<StatusMessage>(None, STATUS, &messages::nothing(), TIMEOUT);
            if let Some(failure) = status.err().filter(|failure| !failure.is_refusal()) {
                return Err(failure);
            }
        }
        let deadline = Deadline::of(patience.for_at_most(patience.at_most.max(SIGN_IN)));
        let mut tries = 0;
        let pass = loop {
            match self.authenticate(user, &deadline) {
                Ok(answer) => break Pass::Token(answer.token),
                // As etcd's own clients do: so it can be turned on while there are holds.
                Err(failure) if is_refused_with(&failure, "authentication is not enabled") => {
                    break Pass::NotNeeded;
                }
                Err(failure)
                    if is_refused_with(&failure, "authentication failed")
                        && user.has_new_password() => {}
                // It is too busy.
                Err(failure) if failure.kind == Kind::Unknown => {
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

    fn txn(&self, txn: &Txn, timeout: Duration) -> Answer<TxnAnswer> {
        let answer: TxnMessage = self.post("/v3/kv/txn", &messages::of_txn(txn), timeout)?;
        let epoch = self.note(answer.header, self.current())?;
        Ok(answer.into_answer(epoch))
    }

    fn read(&self, read: &Read) -> Answer<ReadAnswer> {
        let answer: ReadMessage = self.post("/v3/kv/range", &messages::of_read(read), TIMEOUT)?;
        self.note(answer.header, self.current())?;
        Ok(answer.into())
    }

    fn grant(&self, seconds: i64) -> Answer<Lease> {
        let answer: LeaseMessage = self.post(GRANT, &messages::of_grant(seconds), TIMEOUT)?;
        self.lease(&answer, self.current())
    }

    fn keep(&self, lease: i64, timeout: Duration) -> Answer<Lease> {
        // If another one answers in its place, the member is not the one that the next request asks.
        let (pass, member) = (self.pass().clone(), self.current());
        let body = messages::of_lease(lease);
        let answer: Streamed<LeaseMessage> = self.post(KEEP_ALIVE, &body, timeout)?;
        match (answer.result, answer.error) {
            (Some(kept), None) => self.lease(&kept, member),
            (_, error) => Err(self.sent_with(&pass, of_refusal(error.unwrap_or_default()))),
        }
    }

    fn revoke(&self, lease: i64) -> Answer<()> {
        let body = messages::of_lease(lease);
        let _: Value = self.post("/v3/lease/revoke", &body, TIMEOUT)?;
        Ok(())
    }

    fn time_left(&self, lease: i64) -> Answer<Option<Duration>> {
        let body = messages::of_lease(lease);
        let answer: LeaseMessage = self.post("/v3/lease/timetolive", &body, TIMEOUT)?;
        Ok(u64::try_from(answer.ttl.0).ok().map(Duration::from_secs))
    }

    /// Watches of etcd have lost events near compactions (before 3.4.31 and 3.4.36).
    fn watch(&self, watches: &[Watch], mut each: Listener) -> bool {
        let body = messages::of_watches(watches);
        let pass = self.pass().clone();
        let request = self.request(pass.token(), "/v3/watch", TIMEOUT, TIMEOUT);
        let request = request.config().timeout_recv_body(Some(WATCH_LIMIT));
        let request = request.build();
        let read = move || {
            if let Ok(answer) = request.send(&body) {
                let lines = BufReader::new(answer.into_body().into_reader()).lines();
                let lines = lines.map_while(std::io::Result::ok);
                let answers = lines.map_while(|line| {
                    let answer: Streamed<WatchMessage> = serde_json::from_str(&line).ok()?;
                    answer.result?.into_answer()
                });
                let _ = answers.map(Some).all(&mut each);
            }
            each(None);
        };
        crate::sys::start_thread("watch", 256 * 1024, read).is_ok()
    }

    /// The term of the leader, as a majority knows it: by a lease that ends by itself. Before 3.4.42, 3.5.28 and 3.6.9
    /// that needs no token.
    fn epoch(&self, timeout: Duration) -> Answer<Epoch> {
        let answer: LeaseMessage = self.ask(None, GRANT, &messages::of_grant(1), timeout)?;
        self.note(answer.header, self.current())
    }

    /// A restored snapshot begins with the first term again, and often with the same cluster ID.
    fn is_continued(&self, before: Epoch, now: Epoch) -> bool {
        now.is_of_server(before) && !now.is_of_earlier_term(before)
    }

    fn version(&self) -> Answer<String> {
        Ok(self.status()?.version)
    }

    fn examine(&self) -> (Vec<Finding>, bool) {
        examine(&self.address.endpoints, |member| self.status_of(member))
    }

    fn remedy(&self, said: &[&Failure]) -> Option<String> {
        match said {
            [refusal] if refusal.is_refusal() => {
                against_refusal(refusal, &self.address, self.user.is_some())
            }
            said => Some(against_silence(said, &self.address)),
        }
    }
}

fn signed_out() -> Failure {
    Failure::new(Kind::SignedOut, "the user has been signed out")
}

/// What a member has answered.
fn answer_to<T: DeserializeOwned>(
    sent: std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Answer<T> {
    let mut answer = sent.map_err(|error| unanswered(&error))?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(MAX_ANSWER);
    let text = body.read_to_vec().map_err(|error| unanswered(&error))?;
    if status != 200 {
        return Err(of_answer(status, &text));
    }
    serde_json::from_slice(&text).map_err(|error| {
        let message = format!("its answer cannot be read: {error}");
        Failure::new(Kind::Unknown, message)
    })
}
