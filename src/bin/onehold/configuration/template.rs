//! Texts of a profile, with values of the lock in braces.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, SecondsFormat};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::values::{Key, WANTED};
use crate::words;

/// The limit of the wait: known of a refusal, and not of a lock.
pub(crate) const LIMIT: &str = "limit";

fn value_of<'a>(values: &'a Value, key: &str) -> Option<&'a Value> {
    let own_name = || values.get("name").filter(|_| key == WANTED);
    values.get(key).or_else(own_name)
}

/// A text with keys of the JSON object in braces: `{key}`, `{key:format}`, `{key|text}`. A line whose
/// keys are all null is left out; the line below it that begins with `|` is shown then, and only then.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Template(Box<[Line]>);

#[derive(Clone, Debug)]
struct Line {
    /// Only where the line above it is left out.
    is_substitute: bool,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Value {
        key: String,
        /// Of a time: 2026-11-22T13:21:16Z instead of 2026-11-22 13:21:16 UTC.
        is_rfc3339: bool,
        fallback: Option<String>,
    },
}

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let line = |text: &str| {
            let inner = text.strip_prefix('|');
            Ok(Line {
                is_substitute: inner.is_some(),
                parts: parts(inner.unwrap_or(text))?,
            })
        };
        let lines = text.lines().map(line);
        lines.collect::<Result<_, String>>().map(Self)
    }
}

fn parts(mut text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    while let Some((before, (inside, after))) = text
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        parts.push(Part::Text(before.to_owned()));
        parts.push(value(inside)?);
        text = after;
    }
    parts.push(Part::Text(text.to_owned()));
    Ok(parts)
}

fn value(inside: &str) -> Result<Part, String> {
    let mut name_and_fallback = inside.splitn(2, '|');
    let name = name_and_fallback.next().unwrap_or_default();
    let (key, format) = name.split_once(':').unwrap_or((name, "utc"));
    if key != LIMIT {
        Key::try_from(key.to_owned())?;
    }
    let is_rfc3339 = match format {
        "utc" => false,
        "rfc3339" => true,
        other => return Err(format!("unknown format `{other}`: use utc or rfc3339")),
    };
    Ok(Part::Value {
        key: key.to_owned(),
        is_rfc3339,
        fallback: name_and_fallback.next().map(str::to_owned),
    })
}

impl Template {
    pub(crate) fn names_the_limit(&self) -> bool {
        let names_it = |part: &Part| matches!(part, Part::Value { key, .. } if key == LIMIT);
        self.0.iter().any(|line| line.parts.iter().any(names_it))
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
    /// `None`: it has keys, and none of them is known.
    fn fill(&self, values: &Value) -> Option<String> {
        let (mut text, mut has_key, mut has_value) = (String::new(), false, false);
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Value {
                    key,
                    is_rfc3339,
                    fallback,
                } => {
                    has_key = true;
                    let known =
                        value_of(values, key).and_then(|value| shown(key, value, *is_rfc3339));
                    has_value |= known.is_some() || fallback.is_some();
                    let unknown = || fallback.clone().unwrap_or_else(|| "unknown".to_owned());
                    text.push_str(&known.unwrap_or_else(unknown));
                }
            }
        }
        (has_value || !has_key).then_some(text)
    }
}

/// A value in a text; `None`: it is null.
fn shown(key: &str, value: &Value, is_rfc3339: bool) -> Option<String> {
    let is_time = key.ends_with("_at");
    match value {
        Value::Null => None,
        Value::String(text) => Some(match DateTime::parse_from_rfc3339(text) {
            Ok(time) if is_time && is_rfc3339 => {
                time.to_utc().to_rfc3339_opts(SecondsFormat::Secs, true)
            }
            Ok(time) if is_time => time.to_utc().format("%Y-%m-%d %H:%M:%S UTC").to_string(),
            _ => words::escape(text),
        }),
        value => Some(value.to_string()),
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
                Detail::Value(key) => value_of(lock, &key.0).cloned(),
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
