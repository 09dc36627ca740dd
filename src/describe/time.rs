//! Times and durations.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::status::Status;

/// Shows a time: on a terminal in local time, elsewhere in UTC.
pub type ShowTime = fn(DateTime<Utc>) -> String;

/// "since 02:00:07 (3h 12m ago)"
pub fn since(at: DateTime<Utc>, time: ShowTime) -> String {
    format!("since {}", with_age(at, time))
}

pub(super) fn with_age(at: DateTime<Utc>, time: ShowTime) -> String {
    match Utc::now().signed_duration_since(at).to_std() {
        Ok(ago) => format!("{} ({} ago)", time(at), span(ago)),
        Err(_) => format!("{} (in the future)", time(at)),
    }
}

/// Time since the lock was acquired, not since the last heartbeat.
pub fn age(status: &Status) -> Option<Duration> {
    let record = status.record.as_ref();
    let since = record.map(|record| Utc::now().signed_duration_since(record.acquired_at));
    since
        .and_then(|since| since.to_std().ok())
        .or(status.verdict.age)
}

/// "10s", or "0.5s".
pub fn short_span(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return span(duration);
    }
    format!("{}s", duration.as_secs_f64())
}

/// A duration by its two largest units: "3h 12m".
pub fn span(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let seconds = duration.as_secs();
    let Some(first) = UNITS.iter().position(|(size, _)| seconds >= *size) else {
        return "0s".to_owned();
    };
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (size, unit) in UNITS.iter().skip(first).take(2) {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            parts.push(format!("{count}{unit}"));
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_shown_in_its_two_largest_units() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3_661, "1h 1m"),
            (11_520, "3h 12m"),
            (90_000, "1d 1h"),
            (86_401, "1d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
