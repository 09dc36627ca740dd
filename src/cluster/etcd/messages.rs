//! Requests and answers of etcd's JSON gateway.
//!
//! Keys and values are base64, numbers of 64 bits are text, and what is zero, false or empty is missing in
//! answers. etcd ignores fields that it does not know, so that a misspelt comparison would be none: only this file
//! names them.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::cluster::txn::{
    Compare, Epoch, Event, KeyValue, Operation, Read, ReadAnswer, Relation, Target, Txn, TxnAnswer,
    Watch, WatchAnswer,
};

/// An object with these fields, without those that are null.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter();
    fields.filter(|(_, value)| !value.is_null()).collect()
}

fn base64(bytes: impl AsRef<[u8]>) -> Value {
    STANDARD.encode(bytes).into()
}

fn number(number: i64) -> Value {
    number.to_string().into()
}

fn unless_zero(value: i64) -> Value {
    (value != 0).then(|| value.to_string()).into()
}

/// Of a range without an end, which is one key, it is missing.
fn end(range: &Range<String>) -> Value {
    let end = (!range.end.is_empty()).then(|| STANDARD.encode(&range.end));
    end.into()
}

fn comparison(compare: &Compare) -> Value {
    let (target, field, value) = match &compare.target {
        Target::Created(revision) => ("CREATE", "create_revision", number(*revision)),
        Target::Modified(revision) => ("MOD", "mod_revision", number(*revision)),
        Target::Value(value) => ("VALUE", "value", base64(value)),
        Target::Lease(lease) => ("LEASE", "lease", number(*lease)),
    };
    let result = match compare.relation {
        Relation::Equal => "EQUAL",
        Relation::Greater => "GREATER",
        Relation::Less => "LESS",
    };
    object([
        ("key", base64(&compare.range.start)),
        ("range_end", end(&compare.range)),
        ("target", target.into()),
        ("result", result.into()),
        (field, value),
    ])
}

fn operation(operation: &Operation) -> Value {
    let (kind, request) = match operation {
        Operation::Read(read) => ("request_range", of_read(read)),
        Operation::Put { key, value, lease } => {
            let put = [
                ("key", base64(key)),
                ("value", base64(value)),
                ("lease", unless_zero(*lease)),
            ];
            ("request_put", object(put))
        }
        Operation::Delete(range) => {
            let range = [("key", base64(&range.start)), ("range_end", end(range))];
            ("request_delete_range", object(range))
        }
    };
    object([(kind, request)])
}

pub(super) fn of_read(read: &Read) -> Value {
    object([
        ("key", base64(&read.range.start)),
        ("range_end", end(&read.range)),
        ("limit", unless_zero(read.limit)),
        ("revision", unless_zero(read.revision)),
        ("keys_only", read.keys_only.then_some(true).into()),
    ])
}

pub(super) fn of_txn(txn: &Txn) -> Value {
    object([
        ("compare", txn.compare.iter().map(comparison).collect()),
        ("success", txn.success.iter().map(operation).collect()),
        ("failure", txn.failure.iter().map(operation).collect()),
    ])
}

/// Watches start at the current revision, which the answer to their creation names. A watch that starts at an older one
/// is slower: etcd catches up on such watches only every 100 ms, even if nothing has changed in their ranges
/// (`syncWatchersLoop` in its mvcc package).
pub(super) fn of_watches(watches: &[Watch]) -> String {
    let create = |watch: &Watch| {
        let (range, only_deletions) = match watch {
            Watch::Changes(range) => (range, None),
            Watch::Deletions(range) => (range, Some(true)),
        };
        let request = object([
            ("key", base64(&range.start)),
            ("range_end", end(range)),
            ("filters", only_deletions.map(|_| ["NOPUT"]).into()),
            ("prev_kv", only_deletions.into()),
        ]);
        object([("create_request", request)]).to_string()
    };
    watches.iter().map(create).collect()
}

