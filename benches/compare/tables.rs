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

/// Writes what a section has measured. What the others have measured before stays.
pub(crate) fn write(section: &str, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    if section == "single_run" {
        write_readme(rows);
    }
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
        &format!(".\\\" cargo bench: {section}\n"),
        ".\\\"",
        &page.collect::<String>(),
    );
}

fn write_readme(rows: &[Row]) {
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
        let each = ["", ", built by cargo for musl", ", built by cargo"];
        let [shipped, musl, plain] = each.map(|built| on_disk(&format!("{what}{built}")));
        format!("| {called} | {shipped} | {musl} | {plain} |\n")
    };
    let table: String = IN_README.iter().map(line).collect();
    replace(
        "README.md",
        "| packages | `cargo install`, musl | `cargo install` |\n|---|---|---|---|\n",
        "\nMeasured on ",
        &table,
    );
    let processor = processor();
    replace("README.md", "\nMeasured on an ", ".", &processor);
    let system = |command: &str| {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let printed = super::output(&words, Path::new("/"));
        String::from_utf8(printed).unwrap().trim().to_owned()
    };
    let (kernel, flock) = (system("uname -r"), system("flock --version"));
    let kernel: Vec<&str> = kernel.split('.').take(2).collect();
    let flock = flock.rsplit(' ').next().unwrap();
    let machine = format!(
        "{processor}, Linux {}, util\\-linux {flock}",
        kernel.join(".")
    );
    replace(
        "man/onehold-flock.7",
        "on two idle virtual cores (",
        ")",
        &machine,
    );
}

/// "AMD EPYC", "Intel Xeon"
fn processor() -> String {
    let about = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = about
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let (_, model) = model.unwrap();
    let model = model.replace("(R)", "");
    model.split(' ').take(2).collect::<Vec<_>>().join(" ")
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

/// Replaces what is between two texts of a file.
fn replace(file: &str, begins: &str, ends: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begins).unwrap();
    let at = rest.find(ends).unwrap();
    std::fs::write(path, format!("{before}{begins}{table}{}", &rest[at..])).unwrap();
}
