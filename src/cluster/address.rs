//! What the URLs of all engines have in common: hosts and a prefix.

use std::fmt::{self, Display};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::Duration;

/// Where the keys are by default.
const DEFAULT_PREFIX: &str = "/onehold";

/// A host of a URL, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// A name or an address.
    pub(super) name: String,
    pub(super) port: u16,
}

impl Host {
    /// `NAME`, `NAME:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`. `None`: it is none of these.
    pub(super) fn parse(text: &str, default_port: u16) -> Option<Self> {
        let is_address = |name: &str| name.parse::<Ipv6Addr>().is_ok();
        let (name, behind) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').filter(|(name, _)| is_address(name))?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match behind {
            "" => Some(default_port),
            port => port.strip_prefix(':')?.parse().ok(),
        };
        let is_of_name = |char: char| char.is_alphanumeric() || "-._:".contains(char);
        let is_name = !name.is_empty() && name.chars().all(is_of_name);
        port.filter(|port| is_name && *port != 0).map(|port| Self {
            name: name.to_owned(),
            port,
        })
    }
}

/// As [`look_up`] reads it.
impl Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        if name.contains(':') {
            write!(f, "[{name}]:{port}")
        } else {
            write!(f, "{name}:{port}")
        }
    }
}

/// The addresses of a [`Host`]. A name is asked for in a thread, since that has no timeout.
pub(super) fn look_up(host: &str, within: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let (host, (sender, found)) = (host.to_owned(), mpsc::sync_channel(1));
    let ask = move || {
        let found = host.to_socket_addrs().map(Iterator::collect);
        let _ = sender.send(found.unwrap_or_default());
    };
    crate::sys::start_thread("resolve", 256 * 1024, ask)?;
    match found.recv_timeout(within) {
        Ok(found) => Ok(found),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// The prefix of a store, from what a URL has behind the `/`. It begins with `/`, and does not end with it.
pub(super) fn prefix(path: &str) -> Result<String, &'static str> {
    if path.is_empty() {
        return Ok(DEFAULT_PREFIX.to_owned());
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.split('/').any(str::is_empty) {
        return Err("empty part in its prefix");
    }
    if path.contains(|char: char| char.is_control() || "%?#".contains(char)) {
        return Err("control character, `%`, `?` or `#` in its prefix, which is used as it stands");
    }
    Ok(format!("/{path}"))
}

/// A URL as it may be shown: without user and password, or parameters.
pub(super) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let end = if query.is_empty() { "" } else { "?…" };
    match place.rsplit_once('@') {
        Some((_, place)) => format!("{scheme}://…@{place}{end}"),
        None => format!("{scheme}://{place}{end}"),
    }
}
