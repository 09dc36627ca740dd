//! What may happen to the directory of a store from outside: programs that clean it, and processes that see another
//! one in its place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::finding::Finding;
use crate::sys::directory::is_seen_by_few;

/// Where tmpfiles.d(5) has its rules. A file hides one of the same name in a later directory.
const RULES: [&str; 5] = [
    "/etc/tmpfiles.d",
    "/run/tmpfiles.d",
    "/usr/local/lib/tmpfiles.d",
    "/usr/lib/tmpfiles.d",
    "/lib/tmpfiles.d",
];

/// What may be cleaned without such a rule.
const TEMPORARY: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// `existing`: the store, or what of it exists.
pub(super) fn examine(store: &Path, existing: &Path) -> Vec<Finding> {
    let real = existing.canonicalize();
    let real = real.unwrap_or_else(|_| existing.to_owned());
    let below = store.strip_prefix(existing).unwrap_or(Path::new(""));
    let cleaning = cleaning(&real.join(below));
    cleaning.into_iter().chain(mounts(&real)).collect()
}

/// A line of tmpfiles.d(5) about a directory.
struct Rule {
    file: PathBuf,
    kind: char,
    path: String,
    age: Option<String>,
}

fn cleaning(store: &Path) -> Option<Finding> {
    const CHECK: &str = "cleaning";
    let advice = "systemd-tmpfiles leaves the files of onehold, other programs may not: use a store below /var/lib or the home directory";
    let by_rule = |rule: &Rule| {
        let (file, path) = (rule.file.display(), &rule.path);
        match (&rule.age, rule.kind) {
            (Some(age), _) => Some(format!("files in {path} are removed after {age} ({file})")),
            (None, 'D') => Some(format!("{path} is emptied at boot ({file})")),
            _ => None,
        }
    };
    let temporary = || {
        let mut above = TEMPORARY.iter();
        let found = above.find(|directory| store.starts_with(directory))?;
        Some(format!("{found} is for temporary files"))
    };
    let detail = rule_for(&rules(), store).and_then(by_rule);
    Some(Finding::warning(CHECK, detail.or_else(temporary)?).advice(advice))
}

fn rules() -> Vec<Rule> {
    let mut files: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for directory in RULES {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            files.entry(entry.file_name()).or_insert(entry.path());
        }
    }
    let is_rules = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "conf");
    let files = files.into_values().filter(is_rules);
    files
        .flat_map(|file| {
            let text = fs::read_to_string(&file).unwrap_or_default();
            parsed(&file, &text)
        })
        .collect()
}

fn parsed(file: &Path, text: &str) -> Vec<Rule> {
    let lines = text.lines().map(str::split_whitespace);
    let rules = lines.filter_map(|mut words| {
        let kind = words.next()?.chars().next()?;
        let path = words.next()?.trim_matches('"');
        let age = words.nth(3).filter(|age| *age != "-");
        "dDevqQCxX".contains(kind).then(|| Rule {
            file: file.to_owned(),
            kind,
            path: path.replace("%T", "/tmp").replace("%V", "/var/tmp"),
            age: age.map(str::to_owned),
        })
    });
    rules.collect()
}

/// The rule that decides about a path: the one with the longest path above it, if that does not exclude it.
fn rule_for<'r>(rules: &'r [Rule], path: &Path) -> Option<&'r Rule> {
    let length = |rule: &&Rule| Path::new(&rule.path).components().count();
    let is_above = |rule: &&Rule| {
        let patterns = Path::new(&rule.path).components();
        let mut components = path.components();
        let mut patterns = patterns.map(|pattern| matches(pattern, components.next()));
        patterns.all(|matches| matches) && (rule.kind != 'X' || components.next().is_none())
    };
    let found = rules.iter().filter(is_above).max_by_key(length)?;
    (!matches!(found.kind, 'x' | 'X')).then_some(found)
}

/// Whether a part of a path is what a part of a rule means, as far as glob(7) has `*` and `?`.
fn matches(pattern: Component<'_>, part: Option<Component<'_>>) -> bool {
    part.is_some_and(|part| {
        let (pattern, part) = (pattern.as_os_str(), part.as_os_str());
        is_match(pattern.as_encoded_bytes(), part.as_encoded_bytes())
    })
}

fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([b'*', rest @ ..], [_, shorter @ ..]) => {
            is_match(rest, text) || is_match(pattern, shorter)
        }
        ([b'*', rest @ ..], []) => is_match(rest, text),
        ([one, pattern @ ..], [other, text @ ..]) => {
            (*one == b'?' || one == other) && is_match(pattern, text)
        }
        (pattern, text) => pattern.is_empty() && text.is_empty(),
    }
}

fn mounts(existing: &Path) -> Option<Finding> {
    let advice = "locks in it exclude nobody outside: use a store elsewhere, such as /run/lock/NAME, or PrivateTmp=no";
    let detail =
        "other processes see another directory there: a mount namespace (PrivateTmp of systemd)";
    is_seen_by_few(existing).then(|| Finding::warning("mounts", detail).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_with_the_longest_path_decides() {
        let text = "# tmp.conf\n\
            q /tmp 1777 root root 10d\n\
            D /run/scratch 1777 root root -\n\
            d /tmp/kept 0755 root root -\n\
            x /tmp/systemd-private-*\n\
            X /tmp/itself\n\
            e %V/l?cks-* - - - 1h\n\
            f /tmp/kept/file - - - - text\n";
        let rules = parsed(Path::new("f.conf"), text);
        let age = |path: &str| {
            let rule = rule_for(&rules, Path::new(path))?;
            Some((rule.kind, rule.age.as_deref().unwrap_or("-").to_owned()))
        };
        let found = |kind, age: &str| Some((kind, age.to_owned()));
        assert_eq!(age("/tmp/store"), found('q', "10d"));
        assert_eq!(age("/tmp"), found('q', "10d"));
        assert_eq!(age("/tmpx/store"), None);
        assert_eq!(age("/tmp/kept/store"), found('d', "-"));
        assert_eq!(age("/run/scratch/a/b"), found('D', "-"));
        assert_eq!(age("/tmp/systemd-private-77/tmp/store"), None);
        assert_eq!(age("/tmp/itself"), None);
        assert_eq!(age("/tmp/itself/store"), found('q', "10d"));
        assert_eq!(age("/var/tmp/locks-a/store"), found('e', "1h"));
        assert_eq!(age("/var/tmp/locks"), None);
        assert_eq!(age("/home/me"), None);
    }
}
