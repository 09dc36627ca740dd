//! A request of a program to its server: one JSON object on a line.

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::pipes::MAX_LINE;
use crate::arguments::args::{Cli, GlobalArgs, UsageError, Verb, lock_name, options_of};
use crate::arguments::fast_parse::conflict;
use crate::arguments::table::{Arguments, Row};

/// Options of the command line that have no meaning for a request.
const NOT_SERVED: &str = "json quiet verbose color force yes conflict_exit_code die_with serve available mine \
                          help version";

/// A line, by its keys.
struct Line {
    command: String,
    names: Vec<String>,
    cwd: Option<PathBuf>,
    callers: Vec<u64>,
    options: Map<String, Value>,
}

/// What can be read of a line whose other values cannot.
#[derive(Deserialize)]
struct Identified {
    id: u64,
}

const NOT_AN_OBJECT: &str = "a request is one JSON object";

const NUMBER: &str = "a whole number from 0";

#[derive(Deserialize)]
#[serde(untagged)]
enum Callers {
    One(u64),
    Within(Vec<u64>),
}

const CALLERS: &str = "a whole number from 0, or an array of them";

/// A request, and what is the same for each of them.
pub(super) struct Request {
    pub(super) id: u64,
    /// What relative paths are relative to.
    pub(super) cwd: Option<PathBuf>,
    /// The thread or task of the program that asks, after those that it runs in.
    pub(super) callers: Vec<u64>,
    pub(super) what: What,
}

/// What is asked for.
pub(super) enum What {
    /// To end the hold or the wait of this id.
    Release,
    /// To end the wait of this id.
    Cancel,
    Command(Box<Cli>),
}

/// A line that is not a request: its id, if it has one, and what is wrong.
pub(super) struct Malformed {
    pub(super) id: Option<u64>,
    pub(super) command: &'static str,
    pub(super) why: UsageError,
}

/// The words that a request can begin with, as its answers repeat them.
const COMMANDS: [&str; 5] = ["hold", "acquire", "renew", "release", "check"];

/// Reads a request. `defaults`: the options of the server.
pub(super) fn read(line: &[u8], defaults: &GlobalArgs) -> Result<Request, Malformed> {
    let malformed = |id, why: String| Malformed {
        id,
        command: "hold",
        why: UsageError(why),
    };
    let mut keys = match serde_json::from_slice(line) {
        Ok(Value::Object(keys)) => keys,
        Ok(_) => return Err(malformed(None, NOT_AN_OBJECT.to_owned())),
        Err(error) => {
            // Half of a character, for example, which is skipped where it is not needed.
            let id = serde_json::from_slice(line).map(|Identified { id }| id);
            return Err(match id {
                Ok(id) => malformed(Some(id), format!("{NOT_AN_OBJECT}: {error}")),
                Err(_) => malformed(None, NOT_AN_OBJECT.to_owned()),
            });
        }
    };
    let id = take(&mut keys, "id", NUMBER).and_then(|id| id.ok_or_else(|| must_be("id", NUMBER)));
    let id: u64 = id.map_err(|why| malformed(None, why))?;
    let line = Line::of(keys).map_err(|why| malformed(Some(id), why))?;
    let has_more = !line.names.is_empty() || !line.options.is_empty();
    let what = match (&*line.command, has_more) {
        ("release", false) => What::Release,
        ("cancel", _) => What::Cancel,
        (command, _) => {
            let found = COMMANDS.into_iter().find(|known| *known == command);
            let mut cli = cli(command, found, &line).map_err(|why| Malformed {
                id: Some(id),
                command: found.unwrap_or("hold"),
                why: UsageError(why),
            })?;
            complete(&mut cli.global, defaults);
            What::Command(Box::new(cli))
        }
    };
    Ok(Request {
        id,
        cwd: line.cwd,
        callers: line.callers,
        what,
    })
}

/// The answer to a line of which only the beginning was read.
pub(super) fn too_long() -> Malformed {
    let most = MAX_LINE >> 20;
    Malformed {
        id: None,
        command: "hold",
        why: UsageError(format!("a request has at most {most} MiB")),
    }
}

