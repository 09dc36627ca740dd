//! How PostgreSQL is reached: by the variables and files of libpq.

use std::path::PathBuf;

use anyhow::bail;
use onehold::PostgresAccess;
use onehold::status::Pid;

use super::values::{home, text};
use crate::arguments::args::UsageError;

/// The variables of libpq, and what they say.
const VARIABLES: [(&str, &str); 9] = [
    ("PGHOST", "host"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGDATABASE", "dbname"),
    ("PGPASSFILE", "passfile"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
];

/// The files in the home directory. Those of TLS are used if they are there.
const FILES: [(&str, &str); 4] = [
    ("passfile", ".pgpass"),
    ("sslrootcert", ".postgresql/root.crt"),
    ("sslcert", ".postgresql/postgresql.crt"),
    ("sslkey", ".postgresql/postgresql.key"),
];

#[cold]
#[inline(never)]
pub(crate) fn access() -> anyhow::Result<PostgresAccess> {
    let mut access = PostgresAccess::default();
    let given = &mut access.parameters;
    let home = home();
    for (name, file) in FILES {
        let path = home.as_ref().map(|home| home.join(file));
        if let Some(path) = path.filter(|path| path.exists()) {
            given.insert(name.to_owned(), path.to_string_lossy().into_owned());
        }
    }
    if let Some(user) = Pid::of_self().user() {
        given.insert("user".to_owned(), user);
    }
    if let Some(service) = text("PGSERVICE") {
        let own = home.map(|home| home.join(".pg_service.conf"));
        let file = text("PGSERVICEFILE").map(PathBuf::from).or(own);
        let read = file.and_then(|file| std::fs::read_to_string(file).ok());
        let Some(found) = read.and_then(|text| service_in(&text, &service)) else {
            bail!(UsageError(format!("PGSERVICE: no service `{service}`")));
        };
        for (name, value) in found {
            match name.as_str() {
                "password" => access.password = Some(value),
                _ => _ = given.insert(name, value),
            }
        }
    }
    for (variable, name) in VARIABLES {
        if let Some(value) = text(variable) {
            given.insert(name.to_owned(), value);
        }
    }
    access.password = text("PGPASSWORD").or(access.password);
    Ok(access)
}

/// The parameters of a service, in a file of services.
fn service_in(text: &str, service: &str) -> Option<Vec<(String, String)>> {
    let mut lines = text.lines().map(str::trim);
    let header = format!("[{service}]");
    lines.find(|line| *line == header)?;
    let own = lines.take_while(|line| !line.starts_with('['));
    let parameters = own.filter_map(|line| line.split_once('='));
    let parameters = parameters.filter(|(name, _)| !name.starts_with('#'));
    Some(
        parameters
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::service_in;

    #[test]
    fn service_is_what_stands_below_its_name() {
        let text = "[a]\nhost=one\n\n[b]\n# host=no\nhost = two\nport=7\n[c]\nport=9\n";
        let pairs = |found: Option<Vec<(String, String)>>| {
            found.map(|found| {
                found
                    .into_iter()
                    .map(|(name, value)| name + "=" + &value)
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(
            pairs(service_in(text, "b")),
            Some(vec!["host=two".to_owned(), "port=7".to_owned()])
        );
        assert_eq!(pairs(service_in(text, "d")), None);
    }
}
