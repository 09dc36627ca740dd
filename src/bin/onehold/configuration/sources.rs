//! Where each value of the configuration comes from.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::bail;
use serde::Serialize;
use toml::Spanned;

use super::file::{ConfigFile, Content, line_number};
use super::{BUILT_IN, EffectiveConfig};
use crate::arguments::args::UsageError;

/// The keys that a profile does not inherit from the defaults: where and how onehold's own locks are stored.
const NOT_FOR_PROFILES: [&str; 4] = ["dir", "project-dir", "path", "format"];

/// Keys with a value in force.
pub(crate) type Values = BTreeMap<String, Sourced>;

/// A value, and where it comes from.
#[derive(Debug)]
pub(crate) struct Sourced {
    pub(crate) value: toml::Value,
    pub(crate) source: Source,
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// An option, an environment variable, a section of the configuration file, or one of the words below.
    pub(crate) name: Cow<'static, str>,
    /// In the configuration file.
    pub(crate) line: Option<usize>,
    /// The line is in the machine's file.
    pub(crate) of_machine: bool,
}

impl Source {
    pub(crate) const BUILT_IN: Self = Self::named("built-in");
    pub(crate) const DEFAULT: Self = Self::named("default");

    pub(crate) const fn named(name: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            line: None,
            of_machine: false,
        }
    }
}

/// A configuration file as it is written.
type Written = Content<Section, Section>;

type Section = BTreeMap<String, Spanned<toml::Value>>;

/// The source of `dir` in the defaults of the files.
pub(crate) fn default_dir(config: &EffectiveConfig) -> Source {
    let found = values(&config.files, None).ok();
    let found = found.and_then(|(mut values, _)| values.remove("dir"));
    found.map_or(Source::DEFAULT, |found| found.source)
}

/// The built-in profiles, and what is in the files.
fn texts(files: &[ConfigFile]) -> impl Iterator<Item = (&str, Option<&ConfigFile>)> {
    let files = files.iter().map(|file| (&*file.text, Some(file)));
    [(BUILT_IN, None)].into_iter().chain(files)
}

/// The effective settings, and the formats of paths. A profile of the files overrides single keys of the built-in
/// profile of the same name, and both override the defaults.
pub(crate) fn values(
    files: &[ConfigFile],
    profile: Option<&str>,
) -> anyhow::Result<(Values, Values)> {
    let (mut values, mut formats, mut own) = (Values::new(), Values::new(), None);
    for (text, file) in texts(files) {
        let mut written: Written = toml::from_str(text)?;
        let sourced = |section: Section, name: &str| -> Values {
            let sourced = section.into_iter().map(|(key, value)| {
                let source = file.map_or(Source::BUILT_IN, |file| Source {
                    name: name.to_owned().into(),
                    line: Some(line_number(text, value.span().start)),
                    of_machine: file.of_machine,
                });
                let value = value.into_inner();
                (key, Sourced { value, source })
            });
            sourced.collect()
        };
        values.extend(sourced(written.defaults, "defaults"));
        formats.extend(sourced(written.formats, "formats"));
        if let Some(name) = profile
            && let Some(section) = written.profiles.remove(name)
        {
            let own: &mut Values = own.get_or_insert_default();
            own.extend(sourced(section, &format!("profiles.{name}")));
        }
    }
    if let Some(name) = profile {
        let Some(own) = own else {
            let known = profile_names(files)?.join(", ");
            bail!(UsageError(format!(
                "unknown profile `{name}`; available: {known}"
            )));
        };
        values.retain(|key, _| !NOT_FOR_PROFILES.contains(&key.as_str()));
        values.extend(own);
    }
    Ok((values, formats))
}

/// The names of the built-in profiles and of those in the files.
pub(super) fn profile_names(files: &[ConfigFile]) -> anyhow::Result<Vec<String>> {
    let mut profiles = BTreeMap::new();
    for (text, _) in texts(files) {
        profiles.extend(toml::from_str::<Written>(text)?.profiles);
    }
    Ok(profiles.into_keys().collect())
}

/// A value on one line, as valid TOML. A table becomes a line for each of its values, by dotted keys.
pub(crate) fn lines(key: &str, value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::Table(table) if !table.is_empty() => table
            .iter()
            .flat_map(|(below, value)| lines(&format!("{key}.{}", quoted_key(below)), value))
            .collect(),
        value => vec![format!("{key} = {}", json(value))],
    }
}

/// The JSON of what is no table but an empty one, which is TOML but for DEL: there it is escaped.
fn json(value: &(impl Serialize + ?Sized)) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.replace('\x7f', "\\u007f")
}

