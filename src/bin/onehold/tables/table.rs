//! Tables on a terminal, and names in the order in which people count.

use std::borrow::Cow;
use std::cmp::Ordering;

use anstyle::{AnsiColor, Style};
use console::{Alignment, Term, measure_text_width as width_of, pad_str, truncate_str};
use textwrap::{Options, WordSplitter};

/// Between two columns.
const GAP: usize = 2;

/// The width of the terminal, if stdout is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let (_, columns) = Term::stdout().size_checked()?;
    Some(columns.into())
}

/// A table without colors, in which nothing is cut. If it is too wide for the terminal, cells of the column `wrapped`
/// go on in the next line, and after a long cell of the column `name`, which comes before it, the rest of its row does.
/// `width`: of the terminal, if there is one.
pub(crate) fn plain<const N: usize>(
    titles: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    (name, wrapped): (usize, usize),
    width: Option<usize>,
) -> String {
    /// What the wrapped column keeps.
    const LEAST: usize = 12;
    let rows: Vec<[String; N]> = rows.collect();
    let mut widths = widths(titles, &rows);
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(GAP * (N - 1)));
    let natural = widths;
    for column in [wrapped, name, wrapped] {
        let sum: usize = widths.iter().sum();
        let cells = rows.iter().filter_map(|row| row.get(column));
        let (Some(width), Some(widest)) = (widths.get_mut(column), natural.get(column)) else {
            continue;
        };
        let left = room.saturating_sub(sum - *width);
        *width = if column == name {
            // Longer names leave their room to the other columns.
            let fitting = cells
                .map(|cell| width_of(cell))
                .filter(|cell| *cell <= left);
            fitting.fold(NAME_TITLE, usize::max)
        } else {
            left.max(LEAST).min(*widest)
        };
    }
    let mut text = String::new();
    for row in std::iter::once(titles.map(str::to_owned)).chain(rows) {
        let cells = row.each_ref().map(String::as_str);
        add_row(&mut text, widths, cells, (name, wrapped));
    }
    text.trim_end().to_owned()
}

/// The widths of the columns: those of their widest cells.
fn widths<'a, const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = &'a [String; N]>,
) -> [usize; N] {
    let mut widths = titles.map(width_of);
    for row in rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width_of(cell));
        }
    }
    widths
}

/// The columns of `list`.
const TITLES: [&str; 6] = ["NAME", "STATE", "HOLDER", "USER", "AGE", "MESSAGE"];

/// What has become of a row since it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    None,
    New,
    Changed,
    Gone,
}

