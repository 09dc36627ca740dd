//! What may stand behind the keys of a configuration.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use onehold::Format;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::args::{WaitLimit, duration, wait_limit};
use crate::report;

pub(super) fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// One directory or several, of which the first counts whose variable is set.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a path, or an array of paths")]
pub(crate) enum Directories {
    One(Place),
    Several(Vec<Place>),
}

/// A path that may begin with `~` or a variable.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Place(String);

impl TryFrom<String> for Place {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.is_empty() {
            return Err("an empty path");
        }
        Ok(Self(text))
    }
}

impl Place {
    /// `None`: its variable is not set.
    pub(crate) fn expanded(&self) -> Option<PathBuf> {
        let (first, rest) = self.0.split_once('/').unwrap_or((&self.0, ""));
        let base = match first.strip_prefix('$') {
            Some(name) => std::env::var_os(name)
                .filter(|value| !value.is_empty())?
                .into(),
            None if first == "~" => home()?,
            None => return Some(PathBuf::from(&self.0)),
        };
        Some(base.join(rest))
    }
}

/// A key of the JSON object of a lock.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Key(pub(super) String);

impl TryFrom<String> for Key {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if report::is_key(&text) {
            Ok(Self(text))
        } else {
            Err(format!("no lock has a `{text}` in its JSON object"))
        }
    }
}

/// A text with such keys in braces.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Template(pub(super) String);

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        for part in text.split('{').skip(1) {
            if let Some((key, _)) = part.split_once('}') {
                Key::try_from(key.to_owned())?;
            }
        }
        Ok(Self(text))
    }
}

impl Directories {
    pub(crate) fn first(&self) -> anyhow::Result<PathBuf> {
        let all = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several.as_slice(),
        };
        all.iter().find_map(Place::expanded).with_context(|| {
            let all: Vec<_> = all.iter().map(|place| format!("`{}`", place.0)).collect();
            format!("no directory: of {} no variable is set", all.join(", "))
        })
    }
}

/// The name of an environment variable.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Variable(pub(super) String);

impl TryFrom<String> for Variable {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err("no name of a variable");
        }
        Ok(Self(name))
    }
}

/// A duration; a bare number is seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(Scalar("a duration as `30s`"))?;
        match duration(&text) {
            // As records keep it.
            Ok(span) if span.as_millis() > 0 => Ok(Self(span)),
            Ok(_) => Err(de::Error::custom("too short")),
            Err(error) => Err(de::Error::custom(error)),
        }
    }
}

/// What is written as on the command line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<T>(pub(super) T);

impl<'de> Deserialize<'de> for Named<Format> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(Scalar("the name of a format"))?;
        text.parse().map(Named).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Named<WaitLimit> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_any(Scalar("a duration or `forever`"))?;
        wait_limit(&text).map(Named).map_err(de::Error::custom)
    }
}

/// A string, or a number as a string.
struct Scalar(&'static str);

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }
}
