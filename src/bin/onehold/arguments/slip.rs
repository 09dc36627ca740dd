//! What was meant by a command line that does not parse: a line to paste, which parses. There is none
//! where that is not sure.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Parser;
use onehold::LockName;
use onehold::status::Pid;
use onehold::terminal::is_unsafe;

use crate::arguments::args::{Cli, Verb, all_options, duration, options_of};
use crate::arguments::table::{OptionNames, Row, split};
use crate::words::{quoted, shell_line};

/// `words`: the arguments without the program's name.
pub(crate) fn hint(words: &[OsString]) -> Option<String> {
    let words = words.iter().map(|word| word.to_str());
    let words: Vec<&str> = words.collect::<Option<_>>()?;
    // The shell would get it as it is escaped.
    if words.iter().any(|word| word.chars().any(is_unsafe)) {
        return None;
    }
    let lines = Line::read(&words)?.meant()?;
    if lines.iter().any(|line| Cli::try_parse_from(line).is_err()) {
        return None;
    }
    let lines: Vec<String> = lines.iter().map(|line| shell_line(line.iter())).collect();
    Some(format!("did you mean `{}`?", lines.join(" && ")))
}

/// What to say of names that look as if they were meant for something else: a part of the command, or an option.
#[cold]
#[inline(never)]
pub(crate) fn doubtful_names<'a>(names: impl Iterator<Item = &'a LockName>) -> Vec<String> {
    let options = Options(all_options());
    let is_option = |name: &str| {
        let key = name.split_once('=').map(|(key, _)| key);
        key.is_some_and(|key| options.named(of_flock(key).unwrap_or(key)).is_some())
    };
    let told = names.filter_map(|name| {
        let what = match name.as_str() {
            name if is_program(name) => "a program; the command begins after `--`",
            name if is_option(name) => "an option, which would begin with `--`",
            _ => return None,
        };
        let name = quoted(name.as_str());
        Some(format!("{name} is the name of a lock here, and not {what}"))
    });
    told.collect()
}

/// How to run a line of shell that was given as the name of a program.
pub(crate) fn as_shell_line(program: &str) -> Option<String> {
    let first = program.split_whitespace().next()?;
    let is_line = program.contains([';', '&', '|', '<', '>', '$']) || is_program(first);
    let typed = Pid::of_self().command_line();
    let at = typed.iter().position(|word| word == "--")?;
    let (before, command) = (typed.get(1..=at)?, typed.get(at + 1..)?);
    let is_safe = !typed.iter().any(|word| word.chars().any(is_unsafe));
    let is_one_word = command == [program] && first != program;
    if !(is_line && is_safe && is_one_word && is_program("sh")) {
        return None;
    }
    let whole = ["onehold"]
        .into_iter()
        .chain(before.iter().map(String::as_str));
    let line = shell_line(whole.chain(["sh", "-c", program]));
    Some(format!("to run a line of shell: `{line}`"))
}

/// The command of a line that does not parse.
pub(crate) fn verb_of(words: &[OsString]) -> Option<String> {
    let options = Options(all_options());
    let mut words = words.iter().map_while(|word| word.to_str());
    while let Some(word) = words.next() {
        if word == "--" {
            return None;
        } else if !word.starts_with('-') {
            return Verb::WORDS.contains(&word).then(|| word.to_owned());
        } else if options.need_value(word) {
            words.next();
        }
    }
    None
}

/// Whether the next word is the value of an option.
pub(crate) fn needs_value(word: &str) -> bool {
    Options(all_options()).need_value(word)
}

/// Options of some commands.
struct Options(Vec<&'static Row>);

impl Options {
    /// By its name without hyphens.
    fn named(&self, name: &str) -> Option<&'static Row> {
        let mut options = self.0.iter().copied();
        options.find(|option| option.is_called(name))
    }

    fn split<'w>(&self, word: &'w str) -> (OptionNames<'w>, Option<&'w str>) {
        split(word, |name| self.named(name).is_some_and(takes_value))
    }

    /// Whether the next word is the value of an option.
    fn need_value(&self, word: &str) -> bool {
        let (names, value) = self.split(word);
        let option = names.last().and_then(|name| self.named(name));
        word.starts_with('-') && value.is_none() && option.is_some_and(takes_value)
    }
}

/// Whether its value may be the next word.
fn takes_value(option: &Row) -> bool {
    option.value.is_some() && option.missing.is_none()
}

/// The only one that differs in one letter, or by two neighbors swapped.
fn mistyped<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    only(known.filter(|known| strsim::damerau_levenshtein(word, known) == 1))
}

/// The only one that begins so.
fn begun<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    only(known.filter(|known| word.len() > 2 && known.starts_with(word)))
}

