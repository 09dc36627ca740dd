//! Draws man/onehold.svg: the program at work, on a terminal. What differs between two machines or moments is
//! replaced: processes, times, user, host, directory. All else is what the program prints.

use std::fmt::Write as _;

use crate::harness::{TestEnv, output};

/// Width of the terminal in characters. A longer line is continued in the next row.
const COLUMNS: usize = 108;
/// In pixels, as all that follows.
const LINE_HEIGHT: usize = 20;
const DESCENT: usize = 5;
const MARGIN: usize = 16;

/// It has a background of its own, so that it looks the same on a light and on a dark page.
const STYLE: &str = "\
rect{fill:#0d1117;stroke:#3d444d}
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d1d7e0}
.typed{fill:#fff;font-weight:bold}
.red{fill:#ff7b72}.green{fill:#56d364}.yellow{fill:#e3b341}";

/// Plays the scene and draws it.
pub(crate) fn draw() -> String {
    svg(&with_fixed_values(&play()))
}

/// What the terminal shows.
fn play() -> String {
    let env = TestEnv::new();
    let mut bash = env.command("bash");
    bash.args(["-c", include_str!("picture.sh")])
        .env_remove("ONEHOLD_DIR")
        .env("CLICOLOR_FORCE", "1");
    let output = output(&mut bash);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let home = env.root.path();
    let name = home.file_name().unwrap().to_str().unwrap();
    text.replace(home.to_str().unwrap(), "/home/ops")
        .replace(&format!("; runs in {name}\n"), "; runs in ops\n")
}

/// The processes, times, user and host of the README.
fn with_fixed_values(text: &str) -> String {
    let holder = word_after(text, "held by process ");
    let wrapper = word_after(text, "wrapper: process ");
    let host = word_after(text, "(backup.sh) on ");
    let user = word_after(text, "user: ");
    let tar = text.lines().find(|line| line.ends_with("=changed"));
    let tar = word_after(tar.unwrap(), " ");
    let in_table = |pid: &str| format!("{pid:>11}  ");
    let text = text
        .replace(&format!("process {holder} "), "process 4242 ")
        .replace(&format!("process {wrapper}\n"), "process 4241\n")
        .replace(&in_table(holder), &in_table("4242"))
        .replace(&in_table(tar), &in_table("4243"))
        .replace(&format!(" on {host}"), " on db1")
        .replace(&format!("user: {user}\n"), "user: ops\n")
        .replace(&format!("  {user:<8}  "), "  ops       ");
    let text = replace_between(&text, " since ", " ago)", "02:00:07 (3h 12m");
    replace_between(&text, "  hold: ", " (run)", "1795140007123456")
}

fn word_after<'a>(text: &'a str, marker: &str) -> &'a str {
    let (_, rest) = text.split_once(marker).expect(marker);
    let word = rest.split_whitespace().next().unwrap();
    word.trim_end_matches([',', ':'])
}

/// Replaces what is between two texts, wherever they are.
fn replace_between(text: &str, start: &str, end: &str, replacement: &str) -> String {
    let mut parts = text.split(start);
    let mut replaced = parts.next().unwrap().to_owned();
    for part in parts {
        let (_, rest) = part.split_once(end).expect(end);
        for piece in [start, replacement, end, rest] {
            replaced.push_str(piece);
        }
    }
    replaced
}

fn svg(text: &str) -> String {
    let mut texts = String::new();
    let mut bottom = MARGIN;
    for line in text.lines() {
        if line.starts_with("$ ") && bottom > MARGIN {
            bottom += LINE_HEIGHT / 2;
        }
        for row in rows(line) {
            bottom += LINE_HEIGHT;
            // The columns are straight in whatever font there is.
            let _ = write!(
                texts,
                "<text x=\"{MARGIN}\" y=\"{}\" textLength=\"{}\">",
                bottom - DESCENT,
                width_of(row.len())
            );
            for span in row.chunk_by(|(_, left), (_, right)| left == right) {
                let text: String = span.iter().map(|(char, _)| char).collect();
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let _ = match span[0].1 {
                    "" => write!(texts, "{text}"),
                    class => write!(texts, "<tspan class=\"{class}\">{text}</tspan>"),
                };
            }
            texts.push_str("</text>\n");
        }
    }
    let width = width_of(COLUMNS) + 2 * MARGIN;
    let height = bottom + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" xml:space=\"preserve\">\n\
         <title>onehold on a terminal</title>\n<style>\n{STYLE}\n</style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n{texts}</svg>\n",
        width - 1,
        height - 1,
    )
}

/// The width of so many characters in pixels. In a font of 14 most are 8.4 wide.
fn width_of(characters: usize) -> usize {
    characters * 42 / 5
}

/// The rows of the terminal that show one line, each character with its class.
fn rows(line: &str) -> Vec<Vec<(char, &'static str)>> {
    let mut class = if line.starts_with("$ ") { "typed" } else { "" };
    let mut characters = Vec::new();
    for (index, part) in line.split("\x1b[").enumerate() {
        let mut shown = part;
        if index > 0 {
            let (color, rest) = part.split_once('m').unwrap();
            shown = rest;
            class = match color {
                "0" => "",
                "31" => "red",
                "32" => "green",
                "33" => "yellow",
                other => panic!("color {other}"),
            };
        }
        characters.extend(shown.chars().map(|char| (char, class)));
    }
    characters.chunks(COLUMNS).map(<[_]>::to_vec).collect()
}
