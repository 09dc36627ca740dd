//! Requests to the servers of a store.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::address::{Address, Member};
use super::connection::Connection;
use super::failure::{remedy, unreadable};
use super::listen;
use super::members::examine;
use super::messages::{Said, call, of_txn};
use crate::cluster::engine::{Answer, Engine, EngineLimits, Failure, Listener, TIMEOUT};
use crate::cluster::txn::{Epoch, Lease, Read, ReadAnswer, Txn, TxnAnswer, Watch};
use crate::finding::Finding;
use crate::sys::{locked, random_u64};

/// From when on a connection is not kept for the next renewal: a server process costs more than a sign-in each third of
/// a TTL.
const OFTEN: Duration = Duration::from_secs(3);

/// How often a keeper looks at its hold. It does not listen, which would take a server process for each hold.
const LOOKS: Duration = Duration::from_secs(10);

/// The servers of a store. One of them is asked, until it does not answer.
pub(super) struct Server {
    address: Address,
    current: AtomicUsize,
    idle: Mutex<Option<Connection>>,
    /// When it was asked last.
    asked: Mutex<Option<Instant>>,
}

impl Server {
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            current: AtomicUsize::new(0),
            idle: Mutex::new(None),
            asked: Mutex::new(None),
        }
    }

    fn current(&self) -> Option<&Member> {
        self.address
            .members
            .get(self.current.load(Ordering::Relaxed))
    }

    /// A connection that was used before, or a new one.
    fn connection(&self) -> Answer<Connection> {
        let idle = locked(&self.idle).take();
        if let Some(mut connection) = idle
            && connection.is_silent()
        {
            return Ok(connection);
        }
        let member = self.current().ok_or_else(unreadable)?;
        Connection::open(&self.address, member, TIMEOUT)
    }

    /// The connection is kept for the next request, but not by a renewal whose next one comes as late as this.
    fn ask(&self, request: &Value, timeout: Duration) -> Answer<(Said, Epoch)> {
        let before = locked(&self.asked).replace(Instant::now());
        let is_rare = before.is_none_or(|before| before.elapsed() > OFTEN);
        let renews = request.get("keep").is_some();
        let mut connection = self.connection()?;
        let said = connection.ask(&call(&self.address.prefix, request), timeout)?;
        if !(renews && is_rare) {
            *locked(&self.idle) = Some(connection);
        }
        let said = Said::read(said)?;
        let epoch = said.epoch(self.current.load(Ordering::Relaxed));
        Ok((said, epoch))
    }
}

impl Engine for Server {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn title(&self) -> &'static str {
        "PostgreSQL"
    }

    fn url(&self) -> &str {
        &self.address.url
    }

    fn prefix(&self) -> &str {
        &self.address.prefix
    }

    fn limits(&self) -> EngineLimits {
        EngineLimits {
            operations: usize::MAX,
            while_busy: None,
            looks_each: Some(LOOKS),
            ticket_seconds: 130,
            look: Duration::from_secs(100),
            // Each request is a statement of its own.
            has_lease_ready: false,
        }
    }

    fn members(&self) -> usize {
        self.address.members.len()
    }

    fn member(&self) -> &str {
        self.current().map_or("", |member| &member.text)
    }

    fn go_on(&self) {
        let next = (self.current.load(Ordering::Relaxed) + 1) % self.address.members.len().max(1);
        self.current.store(next, Ordering::Relaxed);
        *locked(&self.idle) = None;
    }

    fn txn(&self, txn: &Txn, timeout: Duration) -> Answer<TxnAnswer> {
        let (said, epoch) = self.ask(&of_txn(txn), timeout)?;
        Ok(said.into_answer(epoch))
    }

    fn read(&self, read: &Read) -> Answer<ReadAnswer> {
        let answer = self.txn(&Txn::of_reads([read.clone()]), TIMEOUT)?;
        answer.answers.into_iter().next().ok_or_else(unreadable)
    }

    fn grant(&self, seconds: i64) -> Answer<Lease> {
        // Positive, and never the same.
        let id = (random_u64() >> 1).cast_signed().max(1);
        let (_, epoch) = self.ask(&json!({ "grant": [id, seconds] }), TIMEOUT)?;
        Ok(Lease {
            id,
            ttl: seconds,
            epoch,
        })
    }

    fn keep(&self, lease: i64, timeout: Duration) -> Answer<Lease> {
        let (said, epoch) = self.ask(&json!({ "keep": lease }), timeout)?;
        Ok(said.kept(lease, epoch))
    }

    fn keep_and_check(
        &self,
        lease: i64,
        check: &Txn,
        timeout: Duration,
    ) -> (Option<Lease>, Answer<TxnAnswer>) {
        let mut request = of_txn(check);
        if let Some(request) = request.as_object_mut() {
            request.insert("keep".to_owned(), lease.into());
        }
        match self.ask(&request, timeout) {
            Ok((said, epoch)) => (Some(said.kept(lease, epoch)), Ok(said.into_answer(epoch))),
            Err(failure) => (None, Err(failure)),
        }
    }

    fn revoke(&self, lease: i64) -> Answer<()> {
        self.ask(&json!({ "revoke": lease }), TIMEOUT)?;
        Ok(())
    }

    fn time_left(&self, lease: i64) -> Answer<Option<Duration>> {
        Ok(self.ask(&json!({ "left": lease }), TIMEOUT)?.0.left())
    }

    fn watch(&self, watches: &[Watch], each: Listener) -> bool {
        let Some(member) = self.current().cloned() else {
            return false;
        };
        listen::start(self.address.clone(), member, watches, each).is_ok()
    }

    fn epoch(&self, timeout: Duration) -> Answer<Epoch> {
        Ok(self.ask(&json!({ "reads": [] }), timeout)?.1)
    }

    /// A server that is promoted, or that recovers up to some time, begins another timeline.
    fn is_continued(&self, before: Epoch, now: Epoch) -> bool {
        now.is_of_server(before) && now.is_of_term(before)
    }

    fn version(&self) -> Answer<String> {
        let connection = self.connection()?;
        let version = connection.version.clone();
        *locked(&self.idle) = Some(connection);
        Ok(version)
    }

    fn examine(&self) -> (Vec<Finding>, bool) {
        examine(&self.address)
    }

    fn remedy(&self, said: &[&Failure]) -> Option<String> {
        Some(remedy(said, &self.address))
    }

    fn create(&self) -> Vec<Finding> {
        let made = self
            .connection()
            .and_then(|mut connection| connection.ask(include_str!("schema.sql"), TIMEOUT * 5));
        let member = self.member();
        vec![match made {
            Ok(_) => Finding::ok("schema", format!("{member}: `onehold` is there")),
            Err(failure) => {
                let advice = "it takes a role that may create a schema in this database, or the owner of `onehold`";
                Finding::failed("schema", format!("{member}: {}", failure.message)).advice(advice)
            }
        }]
    }
}
