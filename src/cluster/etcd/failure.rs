//! What the failures of etcd and of its gateway mean, and what may help.

use super::address::Address;
use super::messages::Refusal;
use crate::cluster::engine::{Failure, Kind, NO_ANSWER};
use crate::error::{Fault, begun_small, cause_text};

// Codes of gRPC (google.golang.org/grpc/codes).
const CANCELED: i64 = 1;
const UNKNOWN: i64 = 2;
const DEADLINE_EXCEEDED: i64 = 4;
const NOT_FOUND: i64 = 5;
const RESOURCE_EXHAUSTED: i64 = 8;
const ABORTED: i64 = 10;
const OUT_OF_RANGE: i64 = 11;
const INTERNAL: i64 = 13;
const UNAVAILABLE: i64 = 14;
const UNAUTHENTICATED: i64 = 16;

const NO_GATEWAY: &str = "no JSON gateway at this address";

const NO_HOST: &str = "no such host";

const NO_COMMON_NAME: &str =
    "use a client certificate without a common name: the gateway refuses others";

pub(super) const FREE_SPACE: &str =
    "free space: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`";

/// Of an answer with this status of HTTP.
pub(super) fn of_answer(status: u16, text: &[u8]) -> Failure {
    let refusal: Refusal = serde_json::from_slice(text).unwrap_or_default();
    let is_of_etcd = refusal.code != 0;
    // Of the path, and not of a lease.
    if status == 404 && (!is_of_etcd || refusal.message == "Not Found") {
        return Failure::new(Kind::NoServer, NO_GATEWAY);
    }
    if !is_of_etcd {
        let shown = String::from_utf8_lossy(text);
        let shown = shown.trim().lines().next().unwrap_or_default();
        let kind = match status {
            ..500 => Kind::NoServer,
            _ => Kind::Unknown,
        };
        return Failure::new(kind, format!("HTTP status {status}: {shown}"));
    }
    let mut failure = of_refusal(refusal);
    if status >= 500 {
        failure.kind = Kind::Unknown;
    }
    failure
}

/// Of an answer that says no.
pub(super) fn of_refusal(Refusal { code, message }: Refusal) -> Failure {
    let message = message.trim_start_matches("etcdserver: ").to_owned();
    let says = |text| message.contains(text);
    let kind = match code {
        // Later it may not be too busy.
        _ if says("too many requests") => Kind::Unknown,
        0 | CANCELED | UNKNOWN | DEADLINE_EXCEEDED | ABORTED | INTERNAL | UNAVAILABLE => {
            Kind::Unknown
        }
        NOT_FOUND => Kind::Refused(Fault::NoLease),
        OUT_OF_RANGE if says("compacted") => Kind::Refused(Fault::Compacted),
        UNAUTHENTICATED => Kind::Refused(Fault::Token),
        RESOURCE_EXHAUSTED if says("space") => Kind::Refused(Fault::NoSpace),
        _ if says("auth store is old") => Kind::Refused(Fault::Token),
        _ => Kind::Refused(Fault::Final),
    };
    Failure { kind, message }
}

/// Of a request without an answer, or without a whole one.
pub(super) fn unanswered(error: &ureq::Error) -> Failure {
    let message = match error {
        ureq::Error::BodyExceedsLimit(_) => {
            let kind = Kind::Refused(Fault::TooLarge);
            return Failure::new(kind, "the answer is too large");
        }
        ureq::Error::Timeout(_) if !is_about_connecting(error) => {
            return Failure::new(Kind::Silent, NO_ANSWER);
        }
        ureq::Error::Timeout(_) => NO_ANSWER.to_owned(),
        ureq::Error::Io(error) => begun_small(&cause_text(error)),
        ureq::Error::HostNotFound => NO_HOST.to_owned(),
        other => other.to_string(),
    };
    let kind = if is_about_certificates(&message) {
        Kind::Untrusted
    } else {
        Kind::Unanswered
    };
    Failure { kind, message }
}

