//! Whether the servers are suitable for locks.

use serde_json::json;

use super::address::{Address, Member};
use super::connection::Connection;
use super::failure::{remedy, unreadable};
use super::messages::call;
use crate::cluster::engine::{Answer, TIMEOUT};
use crate::finding::Finding;

/// What can be wrong with a server: the check, what SQL says of it or null, and what to do. `ahead` are the seconds by
/// which its clock is ahead of this one, `backend` is the process that the connection was told to be served by.
const FAULTS: [(&str, &str, &str); 6] = [
    (
        "version",
        "case when current_setting('server_version_num')::int < 120000 then 'older than PostgreSQL 12' end",
        "use a version that is still maintained",
    ),
    (
        "commit",
        "case when 'off' in (current_setting('fsync'), current_setting('synchronous_commit'))
            then 'it confirms what a crash can undo' end",
        "turn `fsync` and `synchronous_commit` on for this role: after a crash two may hold one lock",
    ),
    (
        "replicas",
        "case when exists (select from pg_stat_replication) and (current_setting('synchronous_standby_names') = ''
            or current_setting('synchronous_commit') = 'local') then 'none of its replicas is synchronous' end",
        "a failover to it can undo what was confirmed: set `synchronous_standby_names`",
    ),
    (
        "read-only",
        "case when current_setting('default_transaction_read_only')::bool then 'transactions are read-only' end",
        "unset `default_transaction_read_only`",
    ),
    (
        "clock",
        "case when abs(ahead) > 2 then format('its clock differs from this one by %s s', ahead) end",
        "set both clocks by NTP",
    ),
    (
        "listen",
        "case when pg_backend_pid() <> backend then 'a pooler is between, so waiters poll each 0.1 to 2 s' end",
        "for a faster hand-over, name the server itself",
    ),
];

/// What each member says, one after the other, and whether the store may be there.
pub(super) fn examine(address: &Address) -> (Vec<Finding>, bool) {
    let mut found = Vec::new();
    let mut is_there = false;
    for member in &address.members {
        match of_member(address, member, &mut found) {
            Ok(writes) => is_there |= writes,
            Err(failure) => {
                let advice = remedy(&[&failure], address);
                let detail = format!("{}: {}", member.text, failure.message);
                found.push(Finding::warning("member", detail).advice(&advice));
            }
        }
    }
    if !is_there {
        let advice = "see onehold-postgres(7)";
        found.push(Finding::failed("server", "no server of this store answers").advice(advice));
    }
    (found, is_there)
}

/// Whether it keeps the store.
fn of_member(address: &Address, member: &Member, found: &mut Vec<Finding>) -> Answer<bool> {
    let mut connection = Connection::open(address, member, TIMEOUT)?;
    let is_replica = connection.ask("select pg_is_in_recovery()", TIMEOUT)?;
    let detail = format!("{}: PostgreSQL {}", member.text, connection.version);
    if is_replica.as_deref() == Some("t") {
        let detail = format!("{detail}, a replica: it is asked for nothing");
        found.push(Finding::ok("member", detail));
        return Ok(false);
    }
    found.push(Finding::ok("member", detail));
    let (now, backend) = (chrono::Utc::now().timestamp(), connection.process);
    let details = FAULTS.map(|(_, detail, _)| detail).join(", ");
    let query = format!(
        "select json_build_array({details}) from (select {backend} as backend,
            floor(extract(epoch from clock_timestamp()))::bigint - {now} as ahead) here"
    );
    let said = connection.ask(&query, TIMEOUT)?.unwrap_or_default();
    let details: Vec<Option<String>> = serde_json::from_str(&said).map_err(|_| unreadable())?;
    for ((check, _, advice), detail) in FAULTS.into_iter().zip(details) {
        found.extend(detail.map(|detail| {
            Finding::warning(check, format!("{}: {detail}", member.text)).advice(advice)
        }));
    }
    connection.ask(&call(&address.prefix, &json!({ "reads": [] })), TIMEOUT)?;
    Ok(true)
}
