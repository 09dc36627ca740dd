//! Texts of a profile, with values of the lock in braces.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, SecondsFormat};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::values::Key;
use crate::words;

/// The limit of the wait: known of a refusal, and not of a lock.
pub(crate) const LIMIT: &str = "limit";

/// A text with keys of the JSON object in braces: `{key}`, `{key:format}`, `{key|text}`. A line whose
/// keys are all null is left out; the line below it that begins with `|` is shown then, and only then.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Template(Box<[Line]>);

#[derive(Clone, Debug)]
struct Line {
    /// Only where the line above it is left out.
    is_substitute: bool,
    /// Each with the text before it.
    values: Vec<(String, Placeholder)>,
    rest: String,
}

/// A key in braces.
#[derive(Clone, Debug)]
struct Placeholder {
    key: String,
    /// Of a time: 2026-11-22T13:21:16Z instead of 2026-11-22 13:21:16 UTC.
    is_rfc3339: bool,
    fallback: Option<String>,
}

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let lines = text.lines().map(Line::parse);
        lines.collect::<Result<_, String>>().map(Self)
    }
}

impl Template {
    pub(crate) fn names_the_limit(&self) -> bool {
        let mut values = self.0.iter().flat_map(|line| &line.values);
        values.any(|(_, value)| value.key == LIMIT)
    }

    /// The text for a lock; `None`: there is none. `values`: its JSON object, and perhaps [`LIMIT`].
    pub(crate) fn fill(&self, values: &Value) -> Option<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut is_left_out = false;
        for line in &self.0 {
            if line.is_substitute && !is_left_out {
                continue;
            }
            let filled = line.fill(values);
            is_left_out = filled.is_none();
            lines.extend(filled);
        }
        Some(lines.join("\n")).filter(|text| !text.is_empty())
    }
}

impl Line {
    fn parse(line: &str) -> Result<Self, String> {
        let inner = line.strip_prefix('|');
        let (mut rest, mut values) = (inner.unwrap_or(line), Vec::new());
        while let Some((before, begun)) = rest.split_once('{')
            && let Some((inside, after)) = begun.split_once('}')
        {
            values.push((before.to_owned(), Placeholder::parse(inside)?));
            rest = after;
        }
        Ok(Self {
            is_substitute: inner.is_some(),
            values,
            rest: rest.to_owned(),
        })
    }

    /// `None`: it has keys, and none of them is known.
    fn fill(&self, values: &Value) -> Option<String> {
        let (mut text, mut has_value) = (String::new(), self.values.is_empty());
        for (before, value) in &self.values {
            let known = value.shown(values).or_else(|| value.fallback.clone());
            has_value |= known.is_some();
            text.push_str(before);
            text.push_str(known.as_deref().unwrap_or("unknown"));
        }
        has_value.then(|| text + &self.rest)
    }
}

impl Placeholder {
    fn parse(inside: &str) -> Result<Self, String> {
        let parts = inside.split_once('|');
        let name = parts.map_or(inside, |(name, _)| name);
        let (key, format) = name.split_once(':').unwrap_or((name, "utc"));
        if key != LIMIT {
            Key::try_from(key.to_owned())?;
        }
        let is_rfc3339 = match format {
            "utc" => false,
            "rfc3339" => true,
            other => return Err(format!("unknown format `{other}`: use utc or rfc3339")),
        };
        Ok(Self {
            key: key.to_owned(),
            is_rfc3339,
            fallback: parts.map(|(_, fallback)| fallback.to_owned()),
        })
    }

    /// The value in a text; `None`: it is null, or not known.
    fn shown(&self, values: &Value) -> Option<String> {
        let is_time = self.key.ends_with("_at");
        match values.get(&self.key)? {
            Value::Null => None,
            Value::String(text) => Some(match DateTime::parse_from_rfc3339(text) {
                Ok(time) if is_time && self.is_rfc3339 => {
                    time.to_utc().to_rfc3339_opts(SecondsFormat::Secs, true)
                }
                Ok(time) if is_time => time.to_utc().format("%Y-%m-%d %H:%M:%S UTC").to_string(),
                _ => words::escape(text),
            }),
            value => Some(value.to_string()),
        }
    }
}

