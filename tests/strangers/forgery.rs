//! What a stranger does to the files of a store: what they say, what they are, whose they are, and their names.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// One change of a store. An index picks a file or a directory of the template.
#[derive(Clone, Debug)]
pub enum Forgery {
    Text(Index, Vec<Edit>),
    /// The same, and the file belongs to another user, who lets everybody write it.
    TextOf(Index, Vec<Edit>, User),
    /// The same, and a process of the stranger holds the kernel lock of the file.
    Lock(Index, Vec<Edit>),
    Replace(Index, Kind),
    /// What root might write in place is a hard link of a file outside.
    Linked(&'static str),
    Rename(Index, Name),
    /// The same file under another name too.
    Link(Index, Name),
    /// A file of its own with the text of another.
    Copy(Index, Vec<Edit>, Index, Name),
    /// Lines at the end of the journal, or of the one before it.
    Lines(bool, Vec<Line>),
    Owner(Index, User),
    Mode(Index, u32),
    /// A record of root's is put there.
    OfRoot(Index, How),
    Directory(Index, Instead),
    OwnerOfDirectory(Index, User),
    ModeOfDirectory(Index, u32),
    /// A process of the stranger holds the kernel lock of a directory, or of the store.
    LockDirectory(Option<Index>),
}

/// A line of the journal of the template, changed and repeated.
#[derive(Clone, Debug)]
pub struct Line {
    pub of: Index,
    pub edits: Vec<Edit>,
    pub times: usize,
}

/// A change of a text. An index picks a value, an object or a byte.
#[derive(Clone, Debug)]
pub enum Edit {
    Set(Index, Value),
    Add(Index, &'static str, Value),
    /// Another name for a key.
    Unname(Index),
    /// The processes in it are this one: as the wrapper, or as the work of a hold that is being ended, which has so
    /// much time until KILL.
    Wrapper(Whose),
    /// As the wrapper of a hold whose command has not started, or as the command.
    Starting(Whose),
    Command(Whose),
    Work(Whose, Option<Value>),
    Byte(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
}

/// Whose process it is.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    Root,
    Stranger,
    Third,
}

#[derive(Clone, Copy, Debug)]
pub enum User {
    /// Everybody may write the file.
    Root,
    Third,
}

#[derive(Clone, Debug)]
pub enum Value {
    Json(&'static str),
    Number(u64),
    Text(String),
    Pid(Whose),
    /// Of a process group, to kill(2).
    Group(Whose),
    Start(Whose),
    /// Of a file outside.
    Path(&'static str),
    Long,
    Deep,
}

/// How a record of a live hold of root's comes to a place: all of these are open to whoever may write the directory.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// It is renamed.
    Moved,
    /// It is linked, where fs.protected_hardlinks is off.
    Linked,
    /// It is moved from another store, or root has copied the whole store.
    FromElsewhere,
    /// The same, and there it was of the lock that has this place here.
    SameFromElsewhere,
}

/// What a file is replaced by.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// To the same place in another store.
    SymlinkOutside,
    SymlinkToItself,
    /// Of the same file in another store.
    HardLink,
    Fifo,
    Directory,
    Empty,
    Zeros,
    Large,
}

/// What a directory is replaced by.
#[derive(Clone, Copy, Debug)]
pub enum Instead {
    /// To the same directory of another store.
    SymlinkOutside,
    SymlinkToItself,
    SymlinkToStore,
    File,
    Fifo,
    Nothing,
    /// That many directories, each in the one before.
    Nested(usize),
}

#[derive(Clone, Debug)]
pub enum Name {
    Whole(String),
    /// The same with another number or digest.
    Number(&'static str),
    Digest(&'static str),
}

impl Name {
    /// In place of this one: `NAME.lock`, `N-DIGEST.lock`, or `N-DIGEST-KEEP-UNTIL`.
    pub fn of(&self, old: &str) -> String {
        let (stem, suffix) = old
            .strip_suffix(".lock")
            .map_or((old, ""), |stem| (stem, ".lock"));
        let mut parts: Vec<&str> = stem.split('-').collect();
        match self {
            Self::Whole(name) => return name.clone(),
            Self::Number(number) => parts[0] = number,
            Self::Digest(digest) => {
                parts.truncate(1);
                parts.push(digest);
            }
        }
        format!("{}{suffix}", parts.join("-"))
    }
}

const JSON: [&str; 34] = [
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
    "\"/\"",
    "\"x\"",
    "\"section/y\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\u001b[2J\\n\"",
    "\"run\"",
    "\"lease\"",
    "\"shared\"",
    "{\"slots\":2}",
    "\"2026-01-01T00:00:00Z\"",
    "\"-262143-01-01T00:00:00Z\"",
    "\"+262142-12-31T23:59:59Z\"",
    "\"9999-12-31T23:59:59Z\"",
    "{}",
    "[]",
    "[\"x\",\"..\",\"section/y\"]",
    "{\"code\":300}",
    "{\"name\":\".onehold.0123456789abcdef\",\"inode\":1,\"size\":1,\"modified_ns\":1,\"digest\":1}",
    "{\"name\":\"../outside/.onehold.0123456789abcdef\",\"inode\":1,\"size\":1,\"modified_ns\":1,\"digest\":1}",
];

/// Keys of records, tickets and lines that those of the template may lack.
const KEYS: [&str; 37] = [
    "names",
    "mode",
    "owner",
    "message",
    "ttl_ms",
    "max_age_ms",
    "hold_at_least_ms",
    "close",
    "exec",
    "supervised",
    "kill_after_ms",
    "die_with",
    "program",
    "kernel_lock",
    "caller",
    "visible",
    "takeover",
    "instance",
    "renewed_at",
    "renewed_boottime_ms",
    "renewed_boot_id",
    "expires_at",
    "let_go",
    "ending",
    "told",
    "released",
    "broken_by",
    "ended",
    "taken_by",
    "keep_ms",
    "observer",
    "hold",
    "from",
    "uid",
    "exit_code",
    "signal",
    "waiting_on_arrival",
];

const NAMES: [&str; 22] = [
    "x.lock",
    "pool.lock",
    "..lock",
    ".lock",
    "...lock",
    "%2e%2e.lock",
    "%2E%2E.lock",
    "%00.lock",
    "%.lock",
    "%2f.lock",
    "%2Fetc.lock",
    "new.lock",
    "last",
    "waiting",
    "reserved",
    "shared",
    "events.jsonl",
    ".onehold.0123456789abcdef",
    "a\nb.lock",
    "x.lock.d",
    ".shared",
    ".onehold",
];

const NUMBERS: [&str; 11] = [
    "0",
    "00",
    "1",
    "7",
    "1048576",
    "1048577",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
];

const DIGESTS: [&str; 8] = [
    "00000000",
    "00c0ffee",
    "ffffffff",
    "00C0FFEE",
    "0",
    "00c0ffee-600000",
    "00c0ffee-600000-18446744073709551615",
    "00c0ffee-18446744073709551615-1",
];

const MODES: [u32; 9] = [0, 0o200, 0o400, 0o644, 0o660, 0o666, 0o777, 0o2777, 0o6777];

const WRITTEN: [&str; 4] = [
    ".onehold/last",
    ".onehold/events.jsonl",
    ".onehold/shared",
    ".onehold/waiting/reserved",
];

/// Only the last one has the right name.
const HOWS: [How; 6] = [
    How::Moved,
    How::Linked,
    How::FromElsewhere,
    How::SameFromElsewhere,
    How::SameFromElsewhere,
    How::SameFromElsewhere,
];

fn whose() -> impl Strategy<Value = Whose> + Clone {
    select(&[Whose::Root, Whose::Stranger, Whose::Third][..])
}

fn user() -> impl Strategy<Value = User> {
    select(&[User::Root, User::Third][..])
}

fn index() -> impl Strategy<Value = Index> + Clone {
    any::<Index>()
}

fn value() -> impl Strategy<Value = Value> + Clone {
    prop_oneof![
        8 => select(&JSON[..]).prop_map(Value::Json),
        3 => number(),
        1 => "\\PC{0,12}".prop_map(Value::Text),
        3 => whose().prop_map(Value::Pid),
        1 => whose().prop_map(Value::Group),
        2 => whose().prop_map(Value::Start),
        2 => path(),
        1 => Just(Value::Long),
        1 => Just(Value::Deep),
    ]
}

/// What leads out of the store, in place of some value.
fn path_set() -> impl Strategy<Value = Edit> + Clone {
    (index(), path()).prop_map(|(at, path)| Edit::Set(at, path))
}

fn path() -> impl Strategy<Value = Value> + Clone {
    select(&["canary", "x.lock", ".onehold", "no/such"][..]).prop_map(Value::Path)
}

fn number() -> impl Strategy<Value = Value> + Clone {
    let near_a_limit = (0..=64_u32, -1..=1_i64).prop_map(|(bits, more)| {
        let power = 1_u64.checked_shl(bits).unwrap_or(0);
        power.wrapping_add_signed(more)
    });
    prop_oneof![near_a_limit, any::<u64>()].prop_map(Value::Number)
}

/// A key, mostly with a value of its type if that is a number.
fn added() -> impl Strategy<Value = Edit> + Clone {
    let (of_number, other): (Vec<_>, Vec<_>) = KEYS.iter().partition(|key| key.ends_with("_ms"));
    prop_oneof![
        1 => (index(), select(of_number), number()),
        3 => (index(), select(other), value()),
    ]
    .prop_map(|(at, key, value)| Edit::Add(at, key, value))
}

fn edits() -> impl Strategy<Value = Vec<Edit>> + Clone {
    let edit = prop_oneof![
        8 => (index(), value()).prop_map(|(at, value)| Edit::Set(at, value)),
        4 => added(),
        2 => index().prop_map(Edit::Unname),
        3 => whose().prop_map(Edit::Wrapper),
        1 => whose().prop_map(Edit::Starting),
        1 => whose().prop_map(Edit::Command),
        3 => (whose(), proptest::option::of(number())).prop_map(|(whose, after)| Edit::Work(whose, after)),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        1 => index().prop_map(Edit::Cut),
        1 => (index(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
    ];
    vec(edit, 1..4)
}

fn name() -> impl Strategy<Value = Name> {
    prop_oneof![
        3 => select(&NAMES[..]).prop_map(|name| Name::Whole(name.to_owned())),
        1 => "[a-z0-9%.@+ -]{1,12}".prop_map(Name::Whole),
        1 => "[a-z%]{1,3}\\.(lock|d|pid)".prop_map(Name::Whole),
        2 => select(&NUMBERS[..]).prop_map(Name::Number),
        2 => select(&DIGESTS[..]).prop_map(Name::Digest),
    ]
}

/// What whoever may only read a store can do. `focus`: the file that most of it is about.
pub fn lock(focus: Index) -> impl Strategy<Value = Forgery> {
    prop_oneof![
        2 => Just(Forgery::LockDirectory(None)),
        1 => index().prop_map(|at| Forgery::LockDirectory(Some(at))),
        1 => Just(Forgery::Lock(focus, Vec::new())),
    ]
}

/// `focus`: the file that most changes are of.
pub fn forgery(focus: Index) -> impl Strategy<Value = Forgery> {
    let file = || prop_oneof![2 => Just(focus), 1 => index()];
    let kind = [
        Kind::SymlinkOutside,
        Kind::SymlinkToItself,
        Kind::HardLink,
        Kind::Fifo,
        Kind::Directory,
        Kind::Empty,
        Kind::Zeros,
        Kind::Large,
    ];
    let instead = [
        Instead::SymlinkOutside,
        Instead::SymlinkOutside,
        Instead::SymlinkToItself,
        Instead::SymlinkToStore,
        Instead::File,
        Instead::Fifo,
        Instead::Nothing,
        Instead::Nested(3),
        Instead::Nested(200),
        // Deeper than a path can be, and than most stacks.
        Instead::Nested(19_000),
        Instead::Nested(19_000),
    ];
    let times = prop_oneof![8 => 1..3_usize, 1 => Just(1_000)];
    let no_edits_or_some = prop_oneof![Just(Vec::new()), edits()];
    let path = path_set().prop_map(|edit| vec![edit]);
    let edits_of_line = prop_oneof![no_edits_or_some.clone(), path];
    let line = (index(), edits_of_line, times);
    let line = line.prop_map(|(of, edits, times)| Line { of, edits, times });
    prop_oneof![
        12 => (file(), edits()).prop_map(|(at, edits)| Forgery::Text(at, edits)),
        3 => (file(), edits(), user()).prop_map(|(at, edits, user)| Forgery::TextOf(at, edits, user)),
        3 => (file(), no_edits_or_some.clone()).prop_map(|(at, edits)| Forgery::Lock(at, edits)),
        3 => (file(), select(kind.to_vec())).prop_map(|(at, kind)| Forgery::Replace(at, kind)),
        3 => select(&WRITTEN[..]).prop_map(Forgery::Linked),
        1 => (file(), name()).prop_map(|(at, name)| Forgery::Rename(at, name)),
        1 => (file(), name()).prop_map(|(at, name)| Forgery::Link(at, name)),
        4 => (file(), no_edits_or_some, index(), name())
            .prop_map(|(of, edits, at, name)| Forgery::Copy(of, edits, at, name)),
        3 => (any::<bool>(), vec(line, 1..3)).prop_map(|(is_old, lines)| Forgery::Lines(is_old, lines)),
        6 => (file(), select(&HOWS[..])).prop_map(|(at, how)| Forgery::OfRoot(at, how)),
        2 => (file(), user()).prop_map(|(at, user)| Forgery::Owner(at, user)),
        1 => (file(), select(&MODES[..])).prop_map(|(at, mode)| Forgery::Mode(at, mode)),
        3 => (index(), select(instead.to_vec())).prop_map(|(at, instead)| Forgery::Directory(at, instead)),
        1 => (index(), user()).prop_map(|(at, user)| Forgery::OwnerOfDirectory(at, user)),
        1 => (index(), select(&MODES[..])).prop_map(|(at, mode)| Forgery::ModeOfDirectory(at, mode)),
    ]
}

/// A process and its start.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: u32,
    pub start: u64,
}

/// What values refer to.
pub struct Facts<'a> {
    pub process: &'a dyn Fn(Whose) -> Process,
    pub outside: &'a str,
}

impl Facts<'_> {
    fn text(&self, value: &Value) -> String {
        match value {
            Value::Json(text) => (*text).to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Text(text) => serde_json::to_string(text).unwrap(),
            Value::Pid(whose) => (self.process)(*whose).pid.to_string(),
            Value::Group(whose) => format!("-{}", (self.process)(*whose).pid),
            Value::Start(whose) => (self.process)(*whose).start.to_string(),
            Value::Path(file) => format!("\"{}/{file}\"", self.outside),
            Value::Long => format!("\"{}\"", "9".repeat(70_000)),
            Value::Deep => format!("{}{}", "[".repeat(200), "]".repeat(200)),
        }
    }
}

/// A text with these changes. The sums of records agree with their slots again.
pub fn edited(text: &[u8], edits: &[Edit], facts: &Facts<'_>) -> Vec<u8> {
    let mut text = text.to_vec();
    for edit in edits {
        edit_once(&mut text, edit, facts);
    }
    put_sums(&mut text);
    text
}

fn edit_once(text: &mut Vec<u8>, edit: &Edit, facts: &Facts<'_>) {
    let length = text.len();
    match edit {
        Edit::Set(at, value) => {
            let values = values(text);
            if !values.is_empty() {
                let at = at.get(&values).clone();
                text.splice(at, facts.text(value).into_bytes());
            }
        }
        Edit::Add(at, key, value) => {
            let mut objects = values(text);
            objects.retain(|value| text[value.clone()].ends_with(b"}"));
            if !objects.is_empty() {
                add(text, at.get(&objects), key, &facts.text(value));
            }
        }
        Edit::Unname(at) => {
            let mut keys = values(text);
            keys.retain(|key| text.get(key.end) == Some(&b':'));
            if !keys.is_empty() {
                let at = at.get(&keys).clone();
                text.splice(at, *b"\"other\"");
            }
        }
        Edit::Wrapper(whose) => aim(text, (facts.process)(*whose), None),
        Edit::Starting(whose) => {
            aim(text, (facts.process)(*whose), None);
            if let Some(slot) = slot(text)
                && let Some(at) = find(&text[slot.clone()], b"\"pid\"")
            {
                text[slot.start + at + 1] = b'_';
            }
        }
        Edit::Command(whose) => {
            if let Some(slot) = slot(text) {
                let mut live = text[slot.clone()].to_vec();
                aim(&mut live, (facts.process)(*whose), None);
                text.splice(slot, live);
            }
        }
        Edit::Work(whose, kill_after) => {
            // A run of its own may ask for any time, and `break` grants it.
            if let Some(after) = kill_after
                && !matches!(whose, Whose::Stranger)
                && let Some(record) = values(text)
                    .first()
                    .filter(|record| text[record.start] == b'{')
            {
                add(text, record, "kill_after_ms", &facts.text(after));
            }
            aim(text, (facts.process)(*whose), Some(1));
            if let Some(slot) = slot(text) {
                add(text, &slot, "ending", "1,\"told\":true");
            }
        }
        Edit::Byte(at, byte) if length > 0 => text[at.index(length)] = *byte,
        Edit::Byte(..) => {}
        Edit::Cut(at) => text.truncate(at.index(length + 1)),
        Edit::Insert(at, bytes) => {
            let at = at.index(length + 1);
            text.splice(at..at, bytes.iter().copied());
        }
    }
}

fn add(text: &mut Vec<u8>, object: &Range<usize>, key: &str, value: &str) {
    let inside = &text[object.start + 1..object.end - 1];
    let comma = if inside.trim_ascii().is_empty() {
        ""
    } else {
        ","
    };
    let key = format!("{comma}\"{key}\":{value}");
    text.splice(object.end - 1..object.end - 1, key.into_bytes());
}

/// Puts a process where a record or a ticket names one. `origin`: the start of its wrapper, if that is another one.
fn aim(text: &mut Vec<u8>, at: Process, origin: Option<u64>) {
    let values = values(text);
    let key_of = |value: usize| {
        let key = values.get(value.checked_sub(1)?)?.clone();
        Some(text[key].trim_ascii_start().to_ascii_lowercase())
    };
    let origin_at = find(text, b"\"origin\"").unwrap_or(text.len());
    let mut changed = Vec::new();
    for (index, value) in values.iter().enumerate() {
        if !text[value.clone()].iter().all(u8::is_ascii_digit) {
            continue;
        }
        let key = key_of(index).unwrap_or_else(|| b"pid".to_vec());
        let new = match key.trim_ascii().strip_prefix(b"\"").unwrap_or(&key) {
            b"pid" | b"pid\"" | b"process_id\"" | b"taken_by\"" | b"visible\"" => at.pid.into(),
            b"start\"" if value.start > origin_at => origin.unwrap_or(at.start),
            b"start\"" => at.start,
            b"acquired_boottime_ms\"" if origin.is_some() => 1,
            _ => continue,
        };
        changed.push((value.clone(), new));
    }
    for (value, new) in changed.into_iter().rev() {
        text.splice(value, new.to_string().into_bytes());
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Where the values and keys of a text are that is JSON, or nearly, in order: words, strings, and what is in brackets.
fn values(text: &[u8]) -> Vec<Range<usize>> {
    let (mut found, mut open) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let start = at;
        at += 1;
        match byte {
            b'"' => {
                while let Some(byte) = text.get(at).filter(|byte| **byte != b'"') {
                    at += if *byte == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(text.len());
                found.push(start..at);
            }
            b'{' | b'[' => open.push(start),
            b'}' | b']' => found.extend(open.pop().map(|start| start..at)),
            byte if byte.is_ascii_alphanumeric() || *byte == b'-' => {
                let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+._".contains(byte);
                at += text[at..].iter().take_while(|byte| is_inside(byte)).count();
                found.push(start..at);
            }
            _ => {}
        }
    }
    found.sort_by_key(|value| value.start);
    found
}

/// The part of a record that changes while it is held, without the blanks after it.
fn slot(text: &[u8]) -> Option<Range<usize>> {
    let start = find(text, b"{\"sum\":\"")?;
    values(text).into_iter().find(|value| value.start == start)
}

/// The slot of a record has its length and its sum (onehold-formats(5)).
fn put_sums(text: &mut Vec<u8>) {
    const SLOT_BYTES: usize = 384;
    const SUMMED_FROM: usize = 24;
    let Some(slot) = slot(text).filter(|slot| slot.len() > SUMMED_FROM) else {
        return;
    };
    let blanks = text[slot.end..].iter().take_while(|byte| **byte == b' ');
    let slot = slot.start..slot.end + blanks.count();
    let mut new = text[slot.clone()].trim_ascii_end().to_vec();
    new.resize(new.len().max(SLOT_BYTES), b' ');
    let sum = fnv(&new[SUMMED_FROM..]);
    new[8..SUMMED_FROM].copy_from_slice(format!("{sum:016x}").as_bytes());
    text.splice(slot, new);
}

/// FNV-1a.
pub fn fnv(bytes: &[u8]) -> u64 {
    let add = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, add)
}
