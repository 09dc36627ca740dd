//! Tables on a terminal, and names in the order in which people count.

use std::cmp::Ordering;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use onehold::Status;
use terminal_size::Width;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::output::paint;

/// Between two columns.
const GAP: usize = 2;

/// The width of the terminal, if stdout is one.
pub(crate) fn terminal_width() -> Option<usize> {
    let (Width(columns), _) = std::io::stdout()
        .is_terminal()
        .then(terminal_size::terminal_size)
        .flatten()?;
    Some(usize::from(columns))
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
    let width_of_column = |column| widths.get(column).copied().unwrap_or_default();
    let mut text = String::new();
    for row in std::iter::once(titles.map(str::to_owned)).chain(rows) {
        let cell = |column| row.get(column).map_or("", String::as_str);
        let is_long = width_of(cell(name)) > width_of_column(name);
        if is_long {
            let begin = |column| if column <= name { cell(column) } else { "" };
            line(&mut text, widths, std::array::from_fn(begin), None);
        }
        let parts = wrap(cell(wrapped), width_of_column(wrapped));
        for number in 0..parts.len().max(1) {
            let part = |column| match parts.get(number) {
                Some(part) if column == wrapped => part,
                _ if number > 0 || (is_long && column <= name) => "",
                _ => cell(column),
            };
            line(&mut text, widths, std::array::from_fn(part), None);
        }
    }
    text.trim_end().to_owned()
}

/// The widths of the columns: those of their widest cells.
fn widths<'a, const N: usize>(
    titles: [&str; N],
    rows: impl IntoIterator<Item = &'a [String; N]>,
) -> [usize; N] {
    let mut widths = titles.map(UnicodeWidthStr::width);
    for row in rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = (*most).max(width_of(cell));
        }
    }
    widths
}

/// The columns of `list`.
const TITLES: [&str; 6] = ["NAME", "STATE", "HOLDER", "USER", "AGE", "MESSAGE"];

/// A row of `list`.
pub(crate) struct Row<'a> {
    /// It determines the color of the state.
    pub(crate) status: &'a Status,
    /// In the order of the columns.
    pub(crate) cells: [String; 6],
    /// `None`: the table has no marks.
    pub(crate) mark: Option<Mark>,
}

/// What has become of a row since it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    None,
    New,
    Changed,
    Gone,
}