impl Line {
    fn of(mut keys: Map<String, Value>) -> Result<Self, String> {
        let keys = &mut keys;
        let command: Option<String> = take(keys, "command", "a string")?;
        let names: Option<_> = take(keys, "names", "an array of strings")?;
        let callers: Option<Callers> = take(keys, "caller", CALLERS)?;
        Ok(Self {
            command: command.ok_or("command is missing")?,
            names: names.unwrap_or_default(),
            cwd: take(keys, "cwd", "a string")?,
            callers: callers.map_or_else(Vec::new, Callers::all),
            options: std::mem::take(keys),
        })
    }
}

impl Callers {
    fn all(self) -> Vec<u64> {
        match self {
            Self::One(caller) => vec![caller],
            Self::Within(callers) => callers,
        }
    }
}

/// The value of a key. `None`: it is absent or null.
fn take<T: DeserializeOwned>(
    keys: &mut Map<String, Value>,
    key: &str,
    form: &str,
) -> Result<Option<T>, String> {
    let value = keys.remove(key).unwrap_or_default();
    serde_json::from_value(value).map_err(|_| must_be(key, form))
}

fn must_be(key: &str, form: &str) -> String {
    format!("{key} must be {form}")
}

/// The command line that asks for the same.
fn cli(command: &str, known: Option<&str>, line: &Line) -> Result<Cli, String> {
    let verb = known.and_then(Verb::named);
    let mut verb = verb.ok_or_else(|| format!("unknown command `{command}`"))?;
    let (mut global, mut given) = (GlobalArgs::default(), Vec::new());
    let rows = options_of(command);
    for (name, value) in &line.options {
        let mut served = rows
            .iter()
            .filter(|row| !NOT_SERVED.split(' ').any(|other| other == row.name));
        let row = served.find(|row| row.name == name);
        let row = *row.ok_or_else(|| format!("unknown option `{name}`"))?;
        let values = match value {
            Value::Array(values) if row.repeats => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = match (row.value, value) {
                (_, Value::Null) | (None, Value::Bool(false)) => continue,
                (None, Value::Bool(true)) => "",
                (Some(_), Value::String(text)) => text,
                (Some(_), Value::Number(number)) => &number.to_string(),
                _ => return Err(format!("invalid value for `{name}`: {value}")),
            };
            let own = verb.arguments_mut().set(row.name, text);
            let set = own.or_else(|| global.set(row.name, text));
            set.ok_or_else(|| {
                format!(
                    "invalid value '{text}' for `{name}`{}",
                    why(command, row, text)
                )
            })?;
            given.push(row);
        }
    }
    if let Some([one, other]) = conflict(&given) {
        return Err(format!(
            "`{}` cannot be used with `{}`",
            one.name, other.name
        ));
    }
    if given.iter().any(|row| row.name == "path") && !line.names.is_empty() {
        return Err("`path` cannot be used with `names`".to_owned());
    }
    for name in &line.names {
        lock_name(name).map_err(|why| format!("invalid value '{name}' for `names`: {why}"))?;
        let added = verb.arguments_mut().add(name);
        added.ok_or_else(|| format!("{command} takes one name"))?;
    }
    Ok(Cli { global, verb })
}

/// What is wrong with a value, as clap has it.
fn why(command: &str, row: &Row, text: &str) -> String {
    let option = format!("--{}={text}", row.long());
    let failed = Cli::try_parse_from(["onehold", command, &option]).err();
    let cause = failed.as_ref().and_then(Error::source);
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

fn complete(global: &mut GlobalArgs, defaults: &GlobalArgs) {
    global.dir = global.dir.take().or_else(|| defaults.dir.clone());
    global.profile = global.profile.take().or_else(|| defaults.profile.clone());
    global.format = global.format.or(defaults.format);
    global.instance = global.instance.take().or_else(|| defaults.instance.clone());
    global.json = true;
}
