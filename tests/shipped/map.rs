//! The map that the linker writes beside the shipped binary: where it has put each function.

use std::path::Path;

/// A function as the linker sees it.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The section that it was put into, such as `.text`.
    pub(crate) output: String,
    /// The file that it came from and its own section, such as `onehold.o:(.text._R…)`.
    pub(crate) input: String,
}

/// All functions, by address. `directory`: that of one target below `target/shipped`.
pub(crate) fn read(directory: &Path) -> Vec<Placed> {
    let file = directory.join("onehold.map");
    let text = std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}: run .ci/package first", file.display()));
    let mut placed = Vec::new();
    let mut output = String::new();
    for line in text.lines().skip(1) {
        // Address, load address, size, alignment, and a name that is indented by its kind.
        let mut rest = line;
        let mut columns = [""; 4];
        for column in &mut columns {
            rest = rest.trim_start();
            (*column, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        }
        let number = |digits| u64::from_str_radix(digits, 16).unwrap();
        let name = rest.trim_start();
        match rest.len() - name.len() {
            0 => name.clone_into(&mut output),
            8 if output.starts_with(".text") => placed.push(Placed {
                address: number(columns[0]),
                size: number(columns[2]),
                output: output.clone(),
                input: name.to_owned(),
            }),
            _ => {}
        }
    }
    placed.sort_by_key(|placed| placed.address);
    placed
}

/// The function at an address; `None`: it is not in the program's text.
pub(crate) fn at(placed: &[Placed], address: u64) -> Option<&Placed> {
    let after = placed.partition_point(|placed| placed.address <= address);
    // Assembly has no sizes that count.
    placed
        .get(after.checked_sub(1)?)
        .filter(|found| address < found.address + found.size.max(64))
}
