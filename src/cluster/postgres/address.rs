//! Where a store on PostgreSQL is, and how it is reached: as libpq would, by its names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::cluster::address::{Host, prefix, without_password};
use crate::error::{Error, Result};

const DEFAULT_PORT: &str = "5432";

/// The directory of sockets by default. In a file of passwords it is `localhost`.
const SOCKETS: &str = "/var/run/postgresql";

/// As `sslrootcert`: the authorities that the system trusts.
pub(super) const SYSTEM: &str = "system";

/// The parameters of libpq that a URL may have.
const PARAMETERS: [&str; 9] = [
    "host",
    "port",
    "user",
    "passfile",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "target_session_attrs",
];

/// How a store on PostgreSQL is reached, beyond its URL. The library reads no environment and no home directory: a
/// program that wants what libpq reads from them passes that on.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct PostgresAccess {
    /// The parameters that a URL does not have, by their names in libpq: `host`, `port`, `user`, `dbname`, `passfile`,
    /// `sslmode`, `sslrootcert`, `sslcert`, `sslkey`. Others are ignored.
    pub parameters: BTreeMap<String, String>,
    /// The password of the user; without it the one of `passfile`.
    pub password: Option<String>,
}

/// Says nothing of the password.
impl std::fmt::Debug for PostgresAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresAccess")
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// `sslmode` of libpq. `allow` is `prefer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Encryption {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// One server of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name may be the directory of a socket.
    pub(super) host: Host,
    /// As it is shown: host and port, or the path of a socket.
    pub(super) text: String,
}

/// A store, by its URL.
#[derive(Clone)]
pub(super) struct Address {
    /// In the order given.
    pub(super) members: Vec<Member>,
    pub(super) user: String,
    pub(super) database: String,
    /// Begins with `/`, and does not end with it.
    pub(super) prefix: String,
    /// As it is shown.
    pub(super) url: String,
    pub(super) encryption: Encryption,
    /// `sslrootcert`, `sslcert`, `sslkey`.
    pub(super) root: Option<PathBuf>,
    pub(super) certificate: Option<(PathBuf, PathBuf)>,
    password: Option<String>,
    password_file: Option<PathBuf>,
}

impl Address {
    /// `postgres://USER@HOST:PORT,HOST:PORT/DATABASE/PREFIX?PARAMETER=VALUE`.
    pub(super) fn parse(url: &str, access: &PostgresAccess) -> Result<Self> {
        Self::read(url, access).map_err(|reason| Error::InvalidStore {
            url: without_password(url),
            reason,
        })
    }

