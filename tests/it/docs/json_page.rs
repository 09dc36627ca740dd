//! Makes onehold-json(5) from `tests/schema/onehold.json`.

use clap_mangen::roff::{Roff, bold, roman};
use serde_json::Value;

use crate::harness::schema::SCHEMA;

/// The sections, each with its objects. One with the title of its section has no heading of its own.
const SECTIONS: [(&str, &[&str]); 7] = [
    (
        "RESULT",
        &[
            "result",
            "result_taking",
            "result_held",
            "result_run",
            "result_hold",
            "result_served",
            "result_check",
            "result_doctor",
            "result_history",
            "result_config",
        ],
    ),
    ("EVENTS OF HOLD", &["event"]),
    ("REQUESTS", &["request"]),
    ("EVENTS OF LIST", &["list_event"]),
    (
        "LOCK OBJECT",
        &["lock", "program", "slots", "locker", "waiter"],
    ),
    (
        "ERROR OBJECT",
        &[
            "error",
            "details_refused",
            "details_hold",
            "details_holds",
            "details_running",
            "running_process",
            "details_time_limit",
            "details_deadlock",
            "deadlock_link",
        ],
    ),
    (
        "OTHER OBJECTS",
        &[
            "process",
            "journal_event",
            "actor",
            "previous_hold",
            "kept_place",
            "check",
            "past_hold",
            "summary",
            "quantiles",
            "setting",
        ],
    ),
];

/// The rules, for DESCRIPTION.
const RULES: [&str; 6] = [
    "With --json, a command prints exactly one object on one line to stdout, even if it fails: the result. For run, whose stdout belongs to CMD, it is the last line on stderr. run --exec and run --reentrant are replaced by CMD, and print a result only if they fail. For hold and list --watch, see EVENTS OF HOLD and EVENTS OF LIST. The exit status is the same as without --json.",
    "Within 1.x, no key is removed, and none changes its name, type, unit or meaning. Later versions may add keys, and words of status, error.code, reason and the like: ignore unknown keys, and treat an unknown status or error.code as a failure if success is false. All keys date from 0.1.0; later ones say which version added them.",
    "A key that is not optional is always present. Unless the text of a key says otherwise, null and absent mean none or not known. Texts for people (message, errors, evidence, zombie_reason, detail, advice) may change at any time.",
    "A time is a string as in RFC 3339, in UTC with Z and 0, 3, 6 or 9 decimals of a second, such as 2026-11-22T13:21:16.123456Z. Sorted as strings, times may be out of order. Keys in _seconds are seconds with decimals, keys in _ms milliseconds.",
    "No integer is greater than 2^53, so a double holds it exactly. PIDs and numbers of users have at most 32 bits. Journal events are an exception: each user who can write to the store can edit the journal.",
    "The text is UTF-8. Characters that could control a terminal are escaped (\\u001b). Invalid UTF-8, such as in a path, is replaced by U+FFFD.",
];

