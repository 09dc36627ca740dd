//! Parses command lines without clap, whose start takes about as long as the rest of an everyday call.
//!
//! All errors are left to clap, and so are lines that may be slips. A test compares both parsers.

use std::ffi::OsString;

use crate::arguments::args::{Cli, GlobalArgs, Verb, duration};
use crate::arguments::table::{Arguments as _, Row, split};

/// Parses `words`, the arguments without the program's name. `None`: clap must parse them.
pub(crate) fn parse(words: &[OsString]) -> Option<Cli> {
    let line = Line::read(words)?;
    if line.slip().is_some() {
        return None;
    }
    line.parsed()
}

/// What is wrong with a line that clap takes.
pub(crate) fn slip(words: &[OsString]) -> Option<String> {
    let words = words.iter().map(|word| word.to_string_lossy());
    let words: Vec<OsString> = words.map(|word| word.into_owned().into()).collect();
    Line::read(&words)?.slip()
}

#[derive(Default)]
struct Line<'a> {
    /// Those not read yet.
    words: &'a [OsString],
    global: GlobalArgs,
    verb: Option<Verb>,
    given: Vec<&'static Row>,
    /// A word that is probably meant for something else, and why.
    misplaced: Option<(&'static str, &'a str)>,
}

impl<'a> Line<'a> {
    fn read(words: &'a [OsString]) -> Option<Self> {
        let mut line = Self {
            words,
            ..Self::default()
        };
        while !line.words.is_empty() {
            let word = line.next()?;
            match &mut line.verb {
                Some(Verb::Run(run)) if word == "--" => {
                    run.command = std::mem::take(&mut line.words).to_vec();
                }
                Some(verb) if word == "--" => {
                    for name in std::mem::take(&mut line.words) {
                        let name = name.to_str()?;
                        verb.arguments_mut().add(name)?;
                        // The words of a command would be names. Only a name that begins with a hyphen needs `--`.
                        if verb.word() == "acquire" && !name.starts_with('-') {
                            let why = "acquire runs no command";
                            line.misplaced = line.misplaced.or(Some((why, name)));
                        }
                    }
                }
                _ if word.len() > 1 && word.starts_with('-') => line.option(word)?,
                Some(verb) => verb.arguments_mut().add(word)?,
                verb => *verb = Some(Verb::named(word)?),
            }
        }
        Some(line)
    }

    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        word.to_str()
    }

    /// Reads a word with a long option, or with short ones, and the value of the last one.
    fn option(&mut self, word: &'a str) -> Option<()> {
        let takes_value = |name: &str| self.row(name).is_some_and(|row| row.value.is_some());
        let (mut names, value) = split(word, takes_value);
        names.peek()?;
        while let Some(name) = names.next() {
            // A short name has one hyphen.
            if word.starts_with("--") && name.len() == 1 {
                return None;
            }
            let value = value.filter(|_| names.peek().is_none());
            self.give(self.row(name)?, value)?;
        }
        Some(())
    }

    fn row(&self, name: &str) -> Option<&'static Row> {
        let verb = self.verb.as_ref();
        let own = verb.and_then(|verb| verb.arguments().row(name));
        own.or_else(|| self.global.row(name))
    }

    /// `attached`: the value that is in the same word.
    fn give(&mut self, row: &'static Row, attached: Option<&'a str>) -> Option<()> {
        let value = match (row.value, row.missing, attached) {
            (None, _, None) => "",
            (None, _, Some(_)) => return None,
            (Some(_), _, Some(value)) => value,
            (Some(_), Some(missing), None) => {
                // Names could begin so; then they come before the option.
                let next = self.words.first().and_then(|next| next.to_str());
                let next = next.filter(|next| duration(next).is_ok());
                let why = "the value of '--watch' follows '='";
                self.misplaced = next.map(|next| (why, next)).or(self.misplaced);
                missing
            }
            (Some(_), None, None) => {
                let is_value = |word: &&str| !word.starts_with('-') || *word == "-";
                self.next().filter(is_value)?
            }
        };
        if !row.repeats && self.given.iter().any(|given| given.name == row.name) {
            return None;
        }
        self.given.push(row);
        let verb = self.verb.as_mut();
        let own = verb.and_then(|verb| verb.arguments_mut().set(row.name, value));
        own.or_else(|| self.global.set(row.name, value))
    }

    fn slip(&self) -> Option<String> {
        // clap does not notice it if one of them is before the command.
        let conflict = conflict(&self.given).map(|both| {
            let [row, other] = both.map(Row::long);
            format!("the argument '--{row}' cannot be used with '--{other}'")
        });
        let misplaced = self.misplaced;
        conflict
            .or_else(|| misplaced.map(|(why, word)| format!("{why}: unexpected argument '{word}'")))
    }

    fn parsed(self) -> Option<Cli> {
        let verb = self.verb?;
        let is_whole = !matches!(&verb, Verb::Run(run) if run.command.is_empty());
        is_whole.then_some(Cli {
            global: self.global,
            verb,
        })
    }
}