    fn read(url: &str, access: &PostgresAccess) -> std::result::Result<Self, &'static str> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))
            .ok_or("it begins neither with postgres:// nor with postgresql://")?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (database, path) = path.split_once('/').unwrap_or((path, ""));
        if user.contains(':') {
            return Err("a password in it is seen by every user: use ~/.pgpass, or set PGPASSWORD");
        }
        let mut given = access.parameters.clone();
        for parameter in query.split('&').filter(|one| !one.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if !PARAMETERS.contains(&name) {
                return Err("it has a parameter that is not supported");
            }
            given.insert(name.to_owned(), decoded(value)?);
        }
        for (name, value) in [("user", user), ("dbname", database), ("host", hosts)] {
            if !value.is_empty() {
                given.insert(name.to_owned(), decoded(value)?);
            }
        }
        let given = |name: &str| given.get(name).filter(|value| !value.is_empty());
        let user = given("user").ok_or("no user: name one, or set PGUSER")?;
        let database = given("dbname").unwrap_or(user);
        let prefix = prefix(path)?;
        let hosts = given("host").map_or(default_host(), |host| host);
        let ports = given("port").map_or(DEFAULT_PORT, String::as_str);
        let ports: Vec<&str> = ports.split(',').collect();
        let mut members = Vec::new();
        for (at, host) in hosts.split(',').enumerate() {
            let port = ports.get(at).or(ports.first()).copied();
            let found = Member::parse(host, port.unwrap_or(DEFAULT_PORT));
            let found = found.ok_or("not a list of HOST[:PORT]")?;
            if !members.contains(&found) {
                members.push(found);
            }
        }
        let shown: Vec<_> = members.iter().map(Member::in_url).collect();
        let file = |name| given(name).map(PathBuf::from);
        let root = file("sslrootcert");
        // As libpq: any authority of the system would vouch for any server, if its name was not checked.
        let is_of_system = root.as_deref() == Some(Path::new(SYSTEM));
        let encryption = match given("sslmode").map(String::as_str) {
            None if is_of_system => Encryption::VerifyFull,
            None | Some("allow" | "prefer") => Encryption::Prefer,
            Some("disable") => Encryption::Disable,
            Some("require") => Encryption::Require,
            Some("verify-ca") => Encryption::VerifyCa,
            Some("verify-full") => Encryption::VerifyFull,
            Some(_) => return Err("unknown sslmode"),
        };
        if is_of_system && encryption != Encryption::VerifyFull {
            return Err("sslrootcert=system takes sslmode=verify-full, or none");
        }
        Ok(Self {
            url: format!("postgres://{user}@{}/{database}{prefix}", shown.join(",")),
            members,
            user: user.clone(),
            database: database.clone(),
            prefix,
            encryption,
            root,
            certificate: file("sslcert").zip(file("sslkey")),
            password: access.password.clone(),
            password_file: file("passfile"),
        })
    }

    /// The password for a member: what was given, or the one of its line in the file. It is read again each time.
    pub(super) fn password(&self, member: &Member) -> Option<String> {
        if self.password.is_some() || self.password_file_fault().is_some() {
            return self.password.clone();
        }
        let Host { name, port } = &member.host;
        let host = if name == SOCKETS { "localhost" } else { name };
        let wanted = [host, &port.to_string(), &self.database, &self.user];
        let text = std::fs::read(self.password_file.as_ref()?).ok()?;
        // Another line may be in another encoding.
        let text = String::from_utf8_lossy(&text);
        text.lines().find_map(|line| password_of(line, wanted))
    }

    /// What is wrong with the file of passwords.
    pub(super) fn password_file_fault(&self) -> Option<String> {
        let file = self.password_file.as_ref()?;
        let shown = file.display();
        is_seen_by_others(file).then(|| {
            format!("`{shown}` is not used, since others may read it: run `chmod 600 {shown}`")
        })
    }
}

impl Member {
    /// `None`: it is neither a host nor the directory of a socket.
    fn parse(text: &str, port: &str) -> Option<Self> {
        if !text.starts_with('/') {
            let host = Host::parse(text, port.parse().ok()?)?;
            let text = host.to_string();
            return Some(Self { host, text });
        }
        let (directory, port) = text.split_once(':').unwrap_or((text, port));
        let is_of_path = |char: char| char.is_alphanumeric() || "-._/".contains(char);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        directory.chars().all(is_of_path).then(|| Self {
            text: format!("{directory}/.s.PGSQL.{port}"),
            host: Host {
                name: directory.to_owned(),
                port,
            },
        })
    }

    pub(super) fn is_socket(&self) -> bool {
        self.host.name.starts_with('/')
    }

    fn in_url(&self) -> String {
        self.host.to_string().replace('/', "%2F")
    }
}

/// Whether a text names a store on PostgreSQL.
#[must_use]
pub fn is_postgres_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

fn decoded(text: &str) -> std::result::Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.ok().filter(|text| !text.contains(char::is_control));
    text.map(Into::into).ok_or("it is not text")
}

fn default_host() -> &'static str {
    let has_sockets = cfg!(unix) && Path::new(SOCKETS).is_dir();
    if has_sockets { SOCKETS } else { "localhost" }
}

/// The password of a line `host:port:database:user:password`, if it is for what is wanted. `\` quotes `:` and itself.
fn password_of(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut fields = [const { String::new() }; 5];
    let mut at = 0;
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match char {
            ':' if at < wanted.len() => at += 1,
            '\\' => fields.get_mut(at)?.extend(chars.next()),
            char => fields.get_mut(at)?.push(char),
        }
    }
    let [of_line @ .., password] = fields;
    let mut both = of_line.iter().zip(wanted);
    let is_for = both.all(|(field, wanted)| field == "*" || field == wanted);
    (is_for && !password.is_empty() && !line.starts_with('#')).then_some(password)
}

