//! Why a request has no good answer, and what may help.

use std::collections::BTreeMap;

use super::address::Address;
use super::messages::Refusal;
use crate::error::{Error, Fault, begun_small};

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

const NO_COMMON_NAME: &str =
    "use a client certificate without a common name: the gateway refuses others";

pub(super) const NO_ANSWER: &str = "no answer in time";

pub(super) const FREE_SPACE: &str =
    "free space: `etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`";

/// Why there is no good answer.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// It may have been done, may yet be done, or not.
    Unknown(String),
    /// The same, because the member has not answered.
    Unanswered(String),
    /// The same, and the member has taken the request: it may be too busy.
    Silent,
    /// It was not done: the user has to sign in.
    SignedOut,
    /// It was not done.
    Refused(Refused),
    /// It was not done: at this address is no gateway of etcd that would do it. At another one may be.
    NoGateway(String),
}

/// An answer that says no.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    message: String,
    pub(super) fault: Fault,
}

impl Failure {
    /// Of an answer with this status of HTTP.
    pub(super) fn of_answer(status: u16, text: &[u8]) -> Self {
        let refusal: Refusal = serde_json::from_slice(text).unwrap_or_default();
        let is_of_etcd = refusal.code != 0;
        // Of the path, and not of a lease.
        if status == 404 && (!is_of_etcd || refusal.message == "Not Found") {
            return Self::NoGateway(NO_GATEWAY.to_owned());
        }
        if !is_of_etcd {
            let shown = String::from_utf8_lossy(text);
            let shown = shown.trim().lines().next().unwrap_or_default();
            let said = format!("HTTP status {status}: {shown}");
            return match status {
                ..500 => Self::NoGateway(said),
                _ => Self::Unknown(said),
            };
        }
        match Self::of_refusal(refusal) {
            Self::Refused(refused) if status >= 500 => Self::Unknown(refused.message),
            failure => failure,
        }
    }

    /// Of an answer that says no.
    pub(super) fn of_refusal(Refusal { code, message }: Refusal) -> Self {
        let message = message.trim_start_matches("etcdserver: ").to_owned();
        let is_unknown = matches!(
            code,
            0 | CANCELED | UNKNOWN | DEADLINE_EXCEEDED | ABORTED | INTERNAL | UNAVAILABLE
        )
            // Later it may not be too busy.
            || message.contains("too many requests");
        if is_unknown {
            return Self::Unknown(message);
        }
        Self::Refused(Refused::new(code, message))
    }

    /// Of a request without an answer, or without a whole one.
    pub(super) fn unanswered(error: &ureq::Error) -> Self {
        Self::Unanswered(match error {
            ureq::Error::BodyExceedsLimit(_) => {
                return Self::Refused(Refused {
                    message: "the answer is too large".to_owned(),
                    fault: Fault::TooLarge,
                });
            }
            ureq::Error::Timeout(_) if !is_about_connecting(error) => return Self::Silent,
            ureq::Error::Timeout(_) => NO_ANSWER.to_owned(),
            ureq::Error::Io(error) => cause_of(error),
            ureq::Error::HostNotFound => "no such host".to_owned(),
            other => other.to_string(),
        })
    }

    /// Whether the member has not answered.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::Silent)
    }

    /// Whether the member is there, and could not do it now.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Silent)
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Unknown(message) | Self::Unanswered(message) | Self::NoGateway(message) => {
                message
            }
            Self::Silent => NO_ANSWER,
            Self::SignedOut => "the user has been signed out",
            Self::Refused(refused) => &refused.message,
        }
    }

    /// Whether it does not change by itself.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Unanswered(message) => is_about_certificates(message),
            Self::Unknown(_) | Self::Silent | Self::SignedOut => false,
            Self::NoGateway(_) | Self::Refused(_) => true,
        }
    }

    /// Of a member of another cluster than the one that has answered before.
    pub(super) fn other_cluster(endpoint: &str) -> Self {
        Self::Refused(Refused {
            message: format!("{endpoint} is a member of another cluster"),
            fault: Fault::Final,
        })
    }
}

impl Refused {
    fn new(code: i64, message: String) -> Self {
        let fault = match code {
            NOT_FOUND => Fault::NoLease,
            OUT_OF_RANGE if message.contains("compacted") => Fault::Compacted,
            UNAUTHENTICATED => Fault::Token,
            RESOURCE_EXHAUSTED if message.contains("space") => Fault::NoSpace,
            _ if message.contains("auth store is old") => Fault::Token,
            _ => Fault::Final,
        };
        Self { message, fault }
    }

    /// Whether it is refused for a token that has ended, or because there is none.
    pub(super) fn is_of_pass(&self, has_token: bool) -> bool {
        let says = |text| self.message.contains(text);
        let is_without = !has_token && (says("user name is empty") || says("permission denied"));
        is_without || self.fault == Fault::Token
    }

    pub(super) fn is_authentication_off(&self) -> bool {
        self.message.contains("authentication is not enabled")
    }

    pub(super) fn is_wrong_password(&self) -> bool {
        self.message.contains("authentication failed")
    }

    /// What it means for a user.
    pub(super) fn error(
        &self,
        operation: &'static str,
        address: &Address,
        has_user: bool,
    ) -> Error {
        let grant = format!(
            "to grant it to a role of the user, run `etcdctl role grant-permission ROLE --prefix=true readwrite {}//`",
            address.prefix
        );
        let is = |text: &str| self.message.contains(text);
        let remedy = match self.fault {
            _ if is("user name is empty") && has_user => NO_COMMON_NAME,
            _ if is("user name is empty") => "set ETCDCTL_USER and ETCDCTL_PASSWORD",
            _ if is("authentication failed") => "check ETCDCTL_USER and ETCDCTL_PASSWORD",
            _ if is("permission denied") => &grant,
            Fault::NoSpace => FREE_SPACE,
            _ => "",
        };
        Error::Remote {
            operation,
            store: address.url.clone(),
            reason: self.message.clone(),
            remedy: Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty()),
            fault: self.fault,
        }
    }
}

/// That no member has done it, with what each endpoint has said instead of an answer.
pub(super) fn unreachable(
    operation: &'static str,
    address: &Address,
    said: &BTreeMap<String, Failure>,
) -> Error {
    let any = |is: fn(&str) -> bool| said.values().any(|failure| is(failure.message()));
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
        _ if any(|message| message.contains("resolve")) => "check the host names",
        _ => &status,
    };
    let said: Vec<String> = said
        .iter()
        .map(|(endpoint, failure)| format!("{endpoint}: {}", failure.message()))
        .collect();
    address.error(operation, said.join("; "), Some(remedy))
}

/// Whether a member has taken no connection in time.
pub(super) fn is_about_connecting(error: &ureq::Error) -> bool {
    use ureq::Timeout;
    matches!(
        error,
        ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
    )
}

/// Whether a member and the caller do not trust each other.
pub(super) fn is_about_certificates(message: &str) -> bool {
    let message = message.to_lowercase();
    let words = ["certificate", "issuer", "unknownca"];
    words.iter().any(|word| message.contains(word))
}

/// Whether an error means this to the store.
pub(super) fn has_fault(error: &Error, asked: Fault) -> bool {
    matches!(error, Error::Remote { fault, .. } if *fault == asked)
}

pub(super) fn cause_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    begun_small(text.split(" (os error").next().unwrap_or(&text))
}
