//! Writes the ratios into README.md and onehold-flock(7).

use std::path::Path;

use super::{Ratio, Row};

/// Those of the README: `check` beside a refusal of flock(1), which tells as much.
const IN_README: [&str; 3] = [
    "run x -- true",
    "run -q held -- true, refused",
    "check -q free",
];

pub(crate) fn write(rows: &[Row]) {
    let last = |what: &&str| {
        let row = rows.iter().find(|row| row.what == *what).unwrap();
        format!("{:.2}", row.ratios.last().unwrap().median)
    };
    let readme: Vec<String> = IN_README.iter().map(last).collect();
    replace(
        "README.md",
        ["`check`, on ext4 | 1, 1, – | ", " |\n"],
        &readme.join(", "),
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
        Some([low, high]) => format!("{:.2} ({low:.2}{dash}{high:.2})", ratio.median),
        None => format!("{:.2}", ratio.median),
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