/// The word of these, if they are all the same.
fn only<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = words.next()?;
    words.all(|word| word == first).then_some(first)
}

/// A command line, as far as it was read.
#[derive(Default)]
struct Line<'a> {
    /// The command that was meant. `None`: no word is one.
    verb: Option<&'a str>,
    /// Another word stands for it.
    is_replaced: bool,
    options: Vec<String>,
    names: Vec<&'a str>,
    /// Where the second name is, and how many options are before it.
    second: Option<(usize, usize)>,
    /// An option is one of flock(1).
    is_of_flock: bool,
    /// What `run` is to run.
    command: Option<Vec<&'a str>>,
}

impl<'a> Line<'a> {
    fn read(words: &[&'a str]) -> Option<Self> {
        let mut parts = words.splitn(2, |word| *word == "--");
        let words = parts.next()?;
        let mut line = Self {
            command: parts.next().map(<[&str]>::to_vec),
            ..Self::default()
        };
        let mut at = 0;
        while let [word, after @ ..] = words.get(at..)? {
            if !word.starts_with('-') || *word == "-" {
                let is_command = match line.names.len() {
                    0 => line.is_of_program(word, after),
                    1 => line.can_run() && is_program(word),
                    _ => false,
                };
                if is_command {
                    line.command = words.get(at..).map(<[&str]>::to_vec);
                    break;
                }
                line.positional(word, at);
            } else if let Some(read) = line.option(word, after.first()) {
                at += read;
            } else {
                line.command = Some(line.command_with_option(word, words, after)?);
                break;
            }
            at += 1;
        }
        Some(line)
    }

    /// Whether the line has a command, but no `--` before it.
    fn can_run(&self) -> bool {
        let runs = match self.verb {
            None | Some("run") => true,
            Some(verb) => verb == "acquire" && self.is_replaced,
        };
        // A name that is also a program may be the command itself.
        runs && self.command.is_none() && self.names.first().is_none_or(|name| !is_program(name))
    }

    /// Whether the line has no name, and begins with the path of a program. Whoever has a lock of that path
    /// names a program after it.
    fn is_of_program(&self, word: &str, after: &[&str]) -> bool {
        matches!(self.verb, None | Some("run"))
            && self.command.is_none()
            && word.contains('/')
            && (is_program(word) || self.verb.is_some() && is_nothing_yet(word))
            && !after.iter().any(|word| is_program(word))
    }

    fn positional(&mut self, word: &'a str, at: usize) {
        let is_first = self.verb.is_none() && self.names.is_empty();
        if let Some(verb) = is_first.then(|| self.verb(word)).flatten() {
            self.verb = Some(verb);
            self.is_replaced = verb != word;
            if word == "watch" {
                self.options.push("--watch".to_owned());
            }
            return;
        }
        if self.names.len() == 1 {
            self.second = Some((at, self.options.len()));
        }
        self.names.push(word);
    }

    /// The command that a word stands for.
    fn verb(&self, word: &str) -> Option<&'a str> {
        let verbs = || Verb::WORDS.iter().copied();
        let known = |word: &str| verbs().find(|verb| *verb == word);
        // `hold` is meant for programs. A similar word, such as `held`, is more likely a name. One with two letters
        // swapped is no word.
        let is_swapped = strsim::levenshtein(word, "hold") == 2;
        let typed_by_people = || verbs().filter(|verb| *verb != "hold" || is_swapped);
        let of_others = match word {
            "status" | "show" | "info" => "check",
            "ls" | "watch" => "list",
            "lock" | "get" | "take" => "acquire",
            "unlock" | "free" => "release",
            "kill" | "rm" | "remove" | "delete" => "break",
            "exec" => "run",
            _ => word,
        };
        let similar = || {
            let whole = begun(word, typed_by_people());
            whole.or_else(|| mistyped(word, typed_by_people()))
        };
        let meant = || known(of_others).or_else(similar);
        // Before `--` it is rather a name, and `run` is missing.
        let fits = |verb: &&str| self.command.is_none() || matches!(*verb, "run" | "acquire");
        known(word).or_else(|| meant().filter(fits))
    }

