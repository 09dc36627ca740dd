//! Whether the members of a cluster are suitable for locks.

use super::failure::FREE_SPACE;
use super::messages::StatusMessage;
use crate::cluster::engine::Answer;
use crate::finding::Finding;
use crate::sys::process::boottime_milliseconds;

/// From when on a member is slow, in milliseconds.
const SLOW_MS: u64 = 500;

/// What each member says, one after the other, and whether any says something.
pub(super) fn examine(
    endpoints: &[String],
    status_of: impl Fn(&str) -> Answer<StatusMessage>,
) -> (Vec<Finding>, bool) {
    let mut found = Vec::new();
    let mut answered: Vec<(&str, StatusMessage)> = Vec::new();
    for endpoint in endpoints {
        let began = boottime_milliseconds();
        let status = status_of(endpoint);
        let took = boottime_milliseconds().saturating_sub(began);
        found.push(of_member(endpoint, &status, took));
        answered.extend(status.ok().map(|status| (endpoint.as_str(), status)));
    }
    if answered.is_empty() {
        let advice = "check the URL, the certificates and the user: see onehold-etcd(7)";
        found.push(Finding::failed("cluster", "no member answers").advice(advice));
        return (found, false);
    }
    found.extend(two_clusters(&answered));
    found.extend(versions(&answered));
    found.extend(alarms(&answered));
    (found, true)
}

fn of_member(endpoint: &str, status: &Answer<StatusMessage>, took: u64) -> Finding {
    const CHECK: &str = "member";
    let status = match status {
        Ok(status) => status,
        Err(failure) => {
            let detail = format!("{endpoint}: {}", failure.message);
            let advice = "a store needs more than half of its members";
            return Finding::warning(CHECK, detail).advice(advice);
        }
    };
    let detail = format!("{endpoint}: etcd {}, {took} ms", status.version);
    if status.is_learner {
        let id = status.header.member_id.0;
        let advice = format!(
            "leave it out of the URL, or make it a voting member: `etcdctl member promote {id:x}`"
        );
        Finding::failed(CHECK, format!("{detail}, a learner: it refuses requests")).advice(&advice)
    } else if status.leader.0 == 0 {
        let advice = "it is cut off from the other members, or most of them are away";
        Finding::warning(CHECK, format!("{detail}, without a leader")).advice(advice)
    } else if took > SLOW_MS {
        let advice = "leases are renewed by it: raise --ttl, or use a nearer member";
        Finding::warning(CHECK, detail).advice(advice)
    } else {
        Finding::ok(CHECK, detail)
    }
}

/// Members of two clusters would be two stores: each process uses that of whom it reaches first.
fn two_clusters(answered: &[(&str, StatusMessage)]) -> Option<Finding> {
    let (first, of_first) = answered.first()?;
    let cluster = of_first.header.cluster_id;
    let others = answered
        .iter()
        .filter(|(_, status)| status.header.cluster_id != cluster);
    let others: Vec<&str> = others.map(|(endpoint, _)| *endpoint).collect();
    if others.is_empty() {
        return None;
    }
    let others = others.join(" and ");
    let detail = format!("{others}: of another cluster than {first}, so two can hold one lock");
    let advice = "name the members of one cluster only";
    Some(Finding::failed("cluster", detail).advice(advice))
}

/// One finding for each version that is not fit, or that all are.
fn versions(answered: &[(&str, StatusMessage)]) -> Vec<Finding> {
    const CHECK: &str = "version";
    let mut versions: Vec<&str> = answered
        .iter()
        .map(|(_, status)| &*status.version)
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let finding = |version: &&str| {
        let advice = "update to 3.4.42, 3.5.28 or 3.6.9, or a later one of these series; \
                      until then for trials only, see onehold-etcd(7)";
        let fault = fault_of_version(version)?;
        Some(Finding::failed(CHECK, format!("{version}: {fault}")).advice(advice))
    };
    let faults: Vec<Finding> = versions.iter().filter_map(finding).collect();
    if faults.is_empty() {
        return vec![Finding::ok(CHECK, versions.join(", "))];
    }
    faults
}

/// Why a version is not suitable for locks. onehold-etcd(7) names the issues. `None`: it is, or it is not known.
fn fault_of_version(version: &str) -> Option<&'static str> {
    let mut parts = version.split(['.', '-', '+']).map(str::parse::<u64>);
    let mut next = || parts.next().and_then(Result::ok);
    let (major, minor, patch) = (next()?, next()?, next()?);
    match (major, minor, patch) {
        (..3, ..) | (3, ..4, _) => Some("it does not have what is needed"),
        (3, 5, ..3) => Some("it can corrupt data"),
        (3, 4, ..42) | (3, 5, ..28) | (3, 6, ..9) => Some(
            "a member that was paused may answer from the past, so that a lease counts as renewed that has ended",
        ),
        _ => None,
    }
}

/// The alarms of the cluster.
fn alarms(answered: &[(&str, StatusMessage)]) -> Vec<Finding> {
    let is_raised = |alarm: &str| {
        let mut errors = answered.iter().flat_map(|(_, status)| &status.errors);
        errors.any(|error| error.contains(alarm))
    };
    let no_space = "the database is full, and takes no new holds";
    let corrupt = "the members do not have the same data";
    let replace = "replace the member that `etcdctl alarm list` names";
    let alarms = [
        ("NOSPACE", no_space, FREE_SPACE),
        ("CORRUPT", corrupt, replace),
    ];
    let raised = alarms.into_iter().filter(|(alarm, ..)| is_raised(alarm));
    raised
        .map(|(alarm, says, advice)| {
            Finding::failed("alarm", format!("{alarm}: {says}")).advice(advice)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_the_page_rules_out_are_not_fit() {
        for version in [
            "2.3.8", "3.3.27", "3.4.0", "3.4.23", "3.4.41", "3.5.1", "3.5.27", "3.6.0", "3.6.8",
        ] {
            assert!(fault_of_version(version).is_some(), "{version}");
        }
        for version in [
            "3.4.42", "3.4.44", "3.5.28", "3.5.30", "3.6.9", "3.6.14", "3.7.0", "4.0.0", "",
        ] {
            assert_eq!(fault_of_version(version), None, "{version}");
        }
        let corrupts = fault_of_version("3.5.2").is_some_and(|fault| fault.contains("corrupt"));
        assert!(corrupts);
    }
}