pub(crate) fn page(pages: &[String]) -> Vec<u8> {
    let mut roff = Roff::new();
    let source = format!("onehold {}", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["ONEHOLD-JSON", "5", "", &source, "onehold"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("onehold-json - what onehold prints with --json")]);
    roff.control("SH", ["DESCRIPTION"]);
    for rule in RULES {
        roff.control("PP", []);
        roff.text([roman(rule)]);
    }
    for (section, objects) in SECTIONS {
        roff.control("SH", [section]);
        for name in objects {
            add_object(&mut roff, section, &SCHEMA["$defs"][name]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(super::others(pages, "onehold-json.5"))]);
    roff.render().into_bytes()
}

/// The keys of an object: those that are always there in their order, and the others.
fn keys(object: &Value) -> Vec<&str> {
    let required = object["required"].as_array().into_iter().flatten();
    let mut keys: Vec<&str> = required.map(text).collect();
    let all = object["properties"].as_object().unwrap().keys();
    let others: Vec<&String> = all.filter(|key| !keys.contains(&key.as_str())).collect();
    keys.extend(others.iter().map(|key| key.as_str()));
    keys
}

fn add_object(roff: &mut Roff, section: &str, object: &Value) {
    let title = text(&object["title"]);
    if title.to_uppercase() != section {
        roff.control("SS", [title]);
    }
    if let Some(description) = object["description"].as_str() {
        roff.control("PP", []);
        roff.text([roman(description)]);
    }
    for key in keys(object) {
        add_key(roff, object, key);
    }
}

fn add_key(roff: &mut Roff, object: &Value, key: &str) {
    let schema = &object["properties"][key];
    let required = object["required"].as_array().into_iter().flatten();
    let is_optional = !required.into_iter().any(|one| one == key);
    let optional = if is_optional { ", optional" } else { "" };
    let mut types = Vec::new();
    add_types(schema, &mut types);
    roff.control("TP", []);
    roff.text([
        bold(key),
        roman(format!(" ({}{optional})", types.join(" or "))),
    ]);
    let mut words = words(schema);
    // The only word that a key can have is described with the key.
    if schema.get("const").is_some() {
        words = words.iter().map(|(word, _)| (*word, "")).collect();
    }
    let description = text(&schema["description"]);
    if words.iter().all(|(_, meaning)| meaning.is_empty()) {
        let words = words.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        let begins = if words.is_empty() { "" } else { ": " };
        roff.text([roman(format!("{description}{begins}{}", words.join(", ")))]);
        return;
    }
    roff.text([roman(description)]);
    roff.control("RS", []);
    for (word, meaning) in words {
        roff.control("TP", []);
        roff.text([bold(word)]);
        roff.text([roman(meaning)]);
    }
    roff.control("RE", []);
}

/// The types of a value in words, each one once.
fn add_types(schema: &Value, types: &mut Vec<String>) {
    let mut add = |one: String| {
        if !types.contains(&one) {
            types.push(one);
        }
    };
    let of_value = |value: &Value| if value.is_null() { "null" } else { "string" };
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.trim_start_matches("#/$defs/");
        let target = &SCHEMA["$defs"][name];
        match (target["title"].as_str(), name) {
            (Some(title), _) => add(title.to_lowercase()),
            (None, "time") => add("time".to_owned()),
            (None, _) => add_types(target, types),
        }
    } else if schema["items"].is_object() {
        let mut items = Vec::new();
        add_types(&schema["items"], &mut items);
        let plural = if items[0].ends_with('s') { "es" } else { "s" };
        add(format!("array of {}{plural}", items.join(" or ")));
        if schema["type"].is_array() {
            add("null".to_owned());
        }
    } else if let Some(choice) = schema["anyOf"].as_array() {
        for one in choice {
            add_types(one, types);
        }
    } else if let Some(listed) = schema["enum"].as_array() {
        for value in listed {
            add(of_value(value).to_owned());
        }
    } else if let Some(value) = schema.get("const") {
        add(of_value(value).to_owned());
    } else {
        let one = std::slice::from_ref(&schema["type"]);
        let all = schema["type"].as_array().map_or(one, Vec::as_slice);
        for one in all {
            add(text(one).to_owned());
        }
    }
}