/// Of a member of another cluster than the one that has answered before.
pub(super) fn other_cluster(endpoint: &str) -> Failure {
    let message = format!("{endpoint} is a member of another cluster");
    Failure::new(Kind::Refused(Fault::Final), message)
}

/// Whether it is refused for a token that has ended, or because there is none.
pub(super) fn is_of_pass(failure: &Failure, has_token: bool) -> bool {
    let says = |text| failure.message.contains(text);
    let is_without = !has_token && (says("user name is empty") || says("permission denied"));
    failure.kind == Kind::Refused(Fault::Token) || (failure.is_refusal() && is_without)
}

pub(super) fn is_refused_with(failure: &Failure, words: &str) -> bool {
    failure.is_refusal() && failure.message.contains(words)
}

/// What may help against a refusal.
pub(super) fn against_refusal(
    failure: &Failure,
    address: &Address,
    has_user: bool,
) -> Option<String> {
    let is = |text: &str| failure.message.contains(text);
    let grant = format!(
        "to grant it to a role of the user, run `etcdctl role grant-permission ROLE --prefix=true readwrite {}//`",
        address.prefix
    );
    let remedy = match failure.kind {
        _ if is("user name is empty") && has_user => NO_COMMON_NAME,
        _ if is("user name is empty") => "set ETCDCTL_USER and ETCDCTL_PASSWORD",
        _ if is("authentication failed") => "check ETCDCTL_USER and ETCDCTL_PASSWORD",
        _ if is("permission denied") => &grant,
        Kind::Refused(Fault::NoSpace) => FREE_SPACE,
        _ => return None,
    };
    Some(remedy.to_owned())
}

/// What may help if no member has done it, and these are their failures.
pub(super) fn against_silence(said: &[&Failure], address: &Address) -> String {
    let any = |is: fn(&str) -> bool| said.iter().any(|failure| is(&failure.message));
    // A member that does not trust a client closes the connection, mostly before it has said why. One that
    // expects the other scheme closes it as well.
    let is_closed = |message: &str| {
        matches!(
            message,
            "broken pipe"
                | "connection reset by peer"
                | "peer disconnected"
                | "unexpected end of file"
        )
    };
    let scheme = if address.is_encrypted { "https://" } else { "" };
    let endpoints = address.endpoints.iter();
    let endpoints: Vec<String> = endpoints.map(|one| format!("{scheme}{one}")).collect();
    let status = format!(
        "check that most members run: `etcdctl --endpoints={} endpoint status`",
        endpoints.join(",")
    );
    let remedy = match address.is_encrypted {
        _ if any(|message| message.contains("CommonName")) => NO_COMMON_NAME,
        _ if any(|message| message == NO_GATEWAY) => {
            "use etcd 3.4 or later, not behind `etcd grpc-proxy`, with --enable-grpc-gateway"
        }
        true if any(is_about_certificates) => "check ETCDCTL_CACERT, ETCDCTL_CERT and ETCDCTL_KEY",
        true if any(is_closed) => {
            "check ETCDCTL_CERT and ETCDCTL_KEY; if the members do not use TLS, use etcd:// instead of etcds://"
        }
        false if any(is_closed) => {
            "check whether the members use TLS; if so, use etcds:// instead of etcd://"
        }
        _ if any(|message| message == NO_HOST) => "check the host names",
        _ => &status,
    };
    remedy.to_owned()
}

/// Whether a member has taken no connection in time.
pub(super) fn is_about_connecting(error: &ureq::Error) -> bool {
    use ureq::{Error, Timeout};
    matches!(error, Error::Timeout(Timeout::Connect | Timeout::Resolve))
}

/// Whether a member and the caller do not trust each other.
pub(super) fn is_about_certificates(message: &str) -> bool {
    let message = message.to_lowercase();
    let words = ["certificate", "issuer", "unknownca"];
    words.iter().any(|word| message.contains(word))
}
