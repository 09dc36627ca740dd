//! Where a store on etcd is, and how it is reached.

use std::path::PathBuf;

use crate::error::{Error, Fault, Result};

/// The port of etcd's clients.
const DEFAULT_PORT: &str = "2379";

/// Where the keys are by default.
const DEFAULT_PREFIX: &str = "/onehold";

/// How a store on etcd is reached, beyond its URL. The library reads no environment: a program that
/// wants what etcdctl(1) reads from it passes that on.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct EtcdAccess {
    /// The endpoints of a URL without hosts, such as `etcd:///locks`: `host:port`, with or without
    /// `http://` or `https://`.
    pub endpoints: Vec<String>,
    /// The user.
    pub user: Option<String>,
    /// The password of the user.
    pub password: Option<String>,
    /// A file that has the password, if that is not given. It is read again after the password was refused.
    pub password_file: Option<PathBuf>,
    /// A file of certificates in PEM that are trusted; without it those of the system. This file and the next two are
    /// read again after a refusal.
    pub ca_certificate: Option<PathBuf>,
    /// A file with the client's certificate chain in PEM.
    pub certificate: Option<PathBuf>,
    /// A file with the client's private key in PEM.
    pub key: Option<PathBuf>,
    /// Any certificate of the server is accepted: whoever is on the way can read and change everything.
    pub skips_verification: bool,
}

/// Says nothing of user and password.
impl std::fmt::Debug for EtcdAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdAccess")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// A store, by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) is_encrypted: bool,
    /// `host:port`, in the order given.
    pub(crate) endpoints: Vec<String>,
    /// Begins with `/`, and does not end with it.
    pub(crate) prefix: String,
    /// As it is shown.
    pub(crate) url: String,
}

impl Address {
    /// `etcd://host1:2379,host2:2379/prefix`, or `etcds://` for TLS.
    pub(crate) fn parse(url: &str, access: &EtcdAccess) -> Result<Self> {
        let invalid = |reason| Error::InvalidStore {
            url: without_password(url),
            reason,
        };
        let Some((scheme @ ("etcd" | "etcds"), rest)) = url.split_once("://") else {
            return Err(invalid("it begins neither with etcd:// nor with etcds://"));
        };
        let (hosts, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if hosts.contains('@') {
            return Err(invalid(
                "user and password in it are seen by every user: set ETCDCTL_USER and ETCDCTL_PASSWORD",
            ));
        }
        let prefix = match prefix.strip_suffix('/').unwrap_or(prefix) {
            "" => DEFAULT_PREFIX,
            prefix => prefix,
        };
        let segments = prefix.strip_prefix('/').map(|below| below.split('/'));
        if segments.is_some_and(|mut segments| segments.any(str::is_empty)) {
            return Err(invalid("empty part in its prefix"));
        }
        if prefix.contains(|char: char| char.is_control() || "%?#".contains(char)) {
            return Err(invalid(
                "control character, `%`, `?` or `#` in its prefix, which is used as it stands",
            ));
        }
        let mut given: Vec<&str> = hosts.split(',').collect();
        let mut no_list = "not a list of HOST[:PORT]";
        if hosts.is_empty() {
            given = access.endpoints.iter().map(String::as_str).collect();
            no_list = "ETCDCTL_ENDPOINTS is no list of HOST[:PORT]";
        }
        if given.is_empty() {
            return Err(invalid("no host: name one, or set ETCDCTL_ENDPOINTS"));
        }
        let mut endpoints: Vec<String> = Vec::new();
        for host in given {
            let found = endpoint(host).ok_or_else(|| invalid(no_list))?;
            if !endpoints.contains(&found) {
                endpoints.push(found);
            }
        }
        Ok(Self {
            is_encrypted: scheme == "etcds",
            url: format!("{scheme}://{}{prefix}", endpoints.join(",")),
            endpoints,
            prefix: prefix.to_owned(),
        })
    }

    /// What cannot be done with the store, and what may help.
    pub(super) fn error(
        &self,
        operation: &'static str,
        reason: String,
        remedy: Option<&str>,
    ) -> Error {
        Error::Remote {
            operation,
            store: self.url.clone(),
            reason,
            remedy: remedy.map(str::to_owned),
            fault: Fault::Final,
        }
    }
}

/// Whether a text names a store on etcd.
#[must_use]
pub fn is_etcd_url(text: &str) -> bool {
    text.starts_with("etcd://") || text.starts_with("etcds://")
}

/// `host:port`; `None`: it is neither that nor a host.
fn endpoint(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"))
        .unwrap_or(text);
    let text = text.strip_suffix('/').unwrap_or(text);
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (format!("[{host}]"), port)
    } else {
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        (host.to_owned(), port)
    };
    let port = match port {
        "" => DEFAULT_PORT,
        port => port.strip_prefix(':')?,
    };
    let is_of_host = |char: char| char.is_alphanumeric() || "-._[]:".contains(char);
    let is_host = !host.is_empty() && host.chars().all(is_of_host);
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    (is_host && is_port).then(|| format!("{host}:{port}"))
}

/// The URL as it may be shown.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let hosts = rest.find('/').unwrap_or(rest.len());
    match rest.get(..hosts).and_then(|hosts| hosts.rfind('@')) {
        Some(at) => format!("{scheme}://…{}", rest.get(at..).unwrap_or_default()),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address> {
        let access = EtcdAccess {
            endpoints: vec!["https://env:1".to_owned()],
            ..EtcdAccess::default()
        };
        Address::parse(url, &access)
    }

    #[test]
    fn url_names_endpoints_and_prefix() {
        let address = parse("etcd://a,b:1,[::1],[::1]:7/x/y/").expect("a URL");
        assert_eq!(
            address.endpoints,
            ["a:2379", "b:1", "[::1]:2379", "[::1]:7"]
        );
        assert_eq!(address.prefix, "/x/y");
        assert_eq!(address.url, "etcd://a:2379,b:1,[::1]:2379,[::1]:7/x/y");
        for (url, shown) in [
            ("etcd://a", "etcd://a:2379/onehold"),
            ("etcds://a/", "etcds://a:2379/onehold"),
            ("etcds:///x", "etcds://env:1/x"),
        ] {
            assert_eq!(parse(url).expect("a URL").url, shown);
        }
    }

    #[test]
    fn what_is_no_store_is_refused() {
        for url in [
            "etcd://a//x",
            "etcd://a/x//y",
            "etcd://a/%41",
            "etcd://a/x?y",
            "etcd://a/x\n",
            "etcd://a b/x",
            "etcd://a:0/x",
            "etcd://a:99999/x",
            "etcd://::1/x",
            "etcd://[a]/x",
            "http://a/x",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
        assert!(Address::parse("etcd:///x", &EtcdAccess::default()).is_err());
    }

    #[test]
    fn password_in_a_url_is_not_shown() {
        let error = parse("etcd://me:secret@a/x").expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains("`etcd://…@a/x`") && !text.contains("secret"),
            "{text}"
        );
    }
}
