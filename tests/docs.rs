//! Man pages, completions and README say what the program says: they are made here from its one
//! definition and compared. `BLESS=1 cargo test --test docs` writes them anew.
#![allow(missing_docs, dead_code)]
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "../src/bin/onehold/args.rs"]
mod args;
#[path = "../src/bin/onehold/exit.rs"]
mod exit;
#[path = "../src/bin/onehold/manual.rs"]
mod manual;

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a file with what it should be, or writes it.
#[track_caller]
fn is_in_sync(path: &str, expected: &[u8]) {
    let file = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, expected).unwrap();
        return;
    }
    let found = fs::read(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} differs from what the program's definition makes of it: BLESS=1 cargo test --test docs"
    );
}

/// Nothing else lies in a directory of generated files.
#[track_caller]
fn holds_only(directory: &str, mut expected: Vec<String>) {
    let mut found: Vec<String> = fs::read_dir(root().join(directory))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "{directory}/");
}

fn definition() -> clap::Command {
    let mut command = args::Cli::command().disable_help_subcommand(true);
    command.build();
    command
}

#[test]
fn the_man_pages_are_those_of_the_definition() {
    let command = definition();
    let verbs: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let mut pages = vec!["onehold.1".to_owned()];
    is_in_sync("man/onehold.1", &page(&command, "onehold", ""));
    for verb in verbs {
        let name = verb.get_name().to_owned();
        let file = format!("onehold-{name}.1");
        is_in_sync(
            &format!("man/{file}"),
            &page(
                &verb.display_name(format!("onehold-{name}")),
                &format!("onehold {name}"),
                &name,
            ),
        );
        pages.push(file);
    }
    // Written by hand.
    pages.extend(["onehold-formats.5", "onehold-config.5"].map(str::to_owned));
    holds_only("man", pages);
}

fn config_page() -> String {
    fs::read_to_string(root().join("man/onehold-config.5")).unwrap()
}

/// As a man page writes it.
fn in_roff(text: &str) -> String {
    text.replace('-', "\\-")
        .replace('"', "\\(dq")
        .replace('\'', "\\(aq")
}

#[test]
fn the_man_page_of_the_configuration_has_every_key_and_profile() {
    let page = config_page();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    fs::write(&config, "[defaults]\nno-such-key = 1\n").unwrap();
    let complaint = assert_cmd::Command::cargo_bin("onehold")
        .unwrap()
        .args(["check", "x"])
        .env("ONEHOLD_CONFIG", &config)
        .output()
        .unwrap()
        .stderr;
    let complaint = String::from_utf8(complaint).unwrap();
    // It lists them all, in backquotes.
    let (_, known) = complaint.split_once("expected one of ").unwrap();
    let keys: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    assert!(keys.len() >= 20, "{keys:?}");
    for key in &keys {
        let entry = format!("\n.TP\n.B {}\n", in_roff(key));
        assert!(page.contains(&entry), "onehold-config(5) lacks {key}");
    }
    let entries = page
        .split(".SH BUILT")
        .next()
        .unwrap()
        .matches("\n.TP\n")
        .count();
    assert_eq!(entries, keys.len());
    let profiles = fs::read_to_string(root().join("src/bin/onehold/profiles.toml")).unwrap();
    assert!(page.contains(&in_roff(&profiles)));
}

#[test]
fn the_configurations_that_are_shown_are_understood_by_the_program() {
    let readme = readme();
    let shown = blocks(&readme, "toml");
    assert!(!shown.is_empty());
    let directory = tempfile::tempdir().unwrap();
    for (at, text) in shown {
        let config = directory.path().join("config.toml");
        fs::write(&config, text).unwrap();
        assert_cmd::Command::cargo_bin("onehold")
            .unwrap()
            .args(["--profile", "import", "--dir"])
            .arg(directory.path().join("store"))
            .arg("list")
            .env("ONEHOLD_CONFIG", &config)
            .assert()
            .success();
        assert!(at > 0);
    }
}