impl Mark {
    fn text(self) -> String {
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
pub(crate) fn table(rows: &[Row<'_>], width: Option<usize>) -> String {
    let has_marks = rows.iter().any(|row| row.mark.is_some());
    let no_mark = if has_marks { "  " } else { "" };
    let width = width.map(|width| width.saturating_sub(no_mark.len()));
    let mut widths = widths(TITLES, rows.iter().map(|row| &row.cells));
    let has = |column: usize| {
        let mut cells = rows.iter().filter_map(|row| row.cells.get(column));
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
            let cells = rows.iter().filter_map(|row| row.cells.get(column));
            // What is wrapped is wrapped between its words.
            let parts =
                cells.flat_map(|cell| std::iter::once(cell.as_str()).chain(cell.split(' ')));
            let fitting = parts.map(width_of).filter(|part| *part <= most);
            fitting.max().unwrap_or_default()
        };
        widths = fit(widths, width, widest);
    }
    let mut text = no_mark.to_owned();
    line(&mut text, widths, TITLES, None);
    for row in rows {
        let mut cells = row.cells.each_ref().map(String::as_str);
        text.push_str(&row.mark.map_or_else(String::new, Mark::text));
        if width_of(cells[NAME]) > widths[NAME] {
            text.push_str(std::mem::take(&mut cells[NAME]));
            text.push('\n');
            text.push_str(no_mark);
        }
        let holder = wrap(cells[HOLDER], widths[HOLDER]);
        let message = cut(cells[MESSAGE], widths[MESSAGE]);
        cells[MESSAGE] = &message;
        let mut parts = holder.iter().map(String::as_str);
        cells[HOLDER] = parts.next().unwrap_or_default();
        line(&mut text, widths, cells, Some(row.status));
        for part in parts {
            let mut rest = [""; 6];
            rest[HOLDER] = part;
            text.push_str(no_mark);
            line(&mut text, widths, rest, None);
        }
    }
    text.pop();
    text
}

const NAME: usize = 0;
const HOLDER: usize = 2;
const USER: usize = 3;
pub(crate) const AGE: usize = 4;
const MESSAGE: usize = 5;

/// `status`: determines the color of the second cell.
fn line<const N: usize>(
    text: &mut String,
    widths: [usize; N],
    cells: [&str; N],
    status: Option<&Status>,
) {
    for (index, (cell, most)) in cells.into_iter().zip(widths).enumerate() {
        if most == 0 {
            continue;
        }
        match status {
            Some(status) if index == 1 => text.push_str(&paint(status, cell)),
            _ => text.push_str(cell),
        }
        let padding = most.saturating_sub(width_of(cell)) + GAP;
        text.extend(std::iter::repeat_n(' ', padding));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

/// The widths of the columns on a terminal; 0: the column is left out. `widest`: the width of the widest cell of
/// a column, or word of one, that is no wider than a limit.
fn fit(natural: [usize; 6], width: usize, widest: impl Fn(usize, usize) -> usize) -> [usize; 6] {
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
    let name = widest(NAME, most).max(NAME_TITLE);
    let holder = holder.min(rest.saturating_sub(name)).max(1);
    let least = message.min(LEAST_MESSAGE);
    let left = rest.saturating_sub(name + holder + GAP);
    let message = if left >= least { message.min(left) } else { 0 };
    [name, state, holder, user, age, message]
}

const NAME_TITLE: usize = TITLES[NAME].len();

/// A cell in lines of at most `width` columns.
pub(crate) fn wrap(cell: &str, width: usize) -> Vec<String> {
    if width_of(cell) <= width {
        return vec![cell.to_owned()];
    }
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in cell.split_inclusive(' ') {
        if width_of(&line) + width_of(word.trim_end()) > width {
            lines.push(std::mem::take(&mut line));
        }
        for char in word.chars() {
            let is_full = width_of(&line) + char.width().unwrap_or(0) > width;
            if char != ' ' && is_full {
                lines.push(std::mem::take(&mut line));
            }
            line.push(char);
        }
    }
    lines.push(line);
    let lines = lines.iter().map(|line| line.trim_end().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

/// A cell in at most `width` columns.
pub(crate) fn cut(cell: &str, width: usize) -> String {
    if width_of(cell) <= width {
        return cell.to_owned();
    }
    let mut text = String::new();
    let mut used = 1;
    for char in cell.chars() {
        used += char.width().unwrap_or(0);
        if used > width {
            break;
        }
        text.push(char);
    }
    text.push('…');
    text
}

/// The number of terminal columns.
fn width_of(cell: &str) -> usize {
    if cell.is_ascii() {
        cell.len()
    } else {
        cell.width()
    }
}

/// `a2` before `a10`: runs of digits are compared as numbers.
pub(crate) fn natural_order(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    loop {
        let (digits, rest) = number(left);
        let (other_digits, other_rest) = number(right);
        if !digits.is_empty() && !other_digits.is_empty() {
            match by_value(digits, other_digits) {
                Ordering::Equal => (left, right) = (rest, other_rest),
                order => return order,
            }
            continue;
        }
        let (mut chars, mut other_chars) = (left.chars(), right.chars());
        match (chars.next(), other_chars.next()) {
            (None, None) => return one.cmp(other),
            (char, other_char) if char != other_char => return char.cmp(&other_char),
            _ => (left, right) = (chars.as_str(), other_chars.as_str()),
        }
    }
}

/// The digits at the beginning of a text, and the rest.
fn number(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
}

/// Compares numbers of any length.
fn by_value(digits: &str, other: &str) -> Ordering {
    let [digits, other] = [digits, other].map(|digits| digits.trim_start_matches('0'));
    (digits.len(), digits).cmp(&(other.len(), other))
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
            fit(natural, width, |column, most| {
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
