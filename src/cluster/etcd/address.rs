//! Where a store on etcd is, and how it is reached.

use std::path::PathBuf;

use crate::cluster::address::{Host, prefix, without_password};
use crate::error::{Error, Result};

/// The port of etcd's clients.
const DEFAULT_PORT: u16 = 2379;

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
pub(super) struct Address {
    pub(super) is_encrypted: bool,
    /// `host:port`, in the order given.
    pub(super) endpoints: Vec<String>,
    /// Begins with `/`, and does not end with it.
    pub(super) prefix: String,
    /// As it is shown.
    pub(super) url: String,
}

impl Address {
    /// `etcd://host1:2379,host2:2379/prefix`, or `etcds://` for TLS.
    pub(super) fn parse(url: &str, access: &EtcdAccess) -> Result<Self> {
        Self::read(url, access).map_err(|reason| Error::InvalidStore {
            url: without_password(url),
            reason,
        })
    }

    fn read(url: &str, access: &EtcdAccess) -> std::result::Result<Self, &'static str> {
        let Some((scheme @ ("etcd" | "etcds"), rest)) = url.split_once("://") else {
            return Err("it begins neither with etcd:// nor with etcds://");
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if hosts.contains('@') {
            return Err(
                "user and password in it are seen by every user: set ETCDCTL_USER and ETCDCTL_PASSWORD",
            );
        }
        let prefix = prefix(path)?;
        let mut given: Vec<&str> = hosts.split(',').collect();
        let mut no_list = "not a list of HOST[:PORT]";
        if hosts.is_empty() {
            given = access.endpoints.iter().map(String::as_str).collect();
            no_list = "ETCDCTL_ENDPOINTS is no list of HOST[:PORT]";
        }
        if given.is_empty() {
            return Err("no host: name one, or set ETCDCTL_ENDPOINTS");
        }
        let mut endpoints: Vec<String> = Vec::new();
        for host in given {
            let found = endpoint(host).ok_or(no_list)?;
            if !endpoints.contains(&found) {
                endpoints.push(found);
            }
        }
        Ok(Self {
            is_encrypted: scheme == "etcds",
            url: format!("{scheme}://{}{prefix}", endpoints.join(",")),
            endpoints,
            prefix,
        })
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
    let host = Host::parse(text.strip_suffix('/').unwrap_or(text), DEFAULT_PORT)?;
    Some(host.to_string())
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
