//! Requests and answers of etcd's JSON gateway.
//!
//! Keys and values are base64, numbers of 64 bits are text, and what is zero, false or empty is missing in
//! answers. etcd ignores fields that it does not know, so that a misspelt comparison would be none: bodies
//! are made of these types only.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::keys::only;
use crate::record::is_default;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
fn as_text<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

fn as_base64<S: Serializer>(bytes: &impl AsRef<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes.as_ref()))
}

/// A range as etcd names it, beside other fields. Without an end it is one key.
fn as_range<S: Serializer>(range: &Range<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_map(None)?;
    fields.serialize_entry("key", &STANDARD.encode(&range.start))?;
    if !range.end.is_empty() {
        fields.serialize_entry("range_end", &STANDARD.encode(&range.end))?;
    }
    fields.end()
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let text = Cow::<str>::deserialize(deserializer)?;
    // The unsigned IDs of clusters and members may not fit; they are only compared.
    text.parse::<i64>()
        .or_else(|_| text.parse::<u64>().map(u64::cast_signed))
        .map_err(serde::de::Error::custom)
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum Relation {
    Equal,
    Greater,
    Less,
}

/// One condition of a [`Txn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Compare {
    /// Without an end it is one key.
    #[serde(flatten, serialize_with = "as_range")]
    pub(super) range: Range<String>,
    pub(super) result: Relation,
    #[serde(flatten)]
    pub(super) target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "target", rename_all = "UPPERCASE")]
pub(super) enum Target {
    Create {
        #[serde(serialize_with = "as_text")]
        create_revision: i64,
    },
    Mod {
        #[serde(serialize_with = "as_text")]
        mod_revision: i64,
    },
    Value {
        #[serde(serialize_with = "as_base64")]
        value: String,
    },
    Lease {
        #[serde(serialize_with = "as_text")]
        lease: i64,
    },
}

impl Compare {
    fn all(range: Range<String>, result: Relation, target: Target) -> Self {
        Self {
            range,
            result,
            target,
        }
    }

    fn one(key: &str, result: Relation, target: Target) -> Self {
        Self::all(key.to_owned()..String::new(), result, target)
    }

    /// There is no such key.
    pub(super) fn is_missing(key: &str) -> Self {
        Self::was_created_at(key, 0)
    }

    pub(super) fn was_created_at(key: &str, create_revision: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Create { create_revision })
    }

    /// It was last written at this revision; 0: there is none.
    pub(super) fn was_modified_at(key: &str, mod_revision: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Mod { mod_revision })
    }

    /// Nothing in a range has been written after this revision.
    pub(super) fn is_unwritten_since(range: Range<String>, revision: i64) -> Self {
        let mod_revision = revision.saturating_add(1);
        Self::all(range, Relation::Less, Target::Mod { mod_revision })
    }

    /// Nothing in a range has been created after this revision; 0: it is empty.
    pub(super) fn has_nothing_newer(range: Range<String>, revision: i64) -> Self {
        let create_revision = revision.saturating_add(1);
        Self::all(range, Relation::Less, Target::Create { create_revision })
    }

    /// There is something in a range, and nothing that was created before this revision.
    pub(super) fn has_nothing_older(range: Range<String>, revision: i64) -> Self {
        let create_revision = revision.saturating_sub(1);
        Self::all(range, Relation::Greater, Target::Create { create_revision })
    }

    /// It is there, and its value comes before this one.
    pub(super) fn is_below(key: &str, value: String) -> Self {
        Self::one(key, Relation::Less, Target::Value { value })
    }

    pub(super) fn has_lease(key: &str, lease: i64) -> Self {
        Self::one(key, Relation::Equal, Target::Lease { lease })
    }
}

/// What is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Read {
    #[serde(flatten, serialize_with = "as_range")]
    pub(super) range: Range<String>,
    /// 0: no limit.
    #[serde(serialize_with = "as_text", skip_serializing_if = "is_default")]
    pub(super) limit: i64,
    /// 0: the latest one.
    #[serde(serialize_with = "as_text", skip_serializing_if = "is_default")]
    pub(super) revision: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) keys_only: bool,
}

