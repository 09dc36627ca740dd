//! The structure of the sources: imports point down, and there are no cycles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of the library, low to high. A module imports from its own layer and from lower ones.
const LIBRARY: [&[&str]; 15] = [
    &["identity", "sys", "terminal"],
    &["record"],
    &["error", "name"],
    &["format", "decision"],
    &["hold_info", "status"],
    &["describe"],
    &["finding", "journal_line", "observer", "open_file", "ticket"],
    &["backend"],
    &["cluster/txn"],
    &["cluster/engine", "cluster/address", "cluster/certificates"],
    &["cluster/etcd", "cluster/postgres"],
    &["cluster", "files"],
    &["flock"],
    &["lock"],
    &["lib", "guarantees", "evidence", "architecture"],
];

/// The layers of the command line: of folders, and of files that are above or below the rest of their folder.
const COMMAND_LINE: [&[&str]; 11] = [
    &["words"],
    &["arguments"],
    &["messages"],
    &["configuration"],
    &["output"],
    &["supervising"],
    &["tables"],
    &["taking"],
    &["commands"],
    &["arguments/complete", "arguments/parse"],
    &["main", "startup"],
];

/// One source file and the files that it imports from.
type Imports = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

#[test]
fn imports_of_the_library_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let imports = imports(&root, |path| !path.starts_with(root.join("bin")));
    assert!(imports.len() > 50, "only {} files were read", imports.len());
    assert_no_upward_import(&root, &LIBRARY, &imports);
}

#[test]
fn library_has_no_import_cycles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The systems are chosen by `sys/mod.rs`, which names them and is named by them.
    let imports = imports(&root, |path| {
        !path.starts_with(root.join("bin")) && !path.starts_with(root.join("sys"))
    });
    assert_no_cycle(&imports);
}

#[test]
fn imports_of_the_command_line_point_down_and_form_no_cycle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/onehold");
    let imports = imports(&root, |_| true);
    assert!(imports.len() > 20, "only {} files were read", imports.len());
    assert_no_cycle(&imports);
    assert_no_upward_import(&root, &COMMAND_LINE, &imports);
}

#[test]
fn cycle_and_upward_import_would_be_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = directory.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\n");
    write("a.rs", "use crate::b::{c::C,\n    D};\n");
    write("b/mod.rs", "pub(crate) struct D;\n");
    write("b/c.rs", "use super::super::a::A;\nuse super::D;\n");
    write("d.rs", "fn d() -> crate::D {}\n");
    let imports = imports(directory.path(), |_| true);
    let of = |file: &str| {
        let found = &imports[&directory.path().join(file)];
        let names = found
            .iter()
            .map(|path| path.strip_prefix(directory.path()).unwrap());
        names
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("a.rs"), ["b/c.rs", "b/mod.rs"]);
    assert_eq!(of("b/c.rs"), ["a.rs", "b/mod.rs"]);
    assert_eq!(of("d.rs"), ["lib.rs"]);
    assert_eq!(find_cycle(&imports).map(|cycle| cycle.len()), Some(2));
}

/// The place of a file among the layers. Of two that have it, the one that names it more exactly counts.
fn layer(root: &Path, layers: &[&[&str]], file: &Path) -> usize {
    let below = file.strip_prefix(root).expect("below the root");
    let module = below.with_extension("");
    let named = layers.iter().enumerate().flat_map(|(place, layer)| {
        let names = layer.iter().filter(|name| module.starts_with(name));
        names.map(move |name| (name.len(), place))
    });
    let found = named.max();
    found
        .unwrap_or_else(|| panic!("{} is in no layer", below.display()))
        .1
}

#[track_caller]
fn assert_no_upward_import(root: &Path, layers: &[&[&str]], imports: &Imports) {
    for (file, imported) in imports {
        for other in imported {
            assert!(
                layer(root, layers, other) <= layer(root, layers, file),
                "{} imports {}, which is above it",
                file.display(),
                other.display()
            );
        }
    }
}

#[track_caller]
fn assert_no_cycle(imports: &Imports) {
    if let Some(cycle) = find_cycle(imports) {
        let names: Vec<_> = cycle
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        panic!("imports in a circle: {}", names.join(" → "));
    }
}

fn find_cycle(imports: &Imports) -> Option<Vec<PathBuf>> {
    fn visit(
        file: &PathBuf,
        imports: &Imports,
        path: &mut Vec<PathBuf>,
        done: &mut BTreeSet<PathBuf>,
    ) -> Option<Vec<PathBuf>> {
        if let Some(at) = path.iter().position(|other| other == file) {
            return Some(path.split_off(at));
        }
        if !done.insert(file.clone()) {
            return None;
        }
        path.push(file.clone());
        for other in imports.get(file).into_iter().flatten() {
            if let Some(cycle) = visit(other, imports, path, done) {
                return Some(cycle);
            }
        }
        path.pop();
        None
    }
    let mut done = BTreeSet::new();
    imports
        .keys()
        .find_map(|file| visit(file, imports, &mut Vec::new(), &mut done))
}

