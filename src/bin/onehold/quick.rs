//! The everyday lines of `run`, `acquire`, `release` and `check`, read without clap, whose start
//! costs about as much as all the rest of such a call. What is not understood here, which is
//! everything that could be an error, is left to clap; a test proves that they agree.

use std::ffi::OsString;

use onehold::LockName;

use crate::args::{
    Acquire, Check, Claim, Claimant, Cli, Everywhere, OnLost, Release, Run, Verb, duration,
    time_to_live, wait_limit,
};

/// `None`: for clap. `words`: without the program's name.
pub(crate) fn parse(words: &[OsString]) -> Option<Cli> {
    let mut words = Words(words);
    let mut everywhere = Everywhere::default();
    let verb = loop {
        let word = words.next()?;
        if !words.everywhere(word, &mut everywhere)? {
            break word;
        }
    };
    let verb = match verb {
        "run" => Verb::Run(run(&mut words, &mut everywhere)?),
        "acquire" => Verb::Acquire(acquire(&mut words, &mut everywhere)?),
        "release" => Verb::Release(release(&mut words, &mut everywhere)?),
        "check" => Verb::Check(check(&mut words, &mut everywhere)?),
        _ => return None,
    };
    if everywhere.quiet && everywhere.verbose {
        return None;
    }
    Some(Cli { everywhere, verb })
}

fn run(words: &mut Words<'_>, everywhere: &mut Everywhere) -> Option<Run> {
    let mut run = Run {
        name: None,
        claim: Claim::default(),
        on_lost: OnLost::default(),
        close: false,
        exec: false,
        reentrant: false,
        command: Vec::new(),
    };
    loop {
        let word = words.next()?;
        match word {
            "--" => break,
            "--close" => set(&mut run.close)?,
            "--exec" => set(&mut run.exec)?,
            _ if words.everywhere(word, everywhere)? || words.claim(word, &mut run.claim)? => {}
            name => fill(&mut run.name, positional(name)?)?,
        }
    }
    run.command = words.0.to_vec();
    let at_odds = run.exec && (run.close || run.claim.ttl.is_some());
    (!run.command.is_empty() && !at_odds && agrees(&run.claim)).then_some(run)
}

fn acquire(words: &mut Words<'_>, everywhere: &mut Everywhere) -> Option<Acquire> {
    let mut acquire = Acquire {
        name: None,
        claim: Claim::default(),
        pid: None,
    };
    while !words.0.is_empty() {
        let word = words.next()?;
        if word == "--pid" {
            let pid = words.value()?.parse().ok()?;
            fill(&mut acquire.pid, pid)?;
        } else if !words.everywhere(word, everywhere)? && !words.claim(word, &mut acquire.claim)? {
            fill(&mut acquire.name, positional(word)?)?;
        }
    }
    let in_range = acquire
        .pid
        .is_none_or(|pid| (1..=i32::MAX.unsigned_abs()).contains(&pid));
    (in_range && agrees(&acquire.claim)).then_some(acquire)
}

fn release(words: &mut Words<'_>, everywhere: &mut Everywhere) -> Option<Release> {
    let mut release = Release {
        name: None,
        claimant: Claimant::default(),
        force: false,
        yes: false,
    };
    while !words.0.is_empty() {
        let word = words.next()?;
        match word {
            "--hold" => fill(&mut release.claimant.hold, words.value()?.parse().ok()?)?,
            "--owner" => fill(&mut release.claimant.owner, words.value()?.to_owned())?,
            _ if words.everywhere(word, everywhere)? => {}
            name => fill(&mut release.name, positional(name)?)?,
        }
    }
    Some(release)
}

fn check(words: &mut Words<'_>, everywhere: &mut Everywhere) -> Option<Check> {
    let mut check = Check {
        name: None,
        hold: None,
        owner: None,
        max_age: None,
    };
    while !words.0.is_empty() {
        let word = words.next()?;
        if !words.everywhere(word, everywhere)? {
            fill(&mut check.name, positional(word)?)?;
        }
    }
    Some(check)
}

/// What is left of the line.
struct Words<'a>(&'a [OsString]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        word.to_str().filter(|word| !word.is_empty())
    }

    /// The word after an option, if it cannot be another option.
    fn value(&mut self) -> Option<&'a str> {
        self.next().filter(|word| !word.starts_with('-'))
    }

    /// Whether it is an option of every verb. `None`: perhaps, and clap knows.
    fn everywhere(&mut self, word: &str, everywhere: &mut Everywhere) -> Option<bool> {
        match word {
            "--dir" => fill(&mut everywhere.dir, self.value()?.into())?,
            "--json" => set(&mut everywhere.json)?,
            "-q" | "--quiet" => set(&mut everywhere.quiet)?,
            "-v" | "--verbose" => set(&mut everywhere.verbose)?,
            _ => return Some(false),
        }
        Some(true)
    }

    /// The same for the options of those who want a lock.
    fn claim(&mut self, word: &str, claim: &mut Claim) -> Option<bool> {
        match word {
            "-w" | "--wait" => fill(&mut claim.wait, wait_limit(self.value()?).ok()?)?,
            "-n" | "--no-wait" => set(&mut claim.no_wait)?,
            "-m" | "--message" => fill(&mut claim.message, self.value()?.to_owned())?,
            "--owner" => fill(&mut claim.owner, self.value()?.to_owned())?,
            "--ttl" => fill(&mut claim.ttl, time_to_live(self.value()?).ok()?)?,
            "--max-age" => fill(&mut claim.max_age, duration(self.value()?).ok()?)?,
            "-E" | "--conflict-exit-code" => {
                fill(&mut claim.conflict_exit_code, self.value()?.parse().ok()?)?;
            }
            _ => return Some(false),
        }
        Some(true)
    }
}

/// An option given twice is an error, which is clap's to tell.
fn fill<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.is_none().then(|| *place = Some(value))
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

fn agrees(claim: &Claim) -> bool {
    !(claim.no_wait && claim.wait.is_some())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Words that mean something somewhere, and some that do not.
    const VOCABULARY: &[&str] = &[
        "run",
        "acquire",
        "release",
        "check",
        "list",
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
    fn what_is_read_here_is_what_clap_reads() {
        let mut dice = 0x2545_F491_4F6C_DD1D_u64;
        let mut below = |limit: usize| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            usize::try_from(dice % limit as u64).unwrap()
        };
        let mut read = 0;
        for round in 0..60_000 {
            let mut line: Vec<OsString> = Vec::new();
            // Most lines begin with a verb, or hardly any would make sense.
            if round % 8 != 0 {
                line.push(VOCABULARY[below(4)].into());
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
    fn everyday_lines_are_read_here() {
        for line in [
            "run x -- true",
            "run -- /bin/sync-mail --all",
            "run -q -E 0 -- sync",
            "run -w 5m -m nightly backup -- ./backup.sh --full",
            "run --exec x -- true",
            "acquire deploy -w 10m",
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
