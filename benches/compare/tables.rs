//! Writes the ratios into README.md and onehold-flock(7).

use std::path::Path;

use super::{Ratio, Row};

/// Those of the README, and what it calls them. `check` is compared with a refusal of flock(1), which tells as
/// much.
const IN_README: [(&str, &str); 3] = [
    (
        "run x -- true",
        "to run `true` (starting any wrapper at all: LEAST)",
    ),
    (
        "run held -- true, refused with its message",
        "to be refused, with the message",
    ),
    (
        "check -q held",
        "to query the lock, relative to a refused `flock -n`",
    ),
];

/// On tmpfs and on a disk, in both locales.
const PLACES: usize = 4;

pub(crate) fn write(rows: &[Row]) {
    // On a disk, in both locales.
    let on_disk = |what: &str| {
        let row = rows.iter().find(|row| row.what == what).unwrap();
        let [.., c, utf8] = row.ratios.as_slice() else {
            panic!("{what} was measured once");
        };
        format!("{:.2}, {:.2}", c.median, utf8.median)
    };
    let least = on_disk("the least, run");
    let line = |(what, called): &(&str, &str)| {
        let called = called.replace("LEAST", &least);
        let (shipped, plain) = (on_disk(what), on_disk(&format!("{what}, built by cargo")));
        format!("| {called} | {shipped} | {plain} |\n")
    };
    let readme: String = IN_README.iter().map(line).collect();
    replace(
        "README.md",
        [
            "| the packages | `cargo install` |\n|---|---|---|\n",
            "\nonehold-flock(7) translates",
        ],
        &readme,
    );
    let page = rows.iter().map(|row| {
        let escaped = |text: &str| text.replace('-', "\\-");
        format!(
            ".TP\n.B {}\n{}, beside {}\n",
            text(&row.ratios, " to "),
            escaped(&row.what),
            escaped(&row.beside)
        )
    });
    replace(
        "man/onehold-flock.7",
        [".\\\" The table: cargo bench.\n", ".\\\" End of the table."],
        &page.collect::<String>(),
    );
}

/// "0.68 (0.64–0.73), 0.70 (0.66–0.75)"
fn text(ratios: &[Ratio], dash: &str) -> String {
    let each = ratios.iter().map(|ratio| match ratio.quartiles {
        // Four of them with quartiles would not fit into a line.
        Some([low, high]) if ratios.len() < PLACES => {
            format!("{:.2} ({low:.2}{dash}{high:.2})", ratio.median)
        }
        _ => format!("{:.2}", ratio.median),
    });
    each.collect::<Vec<_>>().join(", ")
}

fn replace(file: &str, [begins, ends]: [&str; 2], table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begins).unwrap();
    let (_, after) = rest.split_once(ends).unwrap();
    std::fs::write(path, format!("{before}{begins}{table}{ends}{after}")).unwrap();
}
