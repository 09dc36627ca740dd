//! Lock files as the programs write them that onehold replaces.

use chrono::{SecondsFormat, Utc};
use serde_json::json;

pub fn this_host() -> String {
    hostname::get().unwrap().into_string().unwrap()
}

/// The record of prodigy for a job.
pub fn prodigy(job: &str, pid: u32) -> String {
    let record = json!({
        "job_id": job, "process_id": pid, "hostname": this_host(), "acquired_at": Utc::now(),
    });
    serde_json::to_string_pretty(&record).unwrap()
}

/// The record of the sprint mutex.
pub fn sprint(pid: u32) -> String {
    let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
    format!(
        "pid: {pid}\nsession_id: \"other\"\nstarted_at: \"{now}\"\nepic_spec: \"e\"\nlock_version: 1\n"
    )
}

/// The record of the memory lock.
pub fn memory(pid: u32) -> String {
    let now = Utc::now().format("%Y-%m-%dT%H:%M:%S%.6f+00:00").to_string();
    let record = json!({
        "pid": pid, "session_id": "other", "acquired_at": now, "hostname": this_host(),
        "operation": "write",
    });
    serde_json::to_string_pretty(&record).unwrap()
}
