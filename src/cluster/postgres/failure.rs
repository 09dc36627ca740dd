//! What the failures of PostgreSQL mean, and what may help.

use std::io;

use super::address::{Address, Encryption};
use crate::cluster::engine::{Failure, Kind, NO_ANSWER};
use crate::error::{Fault, begun_small, cause_text};

pub(super) const NO_SCHEMA: &str = "the database has no schema `onehold`";
const NO_RIGHT: &str = "has no right to";
const REPLICA: &str = "a replica, which must not be asked";
const READ_ONLY: &str = "it is read-only";
const NO_PASSWORD: &str = "it wants a password, and there is none";
const WRONG_PASSWORD: &str = "password authentication failed";
pub(super) const NO_TLS: &str = "it does not use TLS";
const TOO_MANY: &str = "it takes no further connection";
const NO_SERVER: &str = "no PostgreSQL at this address";
const DISK_FULL: &str = "the disk of the server is full";

/// The classes of SQLSTATE that say nothing of the request: also of PgBouncer, and of what the server has undone by
/// itself.
const UNKNOWN: [&str; 6] = ["08", "40", "53", "57", "58", "XX"];

/// Of an answer that says no, with this SQLSTATE. Its message may be in any language.
pub(super) fn of_error(state: &str, message: &str, user: &str) -> Failure {
    let refused = |fault, message: &str| Failure::new(Kind::Refused(fault), message);
    match state {
        "OH002" => refused(Fault::Compacted, message),
        "OH004" => refused(Fault::NoLease, message),
        "OH005" => Failure::new(Kind::NoServer, REPLICA),
        "25006" => Failure::new(Kind::NoServer, READ_ONLY),
        "28P01" => refused(Fault::Final, WRONG_PASSWORD),
        "3F000" | "42883" | "42P01" => refused(Fault::Final, NO_SCHEMA),
        "42501" => {
            let message = format!("role `{user}` {NO_RIGHT} the schema `onehold`");
            refused(Fault::Final, &message)
        }
        "53100" => refused(Fault::NoSpace, DISK_FULL),
        "53300" => Failure::new(Kind::Unknown, TOO_MANY),
        // Others keep the store from it.
        "55P03" => Failure::new(Kind::Unknown, message),
        // It starts, or stops.
        "57P01" | "57P02" | "57P03" | "57P05" => Failure::new(Kind::Unanswered, message),
        _ if UNKNOWN.iter().any(|class| state.starts_with(class)) => {
            Failure::new(Kind::Unknown, message)
        }
        _ => refused(Fault::Final, message),
    }
}

/// Of a connection that has failed. `was_sent`: the request may have been done.
pub(super) fn of_io(error: &io::Error, was_sent: bool) -> Failure {
    if let Some(error) = error
        .get_ref()
        .and_then(|error| error.downcast_ref::<rustls::Error>())
    {
        return Failure::new(Kind::Untrusted, format!("TLS: {error}"));
    }
    match error.kind() {
        io::ErrorKind::TimedOut if was_sent => Failure::new(Kind::Silent, NO_ANSWER),
        io::ErrorKind::TimedOut => Failure::new(Kind::Unanswered, NO_ANSWER),
        io::ErrorKind::UnexpectedEof => {
            Failure::new(Kind::Unanswered, "it has closed the connection")
        }
        _ => Failure::new(Kind::Unanswered, begun_small(&cause_text(error))),
    }
}

/// Of a server that wants a password.
pub(super) fn no_password(address: &Address) -> Failure {
    let mut message = NO_PASSWORD.to_owned();
    if let Some(fault) = address.password_file_fault() {
        message = format!("{message}; {fault}");
    }
    Failure::new(Kind::Refused(Fault::Final), message)
}

/// Of a password by which the server and the caller do not know each other.
#[allow(clippy::needless_pass_by_value, reason = "it maps an error")]
pub(super) fn wrong_password(error: io::Error) -> Failure {
    Failure::new(
        Kind::Refused(Fault::Final),
        format!("{WRONG_PASSWORD}: {error}"),
    )
}

