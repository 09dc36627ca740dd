//! A request that is the same as the one before, but for its id and its caller. A program that takes a lock again and
//! again sends nothing else, and what was read for the first one is used for the next ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onehold::Format;

use super::waiting::{Prepared, Wanted};
use crate::configuration::StoreSource;

/// For how long: what was read of this host, such as its name, may change.
const FOR: Duration = Duration::from_secs(1);

/// The request before, from behind its id and its caller.
pub(super) struct Repeated {
    rest: Vec<u8>,
    prepared: Arc<Prepared>,
    until: Instant,
}

impl Repeated {
    /// `None`: what it asks for may be another thing the next time, as by a relative path, or in a project.
    pub(super) fn of(line: &[u8], wanted: &Wanted) -> Option<Self> {
        let session = &wanted.session;
        let is_fixed = session.config.profile.is_none()
            && !session.global.project
            && session.only.is_none()
            // A project may begin where there was none.
            && session.config.settings.project_dir.is_none()
            && wanted.lock.format() == Format::Native
            && !wanted.lock.is_remote()
            && wanted.lock.names().all(|name| !name.is_path())
            && !wanted.is_reentrant
            && match session.store_source {
                StoreSource::CommandLine => session.global.dir.as_deref()?.is_absolute(),
                StoreSource::Environment | StoreSource::Configuration | StoreSource::Default => {
                    true
                }
                StoreSource::Project | StoreSource::Profile => false,
            };
        let (_, _, rest) = parts(line).filter(|_| is_fixed)?;
        // A later key replaces an earlier one, also one that is written with escapes.
        let text = std::str::from_utf8(rest).ok()?;
        if ["\\", "\"id\"", "\"caller\""]
            .iter()
            .any(|part| text.contains(part))
        {
            return None;
        }
        Some(Self {
            rest: rest.to_vec(),
            prepared: Arc::clone(&wanted.prepared),
            until: Instant::now() + FOR,
        })
    }

    /// What this line asks for, if it is the same.
    pub(super) fn wanted(&self, line: &[u8]) -> Option<Box<Wanted>> {
        let (id, caller, rest) = parts(line)?;
        let is_same = rest == self.rest
            && Instant::now() < self.until
            && self.prepared.session.config.is_as_read();
        is_same.then(|| {
            Box::new(Wanted {
                id,
                callers: caller.into_iter().collect(),
                prepared: Arc::clone(&self.prepared),
            })
        })
    }
}

/// The id and the caller at the beginning of a line, as the clients write them, and what follows.
fn parts(line: &[u8]) -> Option<(u64, Option<u64>, &[u8])> {
    let (id, rest) = number(line.strip_prefix(b"{\"id\":")?)?;
    let caller = rest.strip_prefix(b"\"caller\":").and_then(number);
    let (caller, rest) = caller.map_or((None, rest), |(caller, rest)| (Some(caller), rest));
    Some((id, caller, rest))
}

/// The number that a text begins with, and what is behind its comma.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().position(|byte| *byte == b',')?;
    let number = std::str::from_utf8(text.get(..digits)?).ok()?;
    // JSON has no other form of the same number that `parse` reads, but `+1` and `01`, which it refuses.
    let is_plain = number == "0" || number.starts_with(|first: char| ('1'..='9').contains(&first));
    Some((
        number.parse().ok().filter(|_| is_plain)?,
        text.get(digits + 1..)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_caller_are_read_where_the_clients_write_them_and_nothing_else_is_guessed() {
        let rest: &[u8] = br#""command":"hold"}"#;
        let line = |begins: &str| [begins.as_bytes(), rest].concat();
        assert_eq!(parts(&line(r#"{"id":7,"#)), Some((7, None, rest)));
        assert_eq!(
            parts(&line(r#"{"id":0,"caller":12,"#)),
            Some((0, Some(12), rest))
        );
        for other in [
            r#"{"id":07,"#,
            r#"{"id":+7,"#,
            r#"{"id":-7,"#,
            r#"{"id": 7,"#,
            r#"{"id":7.0,"#,
            r#"{"caller":7,"#,
        ] {
            assert_eq!(parts(&line(other)), None, "{other}");
        }
        let (_, caller, rest) = parts(br#"{"id":7,"caller":[1,2],"command":"hold"}"#).unwrap();
        assert!(caller.is_none() && rest.starts_with(b"\"caller\""));
        assert_eq!(
            parts(br#"{"id":99999999999999999999,"command":"hold"}"#),
            None
        );
    }
}