impl Mark {
    pub(crate) fn text(self) -> String {
        let (sign, color) = match self {
            Self::None => return "  ".to_owned(),
            Self::New => ('+', AnsiColor::Green),
            Self::Changed => ('*', AnsiColor::Yellow),
            Self::Gone => ('-', AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(color.into()));
        format!("{style}{sign}{style:#} ")
    }
}

/// The table of `list`. `width`: of the terminal, if it is to fit one. A name that is too long stands on a line
/// of its own, a holder goes on in the next line, a message is cut off.
/// `margin`: before the name in the title; the rows have their marks there.
pub(crate) fn table(rows: &[[String; 6]], width: Option<usize>, margin: &str) -> String {
    let name = format!("{margin}{}", TITLES[NAME]);
    let mut titles = TITLES;
    titles[NAME] = &name;
    let mut widths = widths(titles, rows);
    let has = |column: usize| {
        let mut cells = rows.iter().filter_map(|cells| cells.get(column));
        cells.any(|cell| !cell.is_empty())
    };
    if !has(USER) {
        widths[USER] = 0;
    }
    if let Some(width) = width {
        if !has(MESSAGE) {
            widths[MESSAGE] = 0;
        }
        let widest = |column: usize, most: usize| {
            let cells = rows.iter().filter_map(|cells| cells.get(column));
            // What is wrapped is wrapped between its words.
            let parts =
                cells.flat_map(|cell| std::iter::once(cell.as_str()).chain(cell.split(' ')));
            let fitting = parts.map(width_of).filter(|part| *part <= most);
            fitting.max().unwrap_or_default()
        };
        widths = fit(widths, width, width_of(&name), widest);
    }
    let mut text = String::new();
    line(&mut text, widths, titles);
    for row in rows {
        let message = cut(&row[MESSAGE], widths[MESSAGE]);
        let mut cells = row.each_ref().map(String::as_str);
        cells[MESSAGE] = &message;
        add_row(&mut text, widths, cells, (NAME, HOLDER));
    }
    text.pop();
    text
}

const NAME: usize = 0;
const HOLDER: usize = 2;
const USER: usize = 3;
pub(crate) const AGE: usize = 4;
const MESSAGE: usize = 5;

/// Adds a row. If its cell in the column `name` is too long, the cells up to that have a line of their own. The one in
/// the column `wrapped` goes on in the next lines.
fn add_row<const N: usize>(
    text: &mut String,
    widths: [usize; N],
    cells: [&str; N],
    (name, wrapped): (usize, usize),
) {
    let cell = |column| cells.get(column).copied().unwrap_or_default();
    let width = |column| widths.get(column).copied().unwrap_or_default();
    let is_long = width_of(cell(name)) > width(name);
    if is_long {
        let begin = |column| if column <= name { cell(column) } else { "" };
        line(text, widths, std::array::from_fn(begin));
    }
    let parts = wrap(cell(wrapped), width(wrapped));
    for number in 0..parts.len().max(1) {
        let part = |column| match parts.get(number) {
            Some(part) if column == wrapped => part,
            _ if number > 0 || (is_long && column <= name) => "",
            _ => cell(column),
        };
        line(text, widths, std::array::from_fn(part));
    }
}

fn line<const N: usize>(text: &mut String, widths: [usize; N], cells: [&str; N]) {
    for (cell, width) in cells
        .into_iter()
        .zip(widths)
        .filter(|(_, width)| *width > 0)
    {
        text.push_str(&pad_str(cell, width, Alignment::Left, None));
        text.push_str("  ");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// The widths of the columns on a terminal; 0: the column is left out. `title`: the width of that of the names.
/// `widest`: the width of the widest cell of a column, or word of one, that is no wider than a limit.
fn fit(
    natural: [usize; 6],
    width: usize,
    title: usize,
    widest: impl Fn(usize, usize) -> usize,
) -> [usize; 6] {
    /// What NAME and HOLDER have at least, before other columns are left out.
    const LEAST: usize = 24;
    /// Less of a message says nothing.
    const LEAST_MESSAGE: usize = 10;
    /// Names and holders that are longer take another line rather than the room of messages,
    const LONG: usize = 32;
    /// which is at least so much of them.
    const MESSAGE_BESIDE: usize = 16;
    let [name, state, holder, mut user, mut age, message] = natural;
    let with_gap = |column: usize| if column == 0 { 0 } else { column + GAP };
    // What is left for NAME and HOLDER.
    let rest = |user, age| width.saturating_sub(state + 2 * GAP + with_gap(user) + with_gap(age));
    let least = LEAST.min(name + holder);
    if rest(user, age) < least {
        user = 0;
    }
    if rest(user, age) < least {
        age = 0;
    }
    let rest = rest(user, age);
    // Longer names stand on lines of their own, and leave their room to the others.
    let (most, holder) = if name + holder + with_gap(message) <= rest {
        (name, holder)
    } else {
        let long = LONG.max(width / 4);
        let holder = widest(HOLDER, long).max(LEAST).min(holder);
        // Names have half of what there is at least.
        let room = rest.saturating_sub(holder.min((rest / 2).max(rest.saturating_sub(name))));
        let beside = holder + with_gap(message.min(MESSAGE_BESIDE));
        (room.min(long.max(rest.saturating_sub(beside))), holder)
    };
    let name = widest(NAME, most).max(title);
    let holder = holder.min(rest.saturating_sub(name)).max(1);
    let least = message.min(LEAST_MESSAGE);
    let left = rest.saturating_sub(name + holder + GAP);
    let message = if left >= least { message.min(left) } else { 0 };
    [name, state, holder, user, age, message]
}

const NAME_TITLE: usize = TITLES[NAME].len();

/// A cell in lines of at most `width` columns.
pub(crate) fn wrap(cell: &str, width: usize) -> Vec<String> {
    // textwrap takes some characters for wider than a terminal shows them.
    if width_of(cell) <= width {
        return vec![cell.to_owned()];
    }
    let options = Options::new(width).word_splitter(WordSplitter::NoHyphenation);
    let lines = textwrap::wrap(cell, options).into_iter();
    lines.map(Cow::into_owned).collect()
}

/// A cell in at most `width` columns.
pub(crate) fn cut(cell: &str, width: usize) -> Cow<'_, str> {
    truncate_str(cell, width, "…")
}

/// `a2` before `a10`: runs of digits are compared as numbers.
pub(crate) fn natural_order(one: &str, other: &str) -> Ordering {
    parts(one).cmp(parts(other)).then_with(|| one.cmp(other))
}

/// The characters of a text. A run of digits is one of them: `0` with the digits of its number, and before these how
/// many they are, since numbers may have any length.
fn parts(mut text: &str) -> impl Iterator<Item = (char, usize, &str)> {
    std::iter::from_fn(move || {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let length = text.chars().next()?.len_utf8().max(digits);
        let (part, rest) = text.split_at(length);
        text = rest;
        if digits == 0 {
            return Some((part.chars().next()?, 0, ""));
        }
        let number = part.trim_start_matches('0');
        Some(('0', number.len(), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_counted() {
        let mut names = [
            "a10", "b", "a2", "a", "a02", "a1b2", "a1b10", "10", "9", "Ü", "a2/1",
        ];
        names.sort_by(|one, other| natural_order(one, other));
        let expected = [
            "9", "10", "a", "a1b2", "a1b10", "a02", "a2", "a2/1", "a10", "b", "Ü",
        ];
        assert_eq!(names, expected);
        let huge = "9".repeat(500);
        assert_eq!(natural_order(&huge, "10"), Ordering::Greater);
    }

    #[test]
    fn message_gets_what_names_and_holders_leave() {
        // Beside the widest cell there is one of six columns.
        let fit = |natural: [usize; 6], width| {
            fit(natural, width, NAME_TITLE, |column, most| {
                if natural[column] <= most {
                    natural[column]
                } else {
                    6
                }
            })
        };
        let natural = [20, 8, 18, 0, 6, 60];
        assert_eq!(fit(natural, 200), natural);
        assert_eq!(fit(natural, 80), [20, 8, 18, 0, 6, 20]);
        // Nothing is left.
        assert_eq!(fit(natural, 64), [20, 8, 18, 0, 6, 0]);
        // The long name stands on a line of its own.
        assert_eq!(fit(natural, 50), [6, 8, 18, 0, 6, 0]);
        assert_eq!(fit(natural, 40), [6, 8, 18, 0, 0, 0]);
        assert_eq!(fit([60, 8, 18, 0, 6, 60], 80), [6, 8, 18, 0, 6, 34]);
        assert_eq!(fit([60, 8, 60, 0, 6, 60], 80), [6, 8, 24, 0, 6, 28]);
        assert_eq!(fit([60, 8, 60, 0, 6, 60], 220), [60, 8, 60, 0, 6, 60]);
    }

    #[test]
    fn holders_go_on_in_the_next_line() {
        assert_eq!(wrap("4242 (backup.sh)", 16), ["4242 (backup.sh)"]);
        let lines = ["4242", "(backup.sh)", "of ci-88 on", "db2"];
        assert_eq!(wrap("4242 (backup.sh) of ci-88 on db2", 12), lines);
        assert_eq!(wrap("lease of runner-77", 8), ["lease of", "runner-7", "7"]);
        assert_eq!(wrap("lease of ci-88", 8), ["lease of", "ci-88"]);
        // Several characters that are one sign on a terminal.
        assert_eq!(wrap("👩\u{200d}💻 of ci", 8), ["👩\u{200d}💻 of ci"]);
    }

    #[test]
    fn names_and_times_are_whole_in_a_narrow_table() {
        let row = |name| ["2026-11-28 14:20:36", name, "root (backup.sh)", "12.0s"];
        let rows = ["db", "projects/kestrel/build"].map(row);
        let table = |width| {
            let rows = rows.iter().map(|row| row.map(str::to_owned));
            plain(["WHEN", "NAME", "WHO", "HELD"], rows, (1, 2), Some(width))
        };
        assert_eq!(
            table(70),
            "WHEN                 NAME                    WHO               HELD\n\
             2026-11-28 14:20:36  db                      root (backup.sh)  12.0s\n\
             2026-11-28 14:20:36  projects/kestrel/build  root (backup.sh)  12.0s"
        );
        assert_eq!(
            table(60),
            "WHEN                 NAME  WHO               HELD\n\
             2026-11-28 14:20:36  db    root (backup.sh)  12.0s\n\
             2026-11-28 14:20:36  projects/kestrel/build\n\
             \x20                          root (backup.sh)  12.0s"
        );
        assert_eq!(
            table(10),
            "WHEN                 NAME  WHO           HELD\n\
             2026-11-28 14:20:36  db    root          12.0s\n\
             \x20                          (backup.sh)\n\
             2026-11-28 14:20:36  projects/kestrel/build\n\
             \x20                          root          12.0s\n\
             \x20                          (backup.sh)"
        );
    }

    #[test]
    fn wide_characters_are_cut_by_columns() {
        assert_eq!(cut("backup", 6), "backup");
        assert_eq!(cut("backups", 6), "backu…");
        assert_eq!(cut("锁锁锁", 5), "锁锁…");
        assert_eq!(cut("锁锁锁", 4), "锁…");
    }
}