    /// Reads an option of this program, maybe mistyped, or one of flock(1). Returns how many words its
    /// value takes. `None`: it is one of another program.
    fn option(&mut self, word: &str, next: Option<&&str>) -> Option<usize> {
        // The second name may be a command that is not installed.
        let may_be_of_command = self.second.is_some() && self.command.is_none();
        let known = if may_be_of_command && self.can_run() {
            Options(options_of("run"))
        } else {
            Options(all_options())
        };
        let of_verb = self.verb.map_or_else(all_options, options_of);
        let of_verb: Vec<String> = of_verb.iter().map(|option| option.long()).collect();
        let longs = || of_verb.iter().map(String::as_str);
        let (names, given) = known.split(word);
        let mut read = Vec::new();
        let mut needs_value = false;
        for mut name in names {
            if let Some(own) = of_flock(name).filter(|_| !may_be_of_command) {
                self.is_of_flock = true;
                name = own;
            }
            if name.is_empty() {
                continue;
            }
            // It may be the beginning of one of flock(1), too.
            let meant = begun(name, longs().chain(OF_FLOCK)).or_else(|| mistyped(name, longs()));
            let meant = meant.filter(|_| name.len() > 2 && !may_be_of_command);
            let option = known.named(name).or_else(|| known.named(meant?))?;
            needs_value = takes_value(option);
            if option.missing.is_some() {
                let long = option.long();
                let next = next.copied().filter(|next| duration(next).is_ok());
                let value = given.or(next).map(|value| format!("={value}"));
                self.options
                    .push(format!("--{long}{}", value.unwrap_or_default()));
                return Some(usize::from(given.is_none() && next.is_some()));
            }
            read.push(if name.len() > 1 {
                format!("--{}", option.long())
            } else {
                format!("-{name}")
            });
        }
        if needs_value {
            read.push(given.or(next.copied())?.to_owned());
        } else if given.is_some() {
            return None;
        }
        self.options.extend(read);
        Some(usize::from(needs_value && given.is_none()))
    }

    /// The command that an option of another program is for: a line of shell, as flock(1) has it, or a
    /// program that is not installed.
    fn command_with_option(
        &mut self,
        option: &str,
        words: &[&'a str],
        after: &[&'a str],
    ) -> Option<Vec<&'a str>> {
        if !self.can_run() {
            return None;
        }
        if let Some((second, options)) = self.second {
            self.names.truncate(1);
            self.options.truncate(options);
            return words.get(second..).map(<[&str]>::to_vec);
        }
        match after {
            [line] if matches!(option, "-c" | "--command") => Some(vec!["sh", "-c", line]),
            _ => None,
        }
    }

    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }

    /// The lines to paste, with the program's name.
    fn meant(self) -> Option<Vec<Vec<String>>> {
        let verb = match (self.verb, &self.command) {
            // One word is the name of a lock; of two, the first may be a command.
            (None, Some(_)) if self.names.len() < 2 => "run",
            (Some("run" | "acquire"), Some(_)) => "run",
            (Some("check"), None) if self.is_replaced && self.names.is_empty() => "list",
            // A path is one lock.
            (Some("list"), None) if self.names.is_empty() && self.has("--path") => "check",
            (Some(verb), None) => verb,
            _ => return None,
        };
        // A word that stands for `run` may be the name as well.
        if self.is_replaced && self.command.is_some() && self.names.is_empty() {
            return None;
        }
        if self.is_of_flock && !matches!(verb, "run" | "acquire" | "hold") {
            return None;
        }
        // More names may be a command.
        let is_like_run = self.is_replaced || self.is_of_flock;
        if verb == "acquire" && is_like_run && self.names.len() > 1 {
            return None;
        }
        let line = |names: &[&str]| {
            let mut line = vec!["onehold".to_owned(), verb.to_owned()];
            line.extend(self.options.iter().cloned());
            line.extend(names.iter().map(|name| (*name).to_owned()));
            if let Some(command) = &self.command {
                line.push("--".to_owned());
                line.extend(command.iter().map(|word| (*word).to_owned()));
            }
            line
        };
        // These take one name. The number of a hold is that of one lock.
        let takes_one = matches!(verb, "release" | "renew" | "break");
        if takes_one && self.names.len() > 1 && !self.has("--hold") {
            return Some(self.names.chunks(1).map(line).collect());
        }
        Some(vec![line(&self.names)])
    }
}

/// The long options of flock(1) that ours do not begin like.
const OF_FLOCK: [&str; 4] = ["exclusive", "nonblock", "timeout", "no-fork"];

/// The option that does what one of flock(1) does, which is none where that is the default.
fn of_flock(name: &str) -> Option<&'static str> {
    match name {
        "x" | "e" | "ex" | "exclusive" => Some(""),
        "nb" | "nonblock" | "nonblocking" => Some("no-wait"),
        "timeout" => Some("wait"),
        "o" => Some("close"),
        "F" | "no-fork" => Some("exec"),
        _ => None,
    }
}

/// Whether a path leads nowhere, and does not look as that of a lock.
fn is_nothing_yet(path: &str) -> bool {
    let path = Path::new(path);
    let of_locks = ["lock", "lck", "pid"].map(|suffix| Some(OsStr::new(suffix)));
    !path.exists() && !of_locks.contains(&path.extension())
}

fn is_program(word: &str) -> bool {
    which::which(word).is_ok()
}
