//! Parses common command lines of `run`, `acquire`, `hold`, `release` and `check` without clap, whose start
//! takes about as long as the rest of such an invocation.
//!
//! Everything else is left to clap, in particular all errors. A test compares both parsers.

use std::ffi::OsString;

use onehold::LockName;

use crate::arguments::args::{
    Acquire, Check, Cli, GlobalArgs, HoldArgs, HoldUntilEnd, Release, Run, Verb, die_with,
    duration, pid, slots, time_to_live, wait_limit,
};

/// Parses `words`, the arguments without the program's name. `None`: clap must parse them.
pub(crate) fn parse(words: &[OsString]) -> Option<Cli> {
    let mut words = Words(words);
    let mut global = GlobalArgs::default();
    let verb = loop {
        let word = words.next()?;
        if !words.global(word, &mut global)? {
            break word;
        }
    };
    let verb = match verb {
        "run" => Verb::Run(run(&mut words, &mut global)?),
        "acquire" => Verb::Acquire(acquire(&mut words, &mut global)?),
        "hold" => Verb::Hold(hold(&mut words, &mut global)?),
        "release" => Verb::Release(release(&mut words, &mut global)?),
        "check" => Verb::Check(check(&mut words, &mut global)?),
        _ => return None,
    };
    if global.quiet && global.verbose {
        return None;
    }
    Some(Cli { global, verb })
}

fn run(words: &mut Words<'_>, global: &mut GlobalArgs) -> Option<Run> {
    let mut run = Run::default();
    loop {
        match words.next()? {
            "--" => break,
            "--close" => set(&mut run.close)?,
            "--exec" => set(&mut run.exec)?,
            "--time-limit" => fill(&mut run.time_limit, duration(words.value()?).ok()?)?,
            "--die-with" => fill(&mut run.die_with, die_with(words.value()?).ok()?)?,
            "--kill-after" => fill(&mut run.kill_after, duration(words.value()?).ok()?)?,
            word if words.global(word, global)? || words.hold(word, &mut run.hold)? => {}
            name => run.names.push(positional(name)?),
        }
    }
    run.command = words.0.to_vec();
    let excludes_exec = run.close || run.hold.ttl.is_some() || run.time_limit.is_some();
    let conflicting = run.exec && (excludes_exec || run.die_with.is_some());
    (!run.command.is_empty() && !conflicting && no_conflict(&run.hold)).then_some(run)
}

fn acquire(words: &mut Words<'_>, global: &mut GlobalArgs) -> Option<Acquire> {
    let mut acquire = Acquire::default();
    while !words.0.is_empty() {
        match words.next()? {
            "--pid" => fill(&mut acquire.pid, pid(words.value()?).ok()?)?,
            word if words.global(word, global)? || words.hold(word, &mut acquire.hold)? => {}
            name => acquire.names.push(positional(name)?),
        }
    }
    no_conflict(&acquire.hold).then_some(acquire)
}

fn hold(words: &mut Words<'_>, global: &mut GlobalArgs) -> Option<HoldUntilEnd> {
    let mut hold = HoldUntilEnd::default();
    while !words.0.is_empty() {
        match words.next()? {
            "--die-with" => fill(&mut hold.die_with, die_with(words.value()?).ok()?)?,
            word if words.global(word, global)? || words.hold(word, &mut hold.hold)? => {}
            name => hold.names.push(positional(name)?),
        }
    }
    no_conflict(&hold.hold).then_some(hold)
}

fn release(words: &mut Words<'_>, global: &mut GlobalArgs) -> Option<Release> {
    let mut release = Release::default();
    while !words.0.is_empty() {
        match words.next()? {
            "--hold" => fill(&mut release.caller.hold, words.value()?.parse().ok()?)?,
            "--owner" => fill(&mut release.caller.owner, words.value()?.to_owned())?,
            word if words.global(word, global)? => {}
            name => fill(&mut release.name, positional(name)?)?,
        }
    }
    Some(release)
}

