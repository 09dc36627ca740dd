//! Tables on a terminal, and names in the order in which people count.

use std::cmp::Ordering;
use std::io::IsTerminal;

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

/// A table with aligned columns. The status of a row determines the color of its second cell. `width`: of the
/// terminal, if it is to fit one; `shrinks`: the columns that are cut off then, the least important one
/// first, and how narrow each may get.
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: &[(&Status, [String; N])],
    width: Option<usize>,
    shrinks: &[(usize, usize)],
) -> String {
    let mut widths = header.map(UnicodeWidthStr::width);
    for (_, cells) in rows {
        for (most, cell) in widths.iter_mut().zip(cells) {
            *most = (*most).max(width_of(cell));
        }
    }
    if let Some(width) = width {
        fit(&mut widths, width, shrinks);
    }
    let mut text = String::new();
    let mut line = |cells: [&str; N], status: Option<&Status>| {
        for (index, (cell, most)) in cells.iter().zip(widths).enumerate() {
            let cell = cut(cell, most);
            match status {
                Some(status) if index == 1 => text.push_str(&paint(status, &cell)),
                _ => text.push_str(&cell),
            }
            let padding = most.saturating_sub(width_of(&cell)) + GAP;
            text.extend(std::iter::repeat_n(' ', padding));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    };
    line(header, None);
    for (status, cells) in rows {
        line(cells.each_ref().map(String::as_str), Some(status));
    }
    text.pop();
    text
}

fn fit<const N: usize>(widths: &mut [usize; N], width: usize, shrinks: &[(usize, usize)]) {
    for (column, least) in shrinks {
        let gaps = GAP * N.saturating_sub(1);
        let excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
        if let Some(column) = widths.get_mut(*column) {
            *column = (*column).min(column.saturating_sub(excess).max(*least));
        }
    }
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
            let (short, other_short) = (
                digits.trim_start_matches('0'),
                other_digits.trim_start_matches('0'),
            );
            let by_value = (short.len(), short).cmp(&(other_short.len(), other_short));
            if by_value != Ordering::Equal {
                return by_value;
            }
            (left, right) = (rest, other_rest);
            continue;
        }
        let mut chars = (left.chars(), right.chars());
        match (chars.0.next(), chars.1.next()) {
            (Some(char), Some(other_char)) if char == other_char => {
                (left, right) = (chars.0.as_str(), chars.1.as_str());
            }
            (None, None) => return one.cmp(other),
            (char, other_char) => return char.cmp(&other_char),
        }
    }
}

/// The digits at the beginning of a text, and the rest.
fn number(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(end)
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
    fn columns_shrink_in_their_order_and_no_further_than_they_may() {
        let mut widths = [20, 6, 30, 40];
        fit(&mut widths, 80, &[(3, 10), (2, 12), (0, 8)]);
        assert_eq!(widths, [20, 6, 30, 18]);
        fit(&mut widths, 60, &[(3, 10), (2, 12), (0, 8)]);
        assert_eq!(widths, [20, 6, 18, 10]);
        fit(&mut widths, 10, &[(3, 10), (2, 12), (0, 8)]);
        assert_eq!(widths, [8, 6, 12, 10]);
    }

    #[test]
    fn wide_characters_are_cut_by_columns() {
        assert_eq!(cut("backup", 6), "backup");
        assert_eq!(cut("backups", 6), "backu…");
        assert_eq!(cut("锁锁锁", 5), "锁锁…");
        assert_eq!(cut("锁锁锁", 4), "锁…");
    }
}
