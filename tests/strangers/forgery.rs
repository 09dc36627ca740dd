//! What a stranger does to a file: a value of its JSON, its bytes, its kind, its name.

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

/// One change of one file, which is the one with this index.
#[derive(Clone, Debug)]
pub struct Forgery {
    pub file: Index,
    pub change: Change,
}

#[derive(Clone, Debug)]
pub enum Change {
    /// Another value at a place in its JSON.
    Set(Index, Forged),
    Remove(Index),
    /// All processes in it are this one.
    Aim(Target),
    Bytes(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    /// Something else in its place.
    Replace(Kind),
    Rename(&'static str),
    /// The same file under another name too.
    Copy(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// A process of root.
    Victim,
    /// A process of the stranger.
    Own,
}

#[derive(Clone, Debug)]
pub enum Forged {
    Json(&'static str),
    Pid(Target),
    Start(Target),
    Long,
    Deep,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    LinkToFile,
    LinkToDirectory,
    LinkToItself,
    HardLink,
    Fifo,
    Directory,
    Empty,
    Zeros,
    Large,
}

const JSON: [&str; 26] = [
    "0",
    "1",
    "-1",
    "2147483647",
    "4294967295",
    "9007199254740992",
    "18446744073709551615",
    "1e308",
    "-0.5",
    "true",
    "false",
    "null",
    "\"\"",
    "\"..\"",
    "\"../outside/canary\"",
    "\"/\"",
    "\"x\"",
    "\"section/y\"",
    "\"\\u0000\"",
    "\"\\u001b[2J\\n\"",
    "\"run\"",
    "\"lease\"",
    "\"2026-01-01T00:00:00Z\"",
    "\"-262143-01-01T00:00:00Z\"",
    "\"+262142-12-31T23:59:59Z\"",
    "{}",
];

const NAMES: [&str; 14] = [
    "x.lock",
    "..lock",
    ".lock",
    "...lock",
    "%2e%2e.lock",
    "%00.lock",
    "%.lock",
    "%2f.lock",
    "new.lock",
    "last",
    "waiting",
    ".onehold.0123456789abcdef",
    "a\nb.lock",
    "x.lock.d",
];

pub fn any() -> impl Strategy<Value = Forgery> {
    let target = || prop_oneof![Just(Target::Victim), Just(Target::Own)];
    let forged = prop_oneof![
        6 => prop::sample::select(&JSON[..]).prop_map(Forged::Json),
        3 => target().prop_map(Forged::Pid),
        1 => target().prop_map(Forged::Start),
        1 => Just(Forged::Long),
        1 => Just(Forged::Deep),
    ];
    let kind = prop::sample::select(
        &[
            Kind::LinkToFile,
            Kind::LinkToDirectory,
            Kind::LinkToItself,
            Kind::HardLink,
            Kind::Fifo,
            Kind::Directory,
            Kind::Empty,
            Kind::Zeros,
            Kind::Large,
        ][..],
    );
    let change = prop_oneof![
        8 => (proptest::arbitrary::any::<Index>(), forged).prop_map(|(at, value)| Change::Set(at, value)),
        2 => proptest::arbitrary::any::<Index>().prop_map(Change::Remove),
        4 => target().prop_map(Change::Aim),
        1 => (proptest::arbitrary::any::<Index>(), proptest::arbitrary::any::<u8>())
            .prop_map(|(at, byte)| Change::Bytes(at, byte)),
        1 => proptest::arbitrary::any::<Index>().prop_map(Change::Cut),
        1 => (proptest::arbitrary::any::<Index>(), prop::collection::vec(proptest::arbitrary::any::<u8>(), 1..9))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        3 => kind.prop_map(Change::Replace),
        1 => prop::sample::select(&NAMES[..]).prop_map(Change::Rename),
        1 => prop::sample::select(&NAMES[..]).prop_map(Change::Copy),
    ];
    (proptest::arbitrary::any::<Index>(), change)
        .prop_map(|(file, change)| Forgery { file, change })
}

/// A process and its start.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: u32,
    pub start: u64,
}

/// A text with this change, if it is one of its content.
pub fn forged(text: &[u8], change: &Change, process: impl Fn(Target) -> Process) -> Vec<u8> {
    let value = |forged: &Forged| match forged {
        Forged::Json(text) => serde_json::from_str(text).unwrap(),
        Forged::Pid(target) => process(*target).pid.into(),
        Forged::Start(target) => process(*target).start.into(),
        Forged::Long => "9".repeat(70_000).into(),
        Forged::Deep => {
            serde_json::from_str(&format!("{}{}", "[".repeat(100), "]".repeat(100))).unwrap()
        }
    };
    let mut bytes = text.to_vec();
    match change {
        Change::Bytes(at, byte) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
        Change::Insert(at, inserted) => {
            let at = at.index(bytes.len() + 1);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Change::Set(..) | Change::Remove(_) | Change::Aim(_) => {
            // Each line of a journal is a document.
            let is_lines = text.ends_with(b"}\n")
                && text.iter().filter(|byte| **byte == b'{').count() > 1
                && serde_json::from_slice::<Value>(text).is_err();
            let documents: Vec<&[u8]> = if is_lines {
                text.split(|byte| *byte == b'\n').collect()
            } else {
                vec![text]
            };
            let mut changed = Vec::new();
            for document in documents {
                let Ok(mut json) = serde_json::from_slice::<Value>(document) else {
                    changed.extend_from_slice(document);
                    continue;
                };
                let paths = paths(&json);
                match change {
                    Change::Set(at, forged) if !paths.is_empty() => {
                        *json.pointer_mut(&paths[at.index(paths.len())]).unwrap() = value(forged);
                    }
                    Change::Remove(at) if !paths.is_empty() => {
                        let (parent, key) = paths[at.index(paths.len())]
                            .rsplit_once('/')
                            .map(|(parent, key)| (parent.to_owned(), key.to_owned()))
                            .unwrap();
                        if let Some(Value::Object(parent)) = json.pointer_mut(&parent) {
                            parent.remove(&key);
                        }
                    }
                    Change::Aim(target) => aim(&mut json, process(*target)),
                    _ => {}
                }
                changed.extend(serde_json::to_vec(&json).unwrap());
                changed.push(b'\n');
            }
            bytes = changed;
        }
        _ => {}
    }
    bytes
}

fn aim(json: &mut Value, at: Process) {
    match json {
        Value::Object(keys) => {
            for (key, value) in keys {
                match key.as_str() {
                    "pid" | "taken_by" => *value = at.pid.into(),
                    "start" => *value = at.start.into(),
                    _ => aim(value, at),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| aim(value, at)),
        _ => {}
    }
}

/// All places of a document, as JSON pointers.
fn paths(json: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![(String::new(), json)];
    while let Some((path, value)) = left.pop() {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(keys) => keys
                .iter()
                .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
                .collect(),
            Value::Array(values) => values
                .iter()
                .enumerate()
                .map(|(at, value)| (at.to_string(), value))
                .collect(),
            _ => Vec::new(),
        };
        for (key, value) in children {
            let path = format!("{path}/{key}");
            found.push(path.clone());
            left.push((path, value));
        }
    }
    found
}