fn page(command: &clap::Command, called: &str, verb: &str) -> Vec<u8> {
    let title = called.replace(' ', "-").to_uppercase();
    // Without a date, which would make every build another page.
    let man = Man::new(command.clone().bin_name(called))
        .title(title)
        .section("1")
        .date("")
        .source(format!("onehold {}", env!("CARGO_PKG_VERSION")))
        .manual("onehold");
    let mut out = Vec::new();
    man.render_title(&mut out).unwrap();
    man.render_name_section(&mut out).unwrap();
    let usage = command.clone().bin_name(called).render_usage().to_string();
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    synopsis.text([
        bold(called),
        roman(usage.replacen(&format!("Usage: {called}"), "", 1)),
    ]);
    out.extend(synopsis.render().into_bytes());
    man.render_description_section(&mut out).unwrap();
    man.render_options_section(&mut out).unwrap();
    if verb.is_empty() {
        man.render_subcommands_section(&mut out).unwrap();
    }
    let mut roff = Roff::new();
    if verb.is_empty() {
        for (title, text) in manual::CHAPTERS {
            roff.control("SH", [*title]);
            for paragraph in *text {
                roff.control("PP", []);
                roff.text([roman(*paragraph)]);
            }
        }
    }
    if verb.is_empty() {
        roff.control("SH", ["JSON"]);
        for paragraph in manual::JSON {
            roff.control("PP", []);
            roff.text([roman(*paragraph)]);
        }
        table(&mut roff, "KEYS OF A LOCK IN IT", &manual::LOCK_KEYS);
    }
    table(&mut roff, "EXIT STATUS", &exit::TABLE);
    table(&mut roff, "FILES", &manual::FILES);
    table(&mut roff, "ENVIRONMENT", &manual::ENVIRONMENT);
    roff.control("SH", ["EXAMPLES"]);
    for (line, purpose) in manual::examples(verb) {
        roff.control("PP", []);
        roff.text([roman(format!("{purpose}:"))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.text([bold(*line)]);
        roff.control("RE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(
        "onehold(1), onehold-run(1), onehold-acquire(1), onehold-release(1), onehold-renew(1), \
         onehold-check(1), onehold-list(1), onehold-cleanup(1), onehold-break(1), \
         onehold-formats(5), onehold-config(5), flock(1)",
    )]);
    out.extend(roff.render().into_bytes());
    out
}

fn table(roff: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (what, meaning) in rows {
        roff.control("TP", []);
        roff.text([bold(*what)]);
        roff.text([roman(*meaning)]);
    }
}

#[test]
fn the_completions_are_those_of_the_definition() {
    let mut files = Vec::new();
    for (shell, file) in [
        (Shell::Bash, "onehold.bash"),
        (Shell::Zsh, "_onehold"),
        (Shell::Fish, "onehold.fish"),
        (Shell::PowerShell, "_onehold.ps1"),
        (Shell::Elvish, "onehold.elv"),
    ] {
        let mut out = Vec::new();
        clap_complete::generate(shell, &mut args::Cli::command(), "onehold", &mut out);
        is_in_sync(&format!("completions/{file}"), &out);
        files.push(file.to_owned());
    }
    holds_only("completions", files);
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

#[test]
fn the_readme_has_every_verb_with_its_help_line() {
    let readme = readme();
    for verb in definition().get_subcommands() {
        let about = verb.get_about().unwrap().to_string().replace('|', "\\|");
        let row = format!("| `{}` | {about} |", verb.get_name());
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}

#[test]
fn the_readme_has_every_exit_code() {
    let readme = readme();
    for (code, meaning) in exit::TABLE {
        let row = format!("| {code} | {meaning} |");
        assert!(readme.contains(&row), "README.md lacks: {row}");
    }
}

#[test]
fn every_exit_code_is_in_the_table() {
    use exit::Exit;
    for exit in [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Nothing,
        Exit::NotYours,
        Exit::Zombie,
        Exit::Locked,
        Exit::TimedOut,
        Exit::Lost,
        Exit::RunFailed,
        Exit::NotExecutable,
        Exit::NotFound,
    ] {
        let code = exit.code().to_string();
        let documented = exit::TABLE
            .iter()
            .any(|(codes, _)| codes.split(", ").any(|known| known == code));
        assert!(documented, "{exit:?} is {code}");
    }
}

/// Blocks of a language, with the line they start on.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut current: Option<(usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match &mut current {
            Some(_) if line.trim_end() == "```" => blocks.extend(current.take()),
            Some((_, block)) => {
                block.push_str(line);
                block.push('\n');
            }
            None if line.trim_end() == format!("```{language}") => {
                current = Some((number + 1, String::new()));
            }
            None => {}
        }
    }
    blocks
}

#[test]
fn every_command_line_of_the_readme_is_understood_by_the_program() {
    let readme = readme();
    let mut understood = 0;
    for (at, block) in blocks(&readme, "sh")
        .into_iter()
        .chain(blocks(&readme, "console"))
    {
        for line in block.lines() {
            let line = line.trim_start_matches("$ ");
            let Some(start) = line.find("onehold ").filter(|start| {
                let before = line[..*start].chars().next_back();
                before.is_none_or(|before| !before.is_alphanumeric() && before != '-')
            }) else {
                continue;
            };
            let words = words_of_call(&line[start..]);
            if !definition()
                .get_subcommands()
                .any(|verb| words.iter().any(|word| word == verb.get_name()))
            {
                continue;
            }
            if let Err(error) = args::Cli::command().try_get_matches_from(&words) {
                panic!("README.md, block at line {at}: {line}\n{words:?}\n{error}");
            }
            understood += 1;
        }
    }
    assert!(understood >= 14, "only {understood} calls found");
}

/// The words of a call up to what ends it in a shell.
fn words_of_call(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = shlex::Shlex::new(text);
    for word in rest.by_ref() {
        let end = word.find([';', ')', '|', '&', '>']);
        let ends = end.is_some() || word == "||" || word == "&&" || word == "#";
        let word = match end {
            Some(end) => word[..end].to_owned(),
            None => word,
        };
        if !word.is_empty()
            && word != "#"
            && !word.chars().all(|char| char.is_ascii_digit() && ends)
        {
            words.push(word);
        }
        if ends {
            break;
        }
    }
    words
}

#[test]
fn the_examples_of_the_manual_are_understood_by_the_program() {
    let verbs: Vec<String> = definition()
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for verb in verbs.iter().map(String::as_str).chain([""]) {
        let examples = manual::examples(verb);
        assert!(!examples.is_empty(), "{verb}");
        for (line, _) in examples {
            let words = words_of_call(&line[line.find("onehold ").unwrap()..]);
            if let Err(error) = args::Cli::command().try_get_matches_from(&words) {
                panic!("{line}\n{error}");
            }
        }
    }
}
