//! Writes the ratios into README.md and onehold-flock(7), between two marks.

use std::path::Path;

use super::{Ratio, Row};

pub(crate) fn write(rows: &[Row]) {
    let readme = rows.iter().map(|row| {
        format!(
            "| `{}` | `{}` | {} |\n",
            row.what,
            row.beside,
            text(&row.ratios, "–")
        )
    });
    let heading = "| | beside | time: tmpfs, ext4 |\n|---|---|---|\n".to_owned();
    replace(
        "README.md",
        ["<!-- speed -->\n", "<!-- end of speed -->"],
        &std::iter::once(heading).chain(readme).collect::<String>(),
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