/// The values of a lock by the names of the profile's program, nested as it has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Details(BTreeMap<String, Detail>);

#[derive(Clone, Debug)]
enum Detail {
    Value(Key),
    Table(Details),
}

impl Details {
    pub(crate) fn fill(&self, lock: &Value) -> Map<String, Value> {
        let values = self.0.iter().map(|(name, detail)| {
            let value = match detail {
                Detail::Value(key) => lock.get(&key.0).cloned(),
                // Null if nothing in it is known.
                Detail::Table(table) => Some(table.fill(lock))
                    .filter(|filled| !filled.values().all(Value::is_null))
                    .map(Value::Object),
            };
            (name.clone(), value.unwrap_or(Value::Null))
        });
        values.collect()
    }
}

impl<'de> Deserialize<'de> for Detail {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyOrTable;

        impl<'de> Visitor<'de> for KeyOrTable {
            type Value = Detail;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key of the JSON object of a lock, or a table of such keys")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Detail, E> {
                let key = Key::try_from(text.to_owned());
                key.map(Detail::Value).map_err(de::Error::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Detail, A::Error> {
                Details::deserialize(de::value::MapAccessDeserializer::new(map)).map(Detail::Table)
            }
        }

        deserializer.deserialize_any(KeyOrTable)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(text: &str, values: &Value) -> String {
        let template = Template::try_from(text.to_owned()).unwrap();
        template.fill(values).unwrap_or_default()
    }

    #[test]
    fn values_are_shown_by_their_keys() {
        let values = json!({
            "name": "x", "pid": 7, "acquired_at": "2026-11-22T13:21:16.5Z", "owner": null,
            "session_id": "2026-11-22T13:21:16Z", "limit": "5s",
        });
        for (text, expected) in [
            ("{name} {pid} {limit}", "x 7 5s"),
            ("{acquired_at}", "2026-11-22 13:21:16 UTC"),
            ("{acquired_at:rfc3339}", "2026-11-22T13:21:16Z"),
            // Other keys are never shown as times.
            ("{session_id}", "2026-11-22T13:21:16Z"),
            ("{pid} {owner}", "7 unknown"),
            ("{owner|nobody}", "nobody"),
            ("{owner|}", ""),
            ("{name", "{name"),
            ("no keys", "no keys"),
        ] {
            assert_eq!(filled(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn line_without_a_known_value_is_left_out_or_replaced() {
        let values = json!({ "name": "x", "pid": null, "owner": null });
        let text = "{name}\nheld by {pid} of {owner}\n|held by nobody known\n{owner}\nend";
        assert_eq!(filled(text, &values), "x\nheld by nobody known\nend");
        let values = json!({ "name": "x", "pid": 7, "owner": null });
        assert_eq!(filled(text, &values), "x\nheld by 7 of unknown\nend");
    }

    #[test]
    fn unknown_keys_and_formats_are_errors() {
        for (text, expected) in [
            ("{nope}", "unknown key `nope`"),
            (
                "{acquired_at:iso}",
                "unknown format `iso`: use utc or rfc3339",
            ),
        ] {
            let error = Template::try_from(text.to_owned()).unwrap_err();
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn details_are_nested_and_a_table_of_nulls_is_null() {
        let details: Details =
            toml::from_str("locked = \"exists\"\nholder = { pid = \"pid\", who = \"owner\" }\n")
                .unwrap();
        let held = json!({ "exists": true, "pid": 7, "owner": null });
        let expected = json!({ "locked": true, "holder": { "pid": 7, "who": null } });
        assert_eq!(Value::Object(details.fill(&held)), expected);
        let free = json!({ "exists": false, "pid": null, "owner": null });
        let expected = json!({ "locked": false, "holder": null });
        assert_eq!(Value::Object(details.fill(&free)), expected);
    }
}