impl Read {
    /// Everything in a range, as it is now.
    pub(super) fn all(range: Range<String>) -> Self {
        Self {
            range,
            ..Self::default()
        }
    }

    /// One key, as it is now.
    pub(super) fn one(key: &str) -> Self {
        Self::all(only(key))
    }
}

/// One operation of a [`Txn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) enum Operation {
    #[serde(rename = "request_range")]
    Read(Read),
    #[serde(rename = "request_put")]
    Put {
        #[serde(serialize_with = "as_base64")]
        key: String,
        #[serde(serialize_with = "as_base64")]
        value: Vec<u8>,
        /// 0: none.
        #[serde(serialize_with = "as_text", skip_serializing_if = "is_default")]
        lease: i64,
    },
    #[serde(rename = "request_delete_range")]
    Delete(#[serde(serialize_with = "as_range")] Range<String>),
}

/// Operations that are done at once, if all conditions hold; else others are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Txn {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Operation>,
    pub(super) failure: Vec<Operation>,
}

impl Txn {
    /// Only reads.
    pub(super) fn of_reads(reads: impl IntoIterator<Item = Read>) -> Self {
        Self {
            success: reads.into_iter().map(Operation::Read).collect(),
            ..Self::default()
        }
    }

    /// Adds a condition, once.
    pub(super) fn only_if(&mut self, compare: Compare) {
        if !self.compare.contains(&compare) {
            self.compare.push(compare);
        }
    }

    /// Writes a key. `lease`: 0 for none.
    pub(super) fn put(&mut self, key: &str, value: &[u8], lease: i64) {
        self.success.push(Operation::Put {
            key: key.to_owned(),
            value: value.to_owned(),
            lease,
        });
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.success.push(Operation::Delete(only(key)));
    }

    /// Deletes a record that has not changed since, and whose life key is gone.
    pub(super) fn delete_dead(&mut self, hold: &str, life: &str, modified: i64) {
        self.only_if(Compare::was_modified_at(hold, modified));
        self.only_if(Compare::is_missing(life));
        self.delete(hold);
    }

    /// Reads a key if the conditions do not hold.
    pub(super) fn else_read(&mut self, key: &str) {
        self.failure.push(Operation::Read(Read::one(key)));
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Grant {
    /// In seconds.
    #[serde(rename = "TTL", serialize_with = "as_text")]
    pub(super) ttl: i64,
}

#[derive(Debug, Serialize)]
pub(super) struct OfLease {
    #[serde(rename = "ID", serialize_with = "as_text")]
    pub(super) id: i64,
}

#[derive(Debug, Serialize)]
pub(super) struct Nothing {}

#[derive(Serialize)]
pub(super) struct Authenticate<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

/// A watch starts at the current revision, which the answer to its creation names. The caller reads what happened
/// before. A watch that starts at an older revision is slower: etcd catches up on such watches only every 100 ms,
/// even if nothing has changed in their ranges (`syncWatchersLoop` in its mvcc package).
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Watch {
    CreateRequest {
        #[serde(flatten, serialize_with = "as_range")]
        range: Range<String>,
        filters: &'static [&'static str],
        /// Events tell what was there before.
        #[serde(skip_serializing_if = "is_default")]
        prev_kv: bool,
    },
}

impl Watch {
    /// Watches for every change in a range.
    pub(super) fn changes(range: Range<String>) -> Self {
        Self::CreateRequest {
            range,
            filters: &[],
            prev_kv: false,
        }
    }

    /// Watches for what is deleted in a range, and what that was.
    pub(super) fn deletions(range: Range<String>) -> Self {
        Self::CreateRequest {
            range,
            filters: &["NOPUT"],
            prev_kv: true,
        }
    }
}

/// What each answer begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "from_text")]
    pub(super) cluster_id: i64,
    #[serde(deserialize_with = "from_text")]
    pub(super) member_id: i64,
    #[serde(deserialize_with = "from_text")]
    pub(super) revision: i64,
    #[serde(deserialize_with = "from_text")]
    pub(super) raft_term: i64,
}

