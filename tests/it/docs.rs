//! Compares man pages, completions, the README and its picture with the program.
//! `BLESS=1 cargo test --test it docs::` rewrites man pages, completions and the picture.

#[allow(dead_code, reason = "the binary uses the rest")]
#[path = "../../src/bin/onehold/messages/exit.rs"]
mod exit;
mod json_page;
#[cfg(target_os = "linux")]
mod picture;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use assert_cmd::prelude::OutputAssertExt;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::{args, doc_text};
use crate::harness::program;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A page of clap_mangen or roff, which print an empty date as nothing, so that what follows would be the date.
/// `.ci/package` puts the date there.
fn with_a_place_for_the_date(page: &[u8]) -> Vec<u8> {
    let page = std::str::from_utf8(page).unwrap();
    page.replacen("  \"onehold", " \"\" \"onehold", 1)
        .into_bytes()
}

/// Compares a file with its expected content, or writes it.
#[track_caller]
fn assert_in_sync(path: &str, expected: &[u8]) {
    let file = root().join(path);
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, expected).unwrap();
        return;
    }
    let found = fs::read(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is out of date: BLESS=1 cargo test --test it docs::"
    );
}

/// Checks that a directory has no other files.
#[track_caller]
fn assert_only_files(directory: &str, mut expected: Vec<String>) {
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

/// The man pages that are written by hand.
const BY_HAND: [&str; 8] = [
    "onehold-config.5",
    "onehold-formats.5",
    "onehold-etcd.7",
    "onehold-flock.7",
    "onehold-agents.7",
    "onehold-postgres.7",
    "onehold-recipes.7",
    "onehold-states.7",
];

#[test]
fn man_pages_match_definition() {
    let command = definition();
    let verbs: Vec<clap::Command> = command.get_subcommands().cloned().collect();
    let mut pages = vec!["onehold.1".to_owned()];
    pages.extend(
        verbs
            .iter()
            .map(|verb| format!("onehold-{}.1", verb.get_name())),
    );
    pages.extend(BY_HAND.map(str::to_owned));
    pages.push("onehold-json.5".to_owned());
    let assert_page = |path: &str, page: Vec<u8>| {
        assert_in_sync(path, &with_a_place_for_the_date(&page));
    };
    assert_page("man/onehold-json.5", json_page::page(&pages));
    assert_page("man/onehold.1", page(&command, "onehold", "", &pages));
    for verb in verbs {
        let name = verb.get_name().to_owned();
        assert_page(
            &format!("man/onehold-{name}.1"),
            page(
                &verb.display_name(format!("onehold-{name}")),
                &format!("onehold {name}"),
                &name,
                &pages,
            ),
        );
    }
    pages.push(PICTURE.to_owned());
    assert_only_files("man", pages);
}

#[test]
fn help_and_version_are_what_clap_prints() {
    // clap has more than one word to read.
    let printed = |by: &[&str]| {
        let mut command = Command::new(program());
        command.env_remove("COLUMNS").env_remove("CLICOLOR_FORCE");
        command.args(by).output().unwrap().stdout
    };
    assert_in_sync(
        "src/bin/onehold/arguments/help.txt",
        &printed(&["-q", "--help"]),
    );
    for word in ["--help", "--version", "-V"] {
        let (fixed, by_clap) = (printed(&[word]), printed(&["-q", word]));
        assert!(!fixed.is_empty() && fixed == by_clap, "{word}");
    }
}

/// The picture of the README, beside the man pages.
const PICTURE: &str = "onehold.svg";

#[cfg(target_os = "linux")]
#[test]
fn picture_shows_what_the_program_prints() {
    let picture = picture::draw();
    assert!(picture.len() < 20_000, "{} bytes", picture.len());
    assert_in_sync(&format!("man/{PICTURE}"), picture.as_bytes());
}

#[test]
fn man_pages_refer_to_pages_that_exist_and_not_to_themselves() {
    let mut failures = Vec::new();
    for page in fs::read_dir(root().join("man")).unwrap() {
        let page = page.unwrap();
        let file = page.file_name().into_string().unwrap();
        if file == PICTURE {
            continue;
        }
        let text = fs::read_to_string(page.path()).unwrap();
        let text = text.replace("\\-", "-");
        let (_, others) = text.rsplit_once("SEE ALSO").unwrap();
        for other in others.split([' ', ',', '"', '\n']) {
            let Some((name, section)) = other
                .strip_suffix(')')
                .and_then(|other| other.split_once('('))
            else {
                continue;
            };
            let other_file = format!("{name}.{section}");
            let is_missing =
                name.starts_with("onehold") && !root().join("man").join(&other_file).exists();
            if is_missing || other_file == file {
                failures.push(format!("{file}: {other}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}

fn config_page() -> String {
    fs::read_to_string(root().join("man/onehold-config.5")).unwrap()
}

/// Escapes text as in a man page.
fn in_roff(text: &str) -> String {
    text.replace('-', "\\-")
        .replace('"', "\\(dq")
        .replace('\'', "\\(aq")
}

#[test]
fn formats_man_page_has_every_key_of_a_record() {
    fn add_keys(value: &serde_json::Value, keys: &mut Vec<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            keys.push(key.clone());
            if key != "origin" {
                add_keys(value, keys);
            }
        }
    }
    let page = fs::read_to_string(root().join("man/onehold-formats.5")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let onehold = |args: &[&str]| {
        let mut command = Command::new(program());
        command.args(args).env("ONEHOLD_DIR", directory.path());
        command.env("ONEHOLD_HISTORY", "1");
        command.output().unwrap().stdout
    };
    let mut keys = Vec::new();
    let pid = std::process::id().to_string();
    let options = ["--owner", "o", "-m", "m", "--ttl", "1h", "--max-age", "2h"];
    onehold(&[&["acquire", "a", "--pid", &pid], &options[..]].concat());
    onehold(&["--format", "prodigy", "acquire", "b", "--pid", &pid]);
    let hold = fs::read_to_string(directory.path().join("a.lock")).unwrap();
    let hold: serde_json::Value = serde_json::from_str(&hold).unwrap();
    let number = hold["hold"].to_string();
    onehold(&["renew", "a", "--hold", &number, "--ttl", "2h"]);
    let cat = ["--", "sh", "-c", "cat \"$ONEHOLD_FILE\""];
    for (name, option) in [("c", "--close"), ("d", "--exec")] {
        let record = onehold(&[&["run", option, name], &cat[..]].concat());
        add_keys(&serde_json::from_slice(&record).unwrap(), &mut keys);
    }
    onehold(&[
        "run",
        "--hold-at-least",
        "1h",
        "e",
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ]);
    for name in ["a", "b", "e"] {
        let record = fs::read(directory.path().join(format!("{name}.lock"))).unwrap();
        add_keys(&serde_json::from_slice(&record).unwrap(), &mut keys);
    }
    assert!(keys.len() > 40, "{keys:?}");
    for key in keys {
        // In bold, alone or in a list.
        let is_described = page.lines().any(|line| {
            let words = ["\\fB", ".B ", ".BR "];
            words.iter().any(|word| line.contains(word))
                && line
                    .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .any(|word| word.strip_prefix("dq").unwrap_or(word) == key)
        });
        assert!(is_described, "onehold-formats(5) lacks {key}");
    }
}

#[test]
fn config_man_page_has_every_key_and_profile() {
    let page = config_page();
    // Each key is a field of the settings.
    let source = fs::read_to_string(root().join("src/bin/onehold/configuration/mod.rs")).unwrap();
    let (_, fields) = source.split_once("pub(crate) struct Settings {\n").unwrap();
    let (fields, _) = fields.split_once("\n}").unwrap();
    let keys: Vec<String> = fields
        .lines()
        .map(|line| line.trim().trim_start_matches("pub(crate) "))
        .map(|field| field.split_once(':').unwrap().0.replace('_', "-"))
        .collect();
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
    let profiles =
        fs::read_to_string(root().join("src/bin/onehold/configuration/profiles.toml")).unwrap();
    assert!(page.contains(&in_roff(&profiles)));
}

/// The packages have it, for the program that is linked into them.
#[test]
fn notices_name_each_library_at_its_version() {
    let notices = fs::read_to_string(root().join("packaging/NOTICES")).unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut tree = Command::new(cargo);
    tree.args([
        "tree",
        "--locked",
        "--offline",
        "--features",
        "etcd,postgres",
    ])
    .args([
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])
    .args(["--target", "x86_64-unknown-linux-musl"])
    .current_dir(root());
    let output = tree.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let linked = String::from_utf8(output.stdout).unwrap();
    let mut linked: Vec<&str> = linked
        .lines()
        .filter(|line| !line.starts_with("onehold "))
        .collect();
    linked.sort_unstable();
    linked.dedup();
    assert!(linked.len() > 50, "{linked:?}");
    linked.retain(|line| {
        let words: Vec<&str> = line.split([' ', '+']).collect();
        let used = format!("\n  {} {}", words[0], words[1].trim_start_matches('v'));
        !notices.contains(&used)
    });
    assert!(linked.is_empty(), "run .ci/notices: {linked:?}");
}

#[test]
fn configuration_of_the_config_page_is_valid() {
    let page = config_page().replace("\\-", "-").replace("\\(dq", "\"");
    let (_, shown) = page.split_once(".EX\n").unwrap();
    let (text, _) = shown.split_once(".EE").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config.toml");
    fs::write(&config, text).unwrap();
    Command::new(program())
        .args(["--profile", "import", "--dir"])
        .arg(directory.path().join("store"))
        .arg("list")
        .env("ONEHOLD_CONFIG", &config)
        .assert()
        .success();
}

/// For JSON OUTPUT.
const JSON: &str = "With --json, each command prints one JSON object, even if it fails. onehold-json(5) describes its keys, and the rules by which they change.";

/// A page of section 1. `pages` are the files of all pages.
fn page(command: &clap::Command, called: &str, verb: &str, pages: &[String]) -> Vec<u8> {
    // They are described once, in onehold(1).
    let command = &command.clone().mut_args(|arg| {
        let hides = !verb.is_empty() && arg.is_global_set();
        arg.hide(hides)
    });
    let title = called.replace(' ', "-").to_uppercase();
    // Without a date: every build generates the same page.
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
        roff.control("SH", ["JSON OUTPUT"]);
        roff.control("PP", []);
        roff.text([roman(JSON)]);
        table(&mut roff, "EXIT STATUS", &doc_text::rows(exit::TABLE));
        table(&mut roff, "FILES", &doc_text::rows(doc_text::FILES));
        let variables = doc_text::rows(doc_text::ENVIRONMENT);
        table(&mut roff, "ENVIRONMENT", &variables);
    } else {
        let codes = exit::table_of(verb);
        let codes: Vec<(&str, &str)> = codes
            .iter()
            .map(|(code, of)| (*code, of.as_str()))
            .collect();
        table(&mut roff, "EXIT STATUS", &codes);
        roff.control("PP", []);
        roff.text([roman(
            "The options of every command (--dir, --project, --profile, --format, --json, -q, -v, --color), all exit \
             codes, files and environment are described in onehold(1).",
        )]);
    }
    roff.control("SH", ["EXAMPLES"]);
    for (line, purpose) in doc_text::rows(doc_text::examples(verb)) {
        roff.control("PP", []);
        roff.text([roman(format!("{purpose}:"))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.text([bold(line)]);
        roff.control("RE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    let own = format!("{}.1", called.replace(' ', "-"));
    roff.text([roman(others(pages, &own))]);
    out.extend(roff.render().into_bytes());
    out
}

/// For SEE ALSO: all pages but this one.
fn others(pages: &[String], own: &str) -> String {
    let others = pages.iter().filter(|page| **page != own);
    let others: Vec<String> = others
        .map(|page| format!("{})", page.replace('.', "(")))
        .collect();
    others.join(", ")
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
fn completions_match_definition() {
    // Those of bash, zsh and fish ask the program, and are written by hand.
    let mut files = ["onehold.bash", "_onehold", "onehold.fish"]
        .map(str::to_owned)
        .to_vec();
    for (shell, file) in [
        (Shell::PowerShell, "_onehold.ps1"),
        (Shell::Elvish, "onehold.elv"),
    ] {
        let mut out = Vec::new();
        clap_complete::generate(shell, &mut args::Cli::command(), "onehold", &mut out);
        assert_in_sync(&format!("completions/{file}"), &out);
        files.push(file.to_owned());
    }
    assert_only_files("completions", files);
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

#[test]
fn readme_needs_no_file_that_is_not_beside_it() {
    // Packages have it without the source, and with the picture.
    let readme = readme();
    let links: Vec<&str> = readme
        .split("](")
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap())
        .filter(|link| !link.starts_with("https://") && !link.starts_with('#'))
        .collect();
    assert_eq!(links, [format!("man/{PICTURE}")]);
}

#[test]
fn readme_has_every_exit_code() {
    let readme = readme();
    let listed: Vec<&str> = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|codes| codes.split(", "))
        .collect();
    for (codes, _) in doc_text::rows(exit::TABLE) {
        for code in codes.split(", ") {
            assert!(listed.contains(&code), "README.md lacks {code}");
        }
    }
}

#[test]
fn readme_is_short() {
    let lines = readme().lines().count();
    assert!(lines < 150, "{lines} lines");
}

#[test]
fn exit_code_table_is_complete() {
    use exit::Exit;
    for exit in [
        Exit::DONE,
        Exit::FAILED,
        Exit::USAGE,
        Exit::NOT_HELD,
        Exit::NOT_YOURS,
        Exit::ZOMBIE,
        Exit::LOCKED,
        Exit::TIMED_OUT,
        Exit::LOST,
        Exit::RUN_FAILED,
        Exit::NOT_EXECUTABLE,
        Exit::NOT_FOUND,
    ] {
        let code = exit.0.to_string();
        let documented = doc_text::rows(exit::TABLE)
            .iter()
            .any(|(codes, _)| codes.split(", ").any(|known| known == code));
        assert!(documented, "{exit:?} is {code}");
    }
}

/// The code blocks in a language, with the numbers of their first lines.
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
fn readme_command_lines_parse() {
    let readme = readme();
    let mut parsed = 0;
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
            let words = command_words(&line[start..]);
            if !definition()
                .get_subcommands()
                .any(|verb| words.iter().any(|word| word == verb.get_name()))
            {
                continue;
            }
            if let Err(error) = args::Cli::command().try_get_matches_from(&words) {
                panic!("README.md, block at line {at}: {line}\n{words:?}\n{error}");
            }
            parsed += 1;
        }
    }
    assert!(parsed >= 14, "only {parsed} command lines found");
}

/// The words of a command line up to the shell operator that ends it.
fn command_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = shlex::Shlex::new(text);
    for word in rest.by_ref() {
        let is_substituted = word.contains("$(");
        let end = word.find([';', ')', '|', '&', '>']);
        let end = end.filter(|_| !is_substituted);
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
fn manual_examples_parse() {
    let verbs: Vec<String> = definition()
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for verb in verbs.iter().map(String::as_str).chain([""]) {
        let examples = doc_text::rows(doc_text::examples(verb));
        assert!(!examples.is_empty(), "{verb}");
        for (line, _) in examples {
            let words = command_words(&line[line.find("onehold ").unwrap()..]);
            if let Err(error) = args::Cli::command().try_get_matches_from(&words) {
                panic!("{line}\n{error}");
            }
        }
    }
}

#[test]
fn each_trusted_filesystem_is_documented() {
    let page = fs::read_to_string(root().join("man/onehold-states.7")).unwrap();
    let page = page.to_lowercase();
    for name in onehold::status::trusted_filesystems().flat_map(|names| names.split(", ")) {
        assert!(page.contains(name), "{name}");
    }
}

/// A cell or a line that is longer than this has more than one promise.
const LONGEST: usize = 180;

fn source(name: &str) -> String {
    fs::read_to_string(root().join("src").join(name)).unwrap()
}

#[test]
fn evidence_has_short_cells_and_names_tests_that_exist_and_the_day_of_the_last_long_run() {
    let text = source("evidence.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut tested = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let long = cells.iter().find(|cell| cell.chars().count() > LONGEST);
        assert_eq!(long, None, "a cell of more than {LONGEST} characters");
        let [_, _, named, ran] = cells[..] else {
            continue;
        };
        if named == "Test" {
            continue;
        }
        tested += 1;
        let is_day = chrono::NaiveDate::parse_from_str(ran, "%Y-%m-%d").is_ok();
        assert!(
            is_day || ["CI", "not noted"].contains(&ran),
            "no day: {row}"
        );
        for test in named.split(", ") {
            let path = test
                .strip_prefix('`')
                .and_then(|test| test.strip_suffix('`'));
            assert!(
                path.is_some_and(|path| root().join(path).exists()),
                "{test} in: {row}"
            );
        }
    }
    assert!(tested > 50, "only {tested} rows name a test");
}

#[test]
fn each_promise_is_short_and_leads_to_evidence_and_all_evidence_has_a_promise() {
    let (guarantees, evidence) = (source("guarantees.md"), source("evidence.md"));
    let headings: Vec<String> = evidence
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|heading| heading.to_lowercase().replace(' ', "-"))
        .collect();
    let links: Vec<(&str, &str)> = guarantees
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: crate::evidence#"))
        .collect();
    for (word, heading) in &links {
        assert!(headings.iter().any(|known| known == heading), "{word}");
    }
    let (promises, _) = guarantees.split_once("\n**Not guaranteed**\n").unwrap();
    let mut used = Vec::new();
    for promise in promises.split("\n- ").skip(1) {
        let promise = promise.split("\n\n").next().unwrap().replace("\n  ", " ");
        let (promise, words) = promise.rsplit_once(" (").unwrap_or((&promise, ""));
        assert!(promise.chars().count() <= LONGEST, "too long: {promise}");
        for word in words.trim_end_matches(')').split(", ") {
            let word = word.trim_matches(['[', ']']);
            let link = links.iter().find(|(known, _)| *known == word);
            used.push(link.unwrap_or_else(|| panic!("{word:?} of: {promise}")).1);
        }
    }
    assert!(used.len() > 25, "only {} links", used.len());
    let of_no_promise = [
        "not-proved",
        "windows-and-macos",
        "what-the-tests-have-found",
    ];
    headings
        .iter()
        .filter(|heading| !of_no_promise.contains(&heading.as_str()))
        .for_each(|heading| assert!(used.contains(&heading.as_str()), "{heading}"));
}