fn is_seen_by_others(file: &Path) -> bool {
    #[cfg(unix)]
    return std::fs::metadata(file).is_ok_and(|found| {
        std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o077 != 0
    });
    #[cfg(not(unix))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> PostgresAccess {
        PostgresAccess {
            parameters: [("user", "me"), ("host", "env")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            password: Some("secret".to_owned()),
        }
    }

    #[test]
    fn url_names_members_database_and_prefix() {
        for (url, shown) in [
            ("postgres://", "postgres://me@env:5432/me/onehold"),
            ("postgresql://a/b", "postgres://me@a:5432/b/onehold"),
            (
                "postgres://u@a,b:1,[::1]:2,a/db/x/y/",
                "postgres://u@a:5432,b:1,[::1]:2/db/x/y",
            ),
            (
                "postgres://%2Ftmp/db/x?sslmode=require",
                "postgres://me@%2Ftmp:5432/db/x",
            ),
            (
                "postgres:///db/x?host=/run/p&port=7&user=u",
                "postgres://u@%2Frun%2Fp:7/db/x",
            ),
            ("postgres://a/b?port=7", "postgres://me@a:7/b/onehold"),
        ] {
            let address = Address::parse(url, &access()).expect(url);
            assert_eq!(address.url, shown);
            let again = Address::parse(shown, &PostgresAccess::default()).expect(shown);
            assert_eq!((again.url, again.members), (address.url, address.members));
        }
    }

    #[test]
    fn what_is_no_store_is_refused_without_its_password() {
        for url in [
            "postgres://u:secret@a/db/x",
            "postgres://a/db/x?password=secret",
            "postgres://u@a/db/x//y?sslrootcert=secret",
            "postgres://a/db/%41",
            "postgres://a:0/db",
            "postgres://a b/db",
            "postgres://a/db?sslmode=maybe",
            "postgres://a/db?sslmode=verify-ca&sslrootcert=system",
            "postgres://a/db?sslmode=disable&sslrootcert=system",
            "mysql://a/db",
        ] {
            let error = Address::parse(url, &access()).err().expect(url).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        let nobody = Address::parse("postgres://a/db", &PostgresAccess::default());
        assert!(nobody.is_err());
        assert!(!format!("{:?}", access()).contains("secret"));
    }

    #[test]
    fn authorities_of_the_system_need_the_name_of_the_server() {
        let mut access = access();
        let mode = |query: &str, access: &PostgresAccess| {
            let url = format!("postgres://a/db{query}");
            Address::parse(&url, access).map(|address| address.encryption)
        };
        assert_eq!(mode("", &access).unwrap(), Encryption::Prefer);
        let of_url = mode("?sslrootcert=system", &access).unwrap();
        assert_eq!(of_url, Encryption::VerifyFull);
        let system = ("sslrootcert".to_owned(), SYSTEM.to_owned());
        access.parameters.extend([system]);
        assert_eq!(mode("", &access).unwrap(), Encryption::VerifyFull);
        assert!(mode("?sslmode=require", &access).is_err());
        let of_file = mode("?sslmode=require&sslrootcert=file", &access).unwrap();
        assert_eq!(of_file, Encryption::Require);
        let none = ("sslmode".to_owned(), "prefer".to_owned());
        access.parameters.extend([none]);
        assert!(mode("", &access).is_err());
    }

    #[test]
    fn password_is_that_of_the_first_line_that_fits() {
        let wanted = ["h", "5432", "d:b", "u"];
        for (line, password) in [
            ("h:5432:d\\:b:u:p\\:w\\\\", Some("p:w\\")),
            ("*:*:*:u:p:w", Some("p:w")),
            ("h:5432:*:other:p", None),
            ("#h:5432:*:u:p", None),
            ("h:5432", None),
        ] {
            assert_eq!(password_of(line, wanted).as_deref(), password, "{line}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn file_of_passwords_names_sockets_as_libpq_and_may_have_other_bytes() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = b"\xff:*:*:*:caf\xe9\nlocalhost:*:*:*:of default\n/tmp/p:*:*:*:of path\n";
        std::fs::write(file.path(), lines).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        let mut access = access();
        access.password = None;
        let path = file.path().to_string_lossy().into_owned();
        access.parameters.insert("passfile".to_owned(), path);
        for (host, password) in [
            (SOCKETS, Some("of default")),
            ("localhost", Some("of default")),
            ("/tmp/p", Some("of path")),
            ("/tmp/q", None),
        ] {
            let url = format!("postgres:///db?host={host}");
            let address = Address::parse(&url, &access).unwrap();
            let found = address.password(&address.members[0]);
            assert_eq!(found.as_deref(), password, "{host}");
        }
    }
}
