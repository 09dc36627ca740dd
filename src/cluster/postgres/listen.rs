//! What the server tells of keys. A connection of its own listens, so that nothing is asked while nothing happens. Where
//! that is not possible, as behind a pooler, or because the server has no connection left, the keys are polled.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use chrono::Utc;
use serde::Deserialize;
use serde_json::json;

use super::address::{Address, Member};
use super::connection::Connection;
use super::messages::{Said, call};
use crate::cluster::engine::{Answer, Listener, TIMEOUT};
use crate::cluster::txn::{Event, Watch, WatchAnswer};
use crate::sys::random_u64;
use crate::sys::wait::pause;

/// How often a listener looks whether it is still needed.
const NEEDED: Duration = Duration::from_secs(10);

/// How soon keys are polled at first, and at last.
const FIRST_POLL: Duration = Duration::from_millis(100);
const LAST_POLL: Duration = Duration::from_secs(2);

/// How long after the end of a lease it is looked for: a notification takes some time.
const LATER: Duration = Duration::from_millis(100);

/// The longest time that a lease is left alone, whatever a notification says of it.
const DAY: Duration = Duration::from_hours(24);

/// What a notification says. Each role that may connect can send any, so it is a hint: what is done because of it is
/// compared with the store.
#[derive(Deserialize)]
#[serde(untagged)]
enum Notice {
    /// A lease was kept alive: its key, and for how many seconds.
    Kept(String, u64),
    /// A deletion: the key, the revision, and the number of a hold if that was there.
    Deletion(String, i64, Option<String>),
}

/// Begins a thread.
pub(super) fn start(
    address: Address,
    member: Member,
    watches: &[Watch],
    mut each: Listener,
) -> io::Result<()> {
    let is_whole = watches.iter().any(|one| matches!(one, Watch::Changes(_)));
    let key = |(Watch::Changes(range) | Watch::Deletions(range)): &Watch| range.start.clone();
    let listening = Listening {
        address,
        member,
        keys: watches.iter().map(key).collect(),
        is_whole,
    };
    let read = move || {
        if listening.listen(&mut each).is_err() {
            // Whoever is told listens again, and a server without a connection left must not be asked all the time.
            let later = Duration::from_millis(500 + random_u64() % 1_000);
            let _ = pause(later);
        }
        each(None);
    };
    crate::sys::start_thread("watch", 256 * 1024, read)
}

struct Listening {
    address: Address,
    member: Member,
    /// Those that are waited for.
    keys: BTreeSet<String>,
    /// All are, whatever `keys` says.
    is_whole: bool,
}

/// The keys as they are.
struct Seen {
    revision: i64,
    keys: BTreeSet<String>,
    /// When the lease of each ends; of a whole store, without a key, the first one of all.
    ends: BTreeMap<String, Instant>,
    listens: bool,
}

impl Listening {
    fn listen(&self, each: &mut Listener) -> Answer<()> {
        let mut connection = Connection::open(&self.address, &self.member, TIMEOUT)?;
        let mut seen = self.look(&mut connection)?;
        let mut poll = FIRST_POLL;
        let mut goes_on = each(Some(WatchAnswer {
            has_begun: true,
            revision: seen.revision,
            events: Vec::new(),
        }));
        while goes_on {
            let longest = if seen.listens { NEEDED } else { poll };
            let ends = seen.ends.values().min();
            let ends_in = ends.map(|at| at.saturating_duration_since(Instant::now()));
            let at_most = ends_in.map_or(longest, |ends_in| longest.min(ends_in));
            // Also without an event: the listener says whether anybody reads on.
            let events = match connection.notice(at_most)? {
                Some(notice) if !self.is_whole => Vec::from_iter(self.event(&notice, &mut seen)),
                None if at_most == longest && seen.listens => Vec::new(),
                // A lease should have ended, of which there is no notification; or the keys are polled. Of a whole
                // store, another lease may end sooner now.
                _ => {
                    let now = self.look(&mut connection)?;
                    poll = (poll * 2).min(LAST_POLL);
                    let before = std::mem::replace(&mut seen, now);
                    self.ended(&before, &seen)
                }
            };
            goes_on = each(Some(WatchAnswer {
                has_begun: false,
                revision: 0,
                events,
            }));
        }
        Ok(())
    }

    /// Ends what is over, reads the keys, and listens from now on if that is possible.
    fn look(&self, connection: &mut Connection) -> Answer<Seen> {
        let keys = if self.is_whole {
            json!([null])
        } else {
            json!(self.keys)
        };
        let request = json!({ "wait": keys, "pid": connection.process });
        let text = connection.ask(&call(&self.address.prefix, &request), TIMEOUT)?;
        let said = Said::read(text)?;
        let rows = said.answers.iter().flatten();
        let keys = rows.filter_map(|row| String::from_utf8(row.key.clone()).ok());
        let now = Instant::now() + LATER;
        let whole = said.left().filter(|_| self.is_whole);
        let whole = whole.map(|left| (String::new(), now + left));
        let each = said.ends.into_iter().flatten().map(|(key, left)| {
            let left = u64::try_from(left).unwrap_or(0);
            (key, now + Duration::from_millis(left))
        });
        Ok(Seen {
            revision: said.rev,
            keys: keys.collect(),
            ends: each.chain(whole).collect(),
            listens: said.listens == Some(true),
        })
    }

    /// What a notification tells of a key that is waited for.
    fn event(&self, notice: &str, seen: &mut Seen) -> Option<Event> {
        match serde_json::from_str(notice).ok()? {
            Notice::Kept(key, seconds) if self.keys.contains(&key) => {
                let left = Duration::from_secs(seconds).min(DAY) + LATER;
                if let Some(ends) = Instant::now().checked_add(left) {
                    seen.ends.insert(key, ends);
                }
                None
            }
            Notice::Deletion(key, revision, number) if self.keys.contains(&key) => {
                // The end of its lease is looked for all the same.
                seen.keys.remove(&key);
                Some(Event {
                    before: number.and_then(|number| not_of_the_future(&number)),
                    ..gone(key, revision)
                })
            }
            Notice::Kept(..) | Notice::Deletion(..) => None,
        }
    }

    /// What is no longer there; of a whole store: whether it has changed.
    fn ended(&self, before: &Seen, now: &Seen) -> Vec<Event> {
        if self.is_whole {
            // Not only if it has grown: the store may have been made anew.
            let has_changed = now.revision != before.revision;
            return Vec::from_iter(has_changed.then(|| gone(String::new(), now.revision)));
        }
        let ended = before.keys.difference(&now.keys);
        ended.map(|key| gone(key.clone(), now.revision)).collect()
    }
}

/// The number of a hold, which tells when it was taken; the next one is later. A larger one would be for ever in the
/// store.
fn not_of_the_future(number: &str) -> Option<Vec<u8>> {
    let now = u64::try_from(Utc::now().timestamp_micros()).ok()?;
    let number: u64 = number.parse().ok()?;
    Some(format!("{:016}", number.min(now)).into_bytes())
}

fn gone(key: String, revision: i64) -> Event {
    Event {
        key,
        revision,
        is_deletion: true,
        before: None,
    }
}