pub(super) fn of_grant(seconds: i64) -> Value {
    object([("TTL", number(seconds))])
}

pub(super) fn of_lease(id: i64) -> Value {
    object([("ID", number(id))])
}

pub(super) fn nothing() -> Value {
    object([])
}

pub(super) fn of_user(name: &str, password: String) -> Value {
    object([("name", name.into()), ("password", password.into())])
}

/// A number of 64 bits. Those of clusters and members have no sign and may not fit; they are only compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Number(pub(super) i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse::<i64>()
            .or_else(|_| text.parse::<u64>().map(u64::cast_signed))
            .map(Self)
            .map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Default)]
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map(Self);
        bytes.map_err(serde::de::Error::custom)
    }
}

/// What each answer begins with.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) cluster_id: Number,
    pub(super) member_id: Number,
    pub(super) revision: Number,
    pub(super) raft_term: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyMessage {
    key: Bytes,
    value: Bytes,
    create_revision: Number,
    mod_revision: Number,
    lease: Number,
}

impl From<KeyMessage> for KeyValue {
    fn from(found: KeyMessage) -> Self {
        Self {
            key: found.key.0,
            value: found.value.0,
            create_revision: found.create_revision.0,
            mod_revision: found.mod_revision.0,
            lease: found.lease.0,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadMessage {
    pub(super) header: Header,
    kvs: Vec<KeyMessage>,
    more: bool,
}

impl From<ReadMessage> for ReadAnswer {
    fn from(answer: ReadMessage) -> Self {
        Self {
            revision: answer.header.revision.0,
            kvs: answer.kvs.into_iter().map(KeyValue::from).collect(),
            more: answer.more,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OperationMessage {
    response_range: ReadMessage,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnMessage {
    pub(super) header: Header,
    succeeded: bool,
    responses: Vec<OperationMessage>,
}

impl TxnMessage {
    pub(super) fn into_answer(self, epoch: Epoch) -> TxnAnswer {
        let answers = self.responses.into_iter();
        TxnAnswer {
            revision: self.header.revision.0,
            epoch,
            succeeded: self.succeeded,
            answers: answers.map(|of| of.response_range.into()).collect(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseMessage {
    pub(super) header: Header,
    #[serde(rename = "ID")]
    pub(super) id: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// Of a request that is answered more than once.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Refusal>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusMessage {
    pub(super) header: Header,
    pub(super) version: String,
    /// 0: it knows of none.
    pub(super) leader: Number,
    /// Alarms, among others.
    pub(super) errors: Vec<String>,
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenMessage {
    pub(super) token: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchMessage {
    header: Header,
    created: bool,
    canceled: bool,
    events: Vec<EventMessage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventMessage {
    #[serde(rename = "type")]
    kind: String,
    kv: KeyMessage,
    /// Missing if it has been compacted.
    prev_kv: Option<KeyMessage>,
}

impl WatchMessage {
    /// `None`: it has ended.
    pub(super) fn into_answer(self) -> Option<WatchAnswer> {
        let event = |event: EventMessage| Event {
            key: String::from_utf8_lossy(&event.kv.key.0).into_owned(),
            revision: event.kv.mod_revision.0,
            is_deletion: event.kind == "DELETE",
            before: event.prev_kv.map(|before| before.value.0),
        };
        (!self.canceled).then(|| WatchAnswer {
            has_begun: self.created,
            revision: self.header.revision.0,
            events: self.events.into_iter().map(event).collect(),
        })
    }
}

/// Why a request was refused. `code` is one of gRPC's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    #[serde(alias = "grpc_code")]
    pub(super) code: i64,
    pub(super) message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_are_what_etcd_reads() {
        let mut txn = Txn::default();
        for compare in [
            Compare::is_missing("a"),
            Compare::is_missing("a"),
            Compare::was_modified_at("a", 7),
            Compare::is_unwritten_since("a".to_owned().."b".to_owned(), 7),
            Compare::has_nothing_older("a".to_owned().."b".to_owned(), 7),
            Compare::is_below("a", "5".to_owned()),
            Compare::has_lease("a", 9),
        ] {
            txn.only_if(compare);
        }
        txn.put("a", b"x", 9);
        txn.put("a", b"x", 0);
        txn.delete("a");
        txn.failure.push(Operation::Read(Read {
            limit: 2,
            revision: 3,
            keys_only: true,
            ..Read::all("a".to_owned().."b".to_owned())
        }));
        let expected = json!({
            "compare": [
                {"key": "YQ==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
                {"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "7"},
                {"key": "YQ==", "range_end": "Yg==", "target": "MOD", "result": "LESS", "mod_revision": "8"},
                {"key": "YQ==", "range_end": "Yg==", "target": "CREATE", "result": "GREATER", "create_revision": "6"},
                {"key": "YQ==", "target": "VALUE", "result": "LESS", "value": "NQ=="},
                {"key": "YQ==", "target": "LEASE", "result": "EQUAL", "lease": "9"},
            ],
            "success": [
                {"request_put": {"key": "YQ==", "value": "eA==", "lease": "9"}},
                {"request_put": {"key": "YQ==", "value": "eA=="}},
                {"request_delete_range": {"key": "YQ==", "range_end": "YQE="}},
            ],
            "failure": [{"request_range": {"key": "YQ==", "range_end": "Yg==", "limit": "2", "revision": "3", "keys_only": true}}],
        });
        assert_eq!(of_txn(&txn), expected);
        let range = || "a".to_owned().."b".to_owned();
        assert_eq!(
            of_watches(&[Watch::Changes(range()), Watch::Deletions(range())]),
            concat!(
                r#"{"create_request":{"key":"YQ==","range_end":"Yg=="}}"#,
                r#"{"create_request":{"filters":["NOPUT"],"key":"YQ==","prev_kv":true,"range_end":"Yg=="}}"#
            )
        );
        assert_eq!(of_grant(5), json!({"TTL": "5"}));
        assert_eq!(of_lease(-5), json!({"ID": "-5"}));
        assert_eq!(
            of_user("me", "x".to_owned()),
            json!({"name": "me", "password": "x"})
        );
        assert_eq!(nothing(), json!({}));
    }

    #[test]
    fn answers_of_several_versions_are_read() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"12","raft_term":"2"},
            "succeeded":true,"responses":[{"response_range":{"header":{"revision":"12"},
            "kvs":[{"key":"YQ==","create_revision":"3","mod_revision":"4","version":"2","value":"eA==","lease":"7"}],"more":true,"count":"2"}},
            {"response_put":{"header":{"revision":"12"}}}]}"#;
        let answer: TxnMessage = serde_json::from_str(text).expect("3.4 and 3.5");
        let answer = answer.into_answer(Epoch::default());
        assert!(answer.succeeded && answer.revision == 12);
        let [read, written] = &answer.answers[..] else {
            panic!("{answer:?}");
        };
        assert!(read.more && read.kvs[0].key == b"a" && read.kvs[0].lease == 7);
        assert!(written.kvs.is_empty());
        let nothing: TxnMessage =
            serde_json::from_str(r#"{"header":{}}"#).expect("zeroes are missing");
        assert!(!nothing.succeeded && nothing.responses.is_empty());
        for refusal in [
            r#"{"error":"etcdserver: x","code":14,"message":"etcdserver: x"}"#,
            r#"{"code":14,"message":"etcdserver: x","details":[]}"#,
            r#"{"grpc_code":14,"http_code":503,"message":"etcdserver: x","http_status":"Service Unavailable"}"#,
        ] {
            let refusal: Refusal = serde_json::from_str(refusal).expect(refusal);
            assert_eq!((refusal.code, &*refusal.message), (14, "etcdserver: x"));
        }
    }
}