pub(super) fn other_sign_in() -> Failure {
    let message = "it wants another sign-in than by password or certificate";
    Failure::new(Kind::Refused(Fault::Final), message)
}

/// Of an answer that is none of PostgreSQL.
pub(super) fn unreadable() -> Failure {
    Failure::new(Kind::NoServer, NO_SERVER)
}

/// What may help against failures with these words, but those that name the store.
const REMEDIES: [(&str, &str); 17] = [
    ("newer version", SAME_VERSION),
    ("and onehold of", SAME_VERSION),
    (REPLICA, OTHER_HOST),
    (READ_ONLY, OTHER_HOST),
    (NO_PASSWORD, PASSWORD),
    (WRONG_PASSWORD, PASSWORD),
    (
        NO_TLS,
        "turn TLS on in the server (`ssl`), or use another sslmode",
    ),
    ("certificate", CERTIFICATES),
    ("TLS", CERTIFICATES),
    (
        "no pg_hba.conf entry",
        "let the role and this machine in, in pg_hba.conf",
    ),
    (
        "does not exist",
        "check the database and the role in the URL",
    ),
    ("no such host", "check the host names"),
    (NO_SERVER, "check host and port in the URL"),
    (DISK_FULL, "free space on the server"),
    (
        TOO_MANY,
        "raise `max_connections` of the server, or the limit of the role",
    ),
    ("starting up", "wait until the server has started"),
    (
        "another sign-in",
        "let the role sign in by scram-sha-256, in pg_hba.conf",
    ),
];
const SAME_VERSION: &str =
    "use the same version of onehold on all machines, and the newest one for `doctor --create`";
const OTHER_HOST: &str = "name the server that writes: the URL may have several hosts";
const PASSWORD: &str = "put the password into ~/.pgpass, or set PGPASSWORD";
const CERTIFICATES: &str =
    "check sslmode, sslrootcert, sslcert and sslkey: see onehold-postgres(7)";

/// What may help against these failures: one refusal, or what each member has said.
pub(super) fn remedy(said: &[&Failure], address: &Address) -> String {
    let (user, url, prefix) = (&address.user, &address.url, &address.prefix);
    let is_said = |words: &str| said.iter().any(|failure| failure.message.contains(words));
    if is_said(NO_SCHEMA) {
        return format!("as the owner of the database, run `onehold doctor --dir {url} --create`");
    }
    if is_said(NO_RIGHT) {
        let allow = format!("select onehold.allow('{user}', '{prefix}')");
        return format!("as the owner of the schema, run `{allow}`");
    }
    if is_said("no pg_hba.conf entry") && address.encryption == Encryption::Disable {
        return "the server may want TLS: use another sslmode".to_owned();
    }
    if let Some((_, remedy)) = REMEDIES.iter().find(|(words, _)| is_said(words)) {
        return (*remedy).to_owned();
    }
    let host = address.members.first().map(|member| &member.host);
    let host = host.map(|host| format!(" -h {} -p {}", host.name, host.port));
    let host = host.unwrap_or_default();
    format!("check that the server runs: `pg_isready{host}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaning_of_an_answer_is_that_of_its_code_in_any_language() {
        for (state, kind) in [
            ("OH005", Kind::NoServer),
            ("25006", Kind::NoServer),
            ("55P03", Kind::Unknown),
            ("57014", Kind::Unknown),
            ("57P03", Kind::Unanswered),
            ("53300", Kind::Unknown),
            ("53100", Kind::Refused(Fault::NoSpace)),
            ("28P01", Kind::Refused(Fault::Final)),
            ("3F000", Kind::Refused(Fault::Final)),
            ("OH004", Kind::Refused(Fault::NoLease)),
        ] {
            assert_eq!(of_error(state, "été", "ci").kind, kind, "{state}");
        }
    }
}