/// A key, quoted if TOML requires it.
pub(crate) fn quoted_key(key: &str) -> String {
    let is_bare = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        json(key)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Settings, effective};
    use super::*;

    const FILE: &str = "[defaults]\n\
        dir = \"/srv/locks\"\n\
        wait = \"7s\"\n\
        max-age = 90\n\
        refusal = \"\"\"\nin use\\u007f by\n\\\"{owner}\\\"\"\"\"\n\
        details = { \"a b\" = \"owner\", none = {} }\n\
        [profiles.memory]\n\
        ttl = \"5s\"\n\
        [profiles.own]\n\
        dir = [\"$X/a b\", \"~/ä\"]\n\
        [formats]\n\
        \"/var/lock/\" = \"flock\"\n";

    fn file(text: &str, of_machine: bool) -> ConfigFile {
        ConfigFile::parse(Path::new("config.toml"), text.to_owned(), of_machine).unwrap()
    }

    #[test]
    fn key_of_the_users_file_overrides_the_one_of_the_machine() {
        let machine = "[defaults]\ndir = \"/m\"\nwait = \"1s\"\nttl = \"9s\"\n\
            [profiles.memory]\nttl = \"2s\"\nwait = \"3s\"\n\
            [formats]\n\"/run/a\" = \"pid\"\n\"/run/b\" = \"pid\"\n";
        let own = "[defaults]\nwait = \"4s\"\n[profiles.memory]\nwait = \"5s\"\n\
            [formats]\n\"/run/b\" = \"flock\"\n";
        let mut files = [file(machine, true), file(own, false)];
        let shown = |values: &Values, key: &str| {
            let Sourced { value, source } = &values[key];
            (
                value.as_str().unwrap().to_owned(),
                source.line,
                source.of_machine,
            )
        };
        let (values, formats) = super::values(&files, None).unwrap();
        assert_eq!(shown(&values, "dir"), ("/m".into(), Some(2), true));
        assert_eq!(shown(&values, "wait"), ("4s".into(), Some(2), false));
        let format = |path| shown(&formats, path).0;
        assert_eq!([format("/run/a"), format("/run/b")], ["pid", "flock"]);
        let (values, _) = super::values(&files, Some("memory")).unwrap();
        assert_eq!(shown(&values, "ttl"), ("2s".into(), Some(6), true));
        assert_eq!(shown(&values, "wait"), ("5s".into(), Some(4), false));
        let settings = effective(&mut files, None).unwrap();
        assert_eq!(settings.ttl.unwrap().0.as_secs(), 9);
    }

    #[test]
    fn values_that_are_shown_are_those_in_force() {
        for profile in [
            None,
            Some("own"),
            Some("memory"),
            Some("prodigy"),
            Some("sprint"),
            Some("tasks"),
        ] {
            let (values, formats) = super::values(&[file(FILE, false)], profile).unwrap();
            let mut text = "[defaults]\n".to_owned();
            for (key, sourced) in &values {
                text.extend(
                    lines(key, &sourced.value)
                        .iter()
                        .map(|line| format!("{line}\n")),
                );
            }
            text.push_str("[formats]\n");
            for (key, sourced) in &formats {
                let key = quoted_key(key);
                text.extend(
                    lines(&key, &sourced.value)
                        .iter()
                        .map(|line| format!("{line}\n")),
                );
            }
            let shown = file(&text, false).content;
            let file = file(FILE, false);
            let formats = format!("{:?}", file.content.formats);
            let effective = effective(&mut [file], profile).unwrap();
            // Not by text: what `effective` reads is written by `lines`.
            let own = values
                .into_iter()
                .map(|(key, sourced)| (key, sourced.value));
            let own: Settings = own.collect::<toml::Table>().try_into().unwrap();
            assert_eq!(format!("{own:?}"), format!("{effective:?}"), "{profile:?}");
            assert_eq!(
                format!("{:?}", shown.defaults),
                format!("{effective:?}"),
                "{profile:?}: {text}"
            );
            assert_eq!(format!("{:?}", shown.formats), formats);
        }
    }

    #[test]
    fn source_names_section_and_line() {
        let (values, formats) = super::values(&[file(FILE, false)], Some("memory")).unwrap();
        let source = |sourced: &Sourced| (sourced.source.name.to_string(), sourced.source.line);
        assert_eq!(source(&values["wait"]), ("built-in".to_owned(), None));
        let own = ("profiles.memory".to_owned(), Some(10));
        assert_eq!(source(&values["ttl"]), own);
        let (values, _) = super::values(&[file(FILE, false)], None).unwrap();
        let defaults = ("defaults".to_owned(), Some(5));
        assert_eq!(source(&values["refusal"]), defaults);
        let of_path = ("formats".to_owned(), Some(14));
        assert_eq!(source(&formats["/var/lock/"]), of_path);
    }
}