/// Reads the imports of all source files below a crate root, tests left out.
fn imports(root: &Path, wanted: impl Fn(&Path) -> bool) -> Imports {
    let mut files = Vec::new();
    collect(root, &mut files);
    files.retain(|file| wanted(file));
    let mut imports = Imports::new();
    for file in &files {
        let text = fs::read_to_string(file).expect("a source file");
        // Unit tests stand at the end of a file.
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let text: String = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .flat_map(|line| [line, "\n"])
            .collect();
        let text = text.as_str();
        let module = module_of(root, file);
        let mut found = BTreeSet::new();
        for path in used_paths(text) {
            let absolute = resolve(&module, &path);
            if let Some(other) = absolute.and_then(|path| file_of(root, &path, &files))
                && other != *file
                // A module and its parent are one unit: the parent names it and re-exports from it.
                && !is_parent_reexport(root, file, &other)
            {
                found.insert(other);
            }
        }
        imports.insert(file.clone(), found);
    }
    imports
}

/// `mod.rs` re-exports what its own children define.
fn is_parent_reexport(root: &Path, file: &Path, other: &Path) -> bool {
    let is_root = file
        .file_name()
        .is_some_and(|name| name == "lib.rs" || name == "main.rs");
    let is_mod = file.file_name().is_some_and(|name| name == "mod.rs");
    (is_mod && other.parent() == file.parent()) || (is_root && other.starts_with(root))
}

/// The source files below a directory, without those of tests.
pub(crate) fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if !["model", "tests"].iter().any(|name| path.ends_with(name)) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path
                .file_stem()
                .is_some_and(|stem| stem.to_string_lossy().contains("tests"))
        {
            files.push(path);
        }
    }
    files.sort();
}

/// The module path of a file: `files/commit.rs` is `["files", "commit"]`.
fn module_of(root: &Path, file: &Path) -> Vec<String> {
    let below = file
        .strip_prefix(root)
        .expect("below the root")
        .with_extension("");
    let mut module: Vec<String> = below
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if module
        .last()
        .is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str()))
    {
        module.pop();
    }
    module
}

/// The paths that a text uses, nested groups spelled out: `use a::{b, c::d};` is `a::b`, `a::c::d`.
fn used_paths(text: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("use ") {
        let before = rest[..at]
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        rest = &rest[at + 4..];
        let is_import = before.is_empty() || before.starts_with("pub");
        if !is_import {
            continue;
        }
        let Some(end) = rest.find(';') else { break };
        let item: String = rest[..end].split_whitespace().collect::<Vec<_>>().join(" ");
        expand(&item, &[], &mut paths);
        rest = &rest[end..];
    }
    // Paths within the code.
    for (at, _) in text.match_indices("crate::") {
        let path: String = text[at..]
            .chars()
            .take_while(|char| char.is_alphanumeric() || *char == '_' || *char == ':')
            .collect();
        paths.push(
            path.split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
        );
    }
    paths
}

fn expand(item: &str, prefix: &[String], paths: &mut Vec<Vec<String>>) {
    let item = item.trim();
    let (head, group) = match item.split_once('{') {
        Some((head, group)) => (
            head,
            Some(group.trim_end().strip_suffix('}').unwrap_or(group)),
        ),
        None => (item, None),
    };
    let mut path = prefix.to_vec();
    path.extend(
        head.split("::")
            .map(|part| part.split(" as ").next().unwrap_or(part).trim().to_owned())
            .filter(|part| !part.is_empty() && part != "self"),
    );
    let Some(group) = group else {
        paths.push(path);
        return;
    };
    let mut depth = 0;
    let mut start = 0;
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&group[start..at], &path, paths);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !group[start..].trim().is_empty() {
        expand(&group[start..], &path, paths);
    }
}

/// The path from the crate root; `None`: another crate's.
fn resolve(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut absolute = match path.first()?.as_str() {
        "crate" => return Some(path[1..].to_vec()),
        "super" => module.to_vec(),
        _ => return None,
    };
    let ups = path.iter().take_while(|part| *part == "super").count();
    for _ in 0..ups {
        absolute.pop()?;
    }
    absolute.extend(path[ups..].iter().cloned());
    Some(absolute)
}

/// The file that defines what a path names: the longest module that there is.
fn file_of(root: &Path, path: &[String], files: &[PathBuf]) -> Option<PathBuf> {
    (1..=path.len())
        .rev()
        .find_map(|length| {
            let module: PathBuf = path[..length].iter().collect();
            let file = root.join(&module).with_extension("rs");
            let directory = root.join(&module).join("mod.rs");
            [file, directory]
                .into_iter()
                .find(|file| files.contains(file))
        })
        // What the root re-exports.
        .or_else(|| Some(root.join("lib.rs")).filter(|file| files.contains(file)))
}
