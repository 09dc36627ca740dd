//! What a check found out about something that locks depend on. Data only.

use serde::Serialize;

/// How good something is for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Grade {
    /// As it should be.
    #[serde(rename = "ok")]
    Ok,
    /// A feature is missing, or the result may surprise.
    #[serde(rename = "warning")]
    Warning,
    /// Locks do not work.
    #[serde(rename = "FAILED")]
    Failed,
}

/// What was found out about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, in one or two words.
    pub check: &'static str,
    /// How good it is.
    pub result: Grade,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    /// It is as it should be.
    pub fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            result: Grade::Ok,
            detail: detail.into(),
            advice: None,
        }
    }

    /// A feature is missing, or the result may surprise.
    pub fn warning(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            result: Grade::Warning,
            ..Self::ok(check, detail)
        }
    }

    /// Locks do not work.
    pub fn failed(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            result: Grade::Failed,
            ..Self::ok(check, detail)
        }
    }

    /// With what to do about it.
    #[must_use]
    pub fn advice(mut self, advice: &str) -> Self {
        self.advice = Some(advice.to_owned());
        self
    }
}