/// The words that a value can be, and what they mean.
fn words(schema: &Value) -> Vec<(&str, &str)> {
    if let Some(listed) = schema["enum"].as_array() {
        let words = listed.iter().filter_map(Value::as_str);
        let words = words.filter(|word| !word.is_empty());
        return words.map(|word| (word, "")).collect();
    }
    if let Some(word) = schema["const"].as_str() {
        return vec![(word, schema["description"].as_str().unwrap_or_default())];
    }
    if let Some(reference) = schema["$ref"].as_str() {
        let target = &SCHEMA["$defs"][reference.trim_start_matches("#/$defs/")];
        return if target["title"].is_null() {
            words(target)
        } else {
            Vec::new()
        };
    }
    let choice = schema["anyOf"].as_array().into_iter().flatten();
    choice.flat_map(words).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn page_has_every_object_and_every_key_a_description() {
    let all = SCHEMA["$defs"].as_object().unwrap();
    let mut with_keys: Vec<&str> = all
        .iter()
        .filter(|(_, schema)| schema["properties"].is_object())
        .map(|(name, _)| name.as_str())
        .collect();
    let objects = SECTIONS.iter().flat_map(|(_, objects)| *objects);
    let mut objects: Vec<&str> = objects.copied().collect();
    with_keys.sort_unstable();
    objects.sort_unstable();
    assert_eq!(objects, with_keys);
    for name in objects {
        for key in keys(&all[name]) {
            let schema = &all[name]["properties"][key];
            assert!(schema["description"].is_string(), "{name}.{key}");
        }
    }
    let mut keys = keys(&all["lock"]);
    let mut known: Vec<&str> = super::doc_text::lock_keys().collect();
    keys.sort_unstable();
    known.sort_unstable();
    assert_eq!(keys, known);
}

/// The words in quotes between two texts of a source file, of these characters alone.
fn quoted(file: &str, start: &str, end: &str, is_part: fn(char) -> bool) -> Vec<String> {
    let source = std::fs::read_to_string(super::root().join("src").join(file)).unwrap();
    let (_, after) = source.split_once(start).expect(start);
    let (between, _) = after.split_once(end).expect(end);
    let quoted = between.split('"').skip(1).step_by(2);
    let quoted = quoted.filter(|word| !word.is_empty() && word.chars().all(is_part));
    quoted.map(str::to_owned).collect()
}

#[test]
fn each_title_gets_a_plural_by_a_letter_at_its_end() {
    let objects = SCHEMA["$defs"].as_object().unwrap().values();
    for title in objects.filter_map(|object| object["title"].as_str()) {
        let has_clause = title.split(' ').any(|word| word == "that");
        assert!(!has_clause, "{title}");
    }
}

#[test]
fn words_of_the_schema_are_those_that_the_program_says() {
    let is_code = |char: char| char.is_ascii_uppercase() || char == '_';
    let is_word = |char: char| char.is_ascii_lowercase() || char == '-';
    let of = |object: &str, key: &str| words(&SCHEMA["$defs"][object]["properties"][key]);
    let formats = onehold::Format::ALL.map(|format| format.name().to_owned());
    for (object, key, mut said) in [
        (
            "error",
            "code",
            quoted(
                "bin/onehold/messages/outcome.rs",
                "impl Refusal {",
                "const fn row",
                is_code,
            ),
        ),
        (
            "lock",
            "reason",
            quoted(
                "decision/verdict.rs",
                "pub enum Reason {",
                "pub enum Evidence {",
                is_word,
            ),
        ),
        (
            "lock",
            "proof",
            quoted(
                "decision/verdict.rs",
                "pub enum Evidence {",
                "impl Reason {",
                is_word,
            ),
        ),
        (
            "lock",
            "kind",
            quoted(
                "bin/onehold/messages/describe.rs",
                "fn kind(",
                "\n}",
                is_word,
            ),
        ),
        ("lock", "format", formats.to_vec()),
        (
            "event",
            "reason",
            quoted(
                "bin/onehold/commands/hold/mod.rs",
                "fn reason(",
                "\n    }",
                is_word,
            ),
        ),
        (
            "process",
            "state",
            quoted("bin/onehold/tables/work.rs", "fn state(", "\n}", is_word),
        ),
        (
            "check",
            "result",
            quoted("finding.rs", "enum Grade", "\n}", char::is_alphabetic),
        ),
    ] {
        let mut words: Vec<&str> = of(object, key).iter().map(|(word, _)| *word).collect();
        assert!(words.len() > 2, "{object}.{key}");
        said.sort_unstable();
        words.sort_unstable();
        assert_eq!(words, said, "{object}.{key}");
    }
}

#[test]
fn each_status_is_said_somewhere() {
    let mut source = String::new();
    let mut files = Vec::new();
    crate::layers::collect(&super::root().join("src/bin/onehold"), &mut files);
    for file in files {
        source.push_str(&std::fs::read_to_string(file).unwrap());
    }
    for (status, _) in words(&SCHEMA["$defs"]["result"]["properties"]["status"]) {
        assert!(source.contains(&format!("\"{status}\"")), "{status}");
    }
}