/// Two options that cannot be used together.
pub(crate) fn conflict(given: &[&'static Row]) -> Option<[&'static Row; 2]> {
    given.iter().find_map(|row| {
        let mut others = given.iter();
        let other = others.find(|other| row.excludes.contains(&other.name))?;
        Some([*row, *other])
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    use super::*;

    const VERBS: [&str; 8] = [
        "run", "acquire", "hold", "release", "check", "list", "break", "history",
    ];

    /// Commands, options and values, and words that are none.
    const VOCABULARY: &[&str] = &[
        "run",
        "acquire",
        "hold",
        "release",
        "check",
        "list",
        "config",
        "x",
        "a/b",
        "./p",
        "-",
        "--",
        "--dir",
        "d",
        "--json",
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "-qv",
        "-w",
        "-w5",
        "-w=5",
        "-nw5",
        "-nq",
        "-sE7",
        "-mwhy",
        "-m=",
        "--message=-x",
        "--json=1",
        "--watch",
        "--watch=1s",
        "--sort=age",
        "--state",
        "held",
        "--state=zombie",
        "--prometheus",
        "--wide",
        "--all",
        "--since=1d",
        "--dry-run",
        "--wait",
        "--wait=5s",
        "5s",
        "5m",
        "forever",
        "0",
        "-1",
        "7",
        "300",
        "-n",
        "--no-wait",
        "-s",
        "--shared",
        "--slots",
        "3",
        "-m",
        "--message",
        "why",
        "",
        "--owner",
        "o",
        "--owner=",
        "-E",
        "-E0",
        "--conflict-exit-code",
        "--max-waiting",
        "--keep-place",
        "--exec",
        "--close",
        "--pid",
        "0x1",
        "99999999999",
        "--ttl",
        "1h",
        "0s",
        "--max-age",
        "1d",
        "--hold",
        "--mine",
        "--force",
        "-f",
        "-y",
        "--yes",
        "--color",
        "never",
        "--profile",
        "prodigy",
        "--format",
        "pid",
        "--on-lost",
        "--time-limit",
        "--kill-after",
        "--die-with",
        "parent",
        "--on-zombie",
        "take",
        "--reentrant",
        "--help",
        "-h",
        "--version",
        "true",
        "--unknown",
        "-x",
        "a//b",
        "..",
        "a\nb",
        "sh",
        "-c",
        "exit 3",
        "--wai",
        "--dir=",
        "é",
    ];

    #[test]
    fn fast_parser_agrees_with_clap() {
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        let mut below = |limit: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % limit as u64).unwrap()
        };
        let mut definition = Cli::command();
        let mut read = 0;
        for round in 0..20_000 {
            let mut line: Vec<OsString> = Vec::new();
            // Most lines begin with a command, otherwise hardly any would parse.
            if round % 8 != 0 {
                line.push(VERBS[below(VERBS.len())].into());
            }
            for _ in 0..below(7) {
                line.push(VOCABULARY[below(VOCABULARY.len())].into());
            }
            if round % 2 == 0 {
                line.extend(["--".into(), "true".into()]);
            }
            let whole = [OsString::from("onehold")].into_iter().chain(line.clone());
            let whole: Vec<OsString> = whole.collect();
            let by_clap = definition.try_get_matches_from_mut(&whole);
            let by_clap = by_clap.and_then(|parsed| Cli::from_arg_matches(&parsed));
            let plain = parse(&line);
            // Whatever clap takes is read; what of it is a slip is not parsed.
            let read_here = plain
                .is_none()
                .then(|| Line::read(&line)?.parsed())
                .flatten();
            match (&plain, by_clap) {
                (Some(here), Ok(clap)) => {
                    read += 1;
                    assert_eq!(format!("{here:?}"), format!("{clap:?}"), "{whole:?}");
                }
                (Some(_), Err(error)) => panic!("{whole:?}: {error}"),
                (None, Ok(clap)) => {
                    let here = read_here.unwrap_or_else(|| panic!("{whole:?} is not read"));
                    assert_eq!(format!("{here:?}"), format!("{clap:?}"), "{whole:?}");
                }
                (None, Err(_)) => {}
            }
        }
        assert!(read > 1_000, "{read} lines");
    }

    #[test]
    fn fast_parser_accepts_common_lines() {
        for line in [
            "run x -- true",
            "run -- /bin/sync-mail --all",
            "run -q -E 0 -- sync",
            "run -w5m --message=nightly a -- true",
            "run -nE0 a -- true",
            "list --sort=age --state held b",
            "run -w 5m -m nightly backup -- ./backup.sh --full",
            "run --exec x -- true",
            "run db cache -- true",
            "run -s report -w 5m -- ./report.sh",
            "run --slots 3 gpu -- ./train.sh",
            "acquire db cache -w 10m",
            "acquire deploy -w 10m",
            "hold --json -w 5m import",
            "acquire deploy --ttl 30m --owner 77",
            "release deploy --owner 77",
            "release deploy",
            "check -q backup",
            "check --json backup",
            "--dir /var/lib/locks check backup",
        ] {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert!(parse(&words).is_some(), "{line}");
        }
    }
}
