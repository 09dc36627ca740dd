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
pub(crate) struct Template(Box<str>);

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let check = |key: &str, format: &str| {
            if key != LIMIT {
                Key::try_from(key.to_owned())?;
            }
            match format {
                "utc" | "rfc3339" => Ok(None),
                other => Err(format!("unknown format `{other}`: use utc or rfc3339")),
            }
        };
        for line in text.lines() {
            filled(line, check)?;
        }
        Ok(Self(text.into()))
    }
}

impl Template {
    pub(crate) fn names_the_limit(&self) -> bool {
        ["{limit}", "{limit|", "{limit:"]
            .iter()
            .any(|limit| self.0.contains(limit))
    }

    /// The text for a lock; `None`: there is none. `values`: its JSON object, and perhaps [`LIMIT`].
    pub(crate) fn fill(&self, values: &Value) -> Option<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut is_left_out = false;
        for line in self.0.lines() {
            let instead = line.strip_prefix('|');
            if instead.is_some() && !is_left_out {
                continue;
            }
            let shown = |key: &str, format: &str| Ok(shown(values, key, format));
            let filled = filled(instead.unwrap_or(line), shown).ok().flatten();
            is_left_out = filled.is_none();
            lines.extend(filled);
        }
        Some(lines.join("\n")).filter(|text| !text.is_empty())
    }
}

/// A text with what `value` returns for each key and format. `None`: it has keys, and none of them has a value.
fn filled(
    mut rest: &str,
    value: impl Fn(&str, &str) -> Result<Option<String>, String>,
) -> Result<Option<String>, String> {
    let (mut text, mut has_keys, mut has_value) = (String::new(), false, false);
    while let Some((before, begun)) = rest.split_once('{')
        && let Some((inside, after)) = begun.split_once('}')
    {
        let (name, fallback) = inside.split_once('|').unzip();
        let name = name.unwrap_or(inside);
        let (key, format) = name.split_once(':').unwrap_or((name, "utc"));
        let known = value(key, format)?.or_else(|| fallback.map(str::to_owned));
        (has_keys, has_value) = (true, has_value || known.is_some());
        text = text + before + known.as_deref().unwrap_or("unknown");
        rest = after;
    }
    Ok((has_value || !has_keys).then(|| text + rest))
}

/// The value in a text; `None`: it is null, or not known.
fn shown(values: &Value, key: &str, format: &str) -> Option<String> {
    let is_time = key.ends_with("_at");
    match values.get(key)? {
        Value::Null => None,
        Value::String(text) => Some(match DateTime::parse_from_rfc3339(text) {
            Ok(time) if is_time && format == "rfc3339" => {
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