/// A key and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    #[serde(deserialize_with = "from_base64")]
    pub(super) key: Vec<u8>,
    #[serde(deserialize_with = "from_base64")]
    pub(super) value: Vec<u8>,
    #[serde(deserialize_with = "from_text")]
    pub(super) create_revision: i64,
    #[serde(deserialize_with = "from_text")]
    pub(super) mod_revision: i64,
    #[serde(deserialize_with = "from_text")]
    pub(super) lease: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadAnswer {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct OperationAnswer {
    pub(super) response_range: Option<ReadAnswer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TxnAnswer {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<OperationAnswer>,
}

impl TxnAnswer {
    /// The first key that each operation has found.
    pub(super) fn found(&self) -> impl Iterator<Item = Option<&KeyValue>> {
        self.responses.iter().map(|answer| {
            let range = answer.response_range.as_ref()?;
            range.kvs.first()
        })
    }

    /// Whether the first operation has found this.
    pub(super) fn shows_value(&self, value: &[u8]) -> bool {
        let found = self.found().next().flatten();
        found.is_some_and(|found| found.value == value)
    }
}

/// What is said of a lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseAnswer {
    pub(super) header: Header,
    #[serde(rename = "ID", deserialize_with = "from_text")]
    pub(super) id: i64,
    /// In seconds; 0 or less: it has ended.
    #[serde(rename = "TTL", deserialize_with = "from_text")]
    pub(super) ttl: i64,
}

/// Of a request that is answered more than once.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<Refusal>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusAnswer {
    pub(super) header: Header,
    pub(super) version: String,
    /// 0: it knows of none.
    #[serde(deserialize_with = "from_text")]
    pub(super) leader: i64,
    /// Alarms, among others.
    pub(super) errors: Vec<String>,
    #[serde(rename = "isLearner")]
    pub(super) is_learner: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AuthenticateAnswer {
    pub(super) token: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchAnswer {
    pub(super) header: Header,
    pub(super) created: bool,
    pub(super) canceled: bool,
    pub(super) events: Vec<Event>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) kv: KeyValue,
    /// What was there before, if the watch asks for it. `None`: it has been compacted.
    pub(super) prev_kv: Option<KeyValue>,
}

impl Event {
    pub(super) fn is_deletion(&self) -> bool {
        self.kind == "DELETE"
    }
}

/// Why a request was refused. `code` is one of gRPC's.
#[derive(Clone, Debug, Default, Deserialize)]
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
            keys_only: true,
            ..Read::all("a".to_owned().."b".to_owned())
        }));
        let expected = json!({
            "compare": [
                {"key": "YQ==", "target": "CREATE", "result": "EQUAL", "create_revision": "0"},
                {"key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "7"},
                {"key": "YQ==", "range_end": "Yg==", "target": "MOD", "result": "LESS", "mod_revision": "8"},
                {"key": "YQ==", "target": "VALUE", "result": "LESS", "value": "NQ=="},
                {"key": "YQ==", "target": "LEASE", "result": "EQUAL", "lease": "9"},
            ],
            "success": [
                {"request_put": {"key": "YQ==", "value": "eA==", "lease": "9"}},
                {"request_put": {"key": "YQ==", "value": "eA=="}},
                {"request_delete_range": {"key": "YQ==", "range_end": "YQA="}},
            ],
            "failure": [{"request_range": {"key": "YQ==", "range_end": "Yg==", "limit": "2", "keys_only": true}}],
        });
        assert_eq!(serde_json::to_value(&txn).expect("JSON"), expected);
    }

    #[test]
    fn answers_of_several_versions_are_read() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"12","raft_term":"2"},
            "succeeded":true,"responses":[{"response_range":{"header":{"revision":"12"},
            "kvs":[{"key":"YQ==","create_revision":"3","mod_revision":"4","version":"2","value":"eA==","lease":"7"}],"more":true,"count":"2"}},
            {"response_put":{"header":{"revision":"12"}}}]}"#;
        let answer: TxnAnswer = serde_json::from_str(text).expect("3.4 and 3.5");
        assert!(answer.succeeded && answer.header.revision == 12);
        let read = answer.responses[0].response_range.clone().expect("a range");
        assert!(read.more && read.kvs[0].key == b"a" && read.kvs[0].lease == 7);
        let nothing: TxnAnswer =
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