fn check(words: &mut Words<'_>, global: &mut GlobalArgs) -> Option<Check> {
    let mut check = Check::default();
    while !words.0.is_empty() {
        match words.next()? {
            "--mine" => set(&mut check.mine)?,
            word if words.global(word, global)? => {}
            name => fill(&mut check.name, positional(name)?)?,
        }
    }
    Some(check)
}

/// The words not parsed yet.
struct Words<'a>(&'a [OsString]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        word.to_str().filter(|word| !word.is_empty())
    }

    /// The value of an option. `None` if it looks like another option.
    fn value(&mut self) -> Option<&'a str> {
        self.next().filter(|word| !word.starts_with('-'))
    }

    /// Parses a global option. Returns `Some(false)` for another word, `None` to leave it to clap.
    fn global(&mut self, word: &str, global: &mut GlobalArgs) -> Option<bool> {
        match word {
            "--dir" => fill(&mut global.dir, self.value()?.into())?,
            "--json" => set(&mut global.json)?,
            "-q" | "--quiet" => set(&mut global.quiet)?,
            "-v" | "--verbose" => set(&mut global.verbose)?,
            _ => return Some(false),
        }
        Some(true)
    }

    /// Parses an option of [`HoldArgs`], with the same results.
    fn hold(&mut self, word: &str, hold: &mut HoldArgs) -> Option<bool> {
        match word {
            "-w" | "--wait" => fill(&mut hold.wait, wait_limit(self.value()?).ok()?)?,
            "-n" | "--no-wait" => set(&mut hold.no_wait)?,
            "-s" | "--shared" => set(&mut hold.shared)?,
            "--slots" => fill(&mut hold.slots, slots(self.value()?).ok()?)?,
            "-m" | "--message" => fill(&mut hold.message, self.value()?.to_owned())?,
            "--owner" => fill(&mut hold.owner, self.value()?.to_owned())?,
            "--ttl" => fill(&mut hold.ttl, time_to_live(self.value()?).ok()?)?,
            "--max-age" => fill(&mut hold.max_age, duration(self.value()?).ok()?)?,
            "--keep-place" => fill(&mut hold.keep_place, duration(self.value()?).ok()?)?,
            "--max-waiting" => fill(&mut hold.max_waiting, self.value()?.parse().ok()?)?,
            "-E" | "--conflict-exit-code" => {
                fill(&mut hold.conflict_exit_code, self.value()?.parse().ok()?)?;
            }
            _ => return Some(false),
        }
        Some(true)
    }
}

/// Sets a value. `None` if it was set before: clap reports the error.
fn fill<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.is_none().then(|| *slot = Some(value))
}

fn set(flag: &mut bool) -> Option<()> {
    (!*flag).then(|| *flag = true)
}

fn positional(word: &str) -> Option<LockName> {
    if word.starts_with('-') {
        return None;
    }
    LockName::new(word).ok()
}

fn no_conflict(hold: &HoldArgs) -> bool {
    !(hold.no_wait && hold.wait.is_some() || hold.shared && hold.slots.is_some())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

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
        let mut read = 0;
        for round in 0..60_000 {
            let mut line: Vec<OsString> = Vec::new();
            // Most lines begin with a command, otherwise hardly any would parse.
            if round % 8 != 0 {
                line.push(VOCABULARY[below(5)].into());
            }
            for _ in 0..below(7) {
                line.push(VOCABULARY[below(VOCABULARY.len())].into());
            }
            if round % 2 == 0 {
                line.extend(["--".into(), "true".into()]);
            }
            let Some(here) = parse(&line) else { continue };
            read += 1;
            let whole: Vec<OsString> = [OsString::from("onehold")]
                .into_iter()
                .chain(line)
                .collect();
            match Cli::try_parse_from(&whole) {
                Ok(clap) => assert_eq!(format!("{here:?}"), format!("{clap:?}"), "{whole:?}"),
                Err(error) => panic!("{whole:?}: {error}"),
            }
        }
        assert!(read > 2_000, "{read} lines");
    }

    #[test]
    fn fast_parser_accepts_common_lines() {
        for line in [
            "run x -- true",
            "run -- /bin/sync-mail --all",
            "run -q -E 0 -- sync",
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
