//! Checks what `--json` prints against `tests/schema/onehold.json`, by the part of JSON Schema 2020-12 that this
//! schema uses. Any other keyword is a panic: it would check nothing.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value;

/// The schema. onehold-json(5) is made from it.
pub static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../schema/onehold.json")).unwrap());

/// What a check has found.
#[derive(Default)]
pub struct Found {
    pub errors: Vec<String>,
    /// The keys that were not null, such as `lock.pid`, each with the definition that it is of.
    pub seen: BTreeSet<String>,
}

/// Fails unless the value is as the schema says.
#[track_caller]
pub fn assert_valid(value: &Value) {
    let errors = check(&SCHEMA, value).errors;
    assert!(
        errors.is_empty(),
        "tests/schema/onehold.json: {errors:#?}\n{value}"
    );
}

pub fn check(root: &Value, value: &Value) -> Found {
    let mut found = Found::default();
    Checker { root }.check(root, value, ("", ""), &mut found);
    found
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    /// Returns the keys of the value that the schema names. `place`: where the value is, and the definition that
    /// the schema is of.
    fn check<'v>(
        &self,
        schema: &Value,
        value: &'v Value,
        place: (&str, &str),
        found: &mut Found,
    ) -> BTreeSet<&'v str> {
        let mut named = BTreeSet::new();
        let (at, of) = place;
        for (keyword, says) in schema.as_object().unwrap() {
            let parts = says.as_array().map_or(&[][..], Vec::as_slice);
            let limit = says.as_f64().unwrap_or_default();
            let is_valid = match keyword.as_str() {
                "type" if parts.is_empty() => has_type(value, says),
                "type" => parts.iter().any(|one| has_type(value, one)),
                "const" => value == says,
                "enum" => parts.contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= limit),
                "maximum" => value.as_f64().is_none_or(|number| number <= limit),
                "format" => value.as_str().is_none_or(is_time),
                "required" => parts.iter().all(|key| {
                    let is_there = value.get(key.as_str().unwrap()).is_some();
                    is_there || !value.is_object()
                }),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(says, item, (&format!("{at}/{index}"), of), found);
                    }
                    true
                }
                "properties" => {
                    for (key, inner) in value.as_object().into_iter().flatten() {
                        let Some(says) = says.get(key) else { continue };
                        self.check(says, inner, (&format!("{at}/{key}"), of), found);
                        named.insert(key.as_str());
                        if !inner.is_null() {
                            found.seen.insert(format!("{of}.{key}"));
                        }
                    }
                    true
                }
                "$ref" => {
                    let name = says.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    let schema = &self.root["$defs"][name];
                    named.extend(self.check(schema, value, (at, name), found));
                    true
                }
                "allOf" => {
                    let all = parts.iter();
                    named.extend(all.flat_map(|one| self.check(one, value, place, found)));
                    true
                }
                "anyOf" => {
                    let mut errors = Vec::new();
                    let is_one = parts.iter().any(|one| {
                        let mut own = Found::default();
                        named.extend(self.check(one, value, place, &mut own));
                        found.seen.extend(own.seen);
                        errors.extend(own.errors.iter().cloned());
                        own.errors.is_empty()
                    });
                    // Which words a word is not does not matter.
                    let are_told = !is_one && (!value.is_string() || parts.len() <= 2);
                    let told = errors.into_iter().filter(|_| are_told);
                    found.errors.extend(told);
                    is_one || are_told
                }
                "if" => {
                    let mut own = Found::default();
                    self.check(says, value, place, &mut own);
                    let next = ["else", "then"][usize::from(own.errors.is_empty())];
                    let next = schema.get(next).into_iter();
                    named.extend(next.flat_map(|next| self.check(next, value, place, found)));
                    true
                }
                "then" | "else" | "$schema" | "$defs" | "title" | "description" => true,
                "unevaluatedProperties" if says == false => true,
                _ => panic!("no check for {keyword}: {says}"),
            };
            if !is_valid {
                let value = Some(value).filter(|value| !value.is_object());
                let value = value.map_or_else(String::new, |value| format!(" {value}"));
                found.errors.push(format!("{at}:{value} {keyword}: {says}"));
            }
        }
        if schema.get("unevaluatedProperties").is_some() {
            for (key, _) in value.as_object().into_iter().flatten() {
                if !named.contains(key.as_str()) {
                    found.errors.push(format!("{at}: unknown key {key}"));
                }
            }
        }
        named
    }
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        name => panic!("unknown type {name}"),
    }
}

/// RFC 3339 in UTC.
fn is_time(text: &str) -> bool {
    text.ends_with('Z') && chrono::DateTime::parse_from_rfc3339(text).is_ok()
}
