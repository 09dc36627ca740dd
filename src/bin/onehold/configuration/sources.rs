//! Where each value of the configuration comes from.

use std::borrow::Cow;
use std::collections::BTreeMap;

use anyhow::bail;
use toml::Spanned;

use super::{BUILT_IN, EffectiveConfig, File};
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

/// What is in the configuration files. A key of the user's file overrides that of the machine's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    pub(crate) machine: Option<String>,
    pub(crate) user: String,
}

impl Texts {
    /// The later one has precedence.
    fn in_order(&self) -> impl Iterator<Item = (&str, bool)> {
        let machine = self.machine.iter().map(|text| (text.as_str(), true));
        machine.chain([(self.user.as_str(), false)])
    }
}

/// A configuration file as it is written.
type Written = File<Section, Section>;

type Section = BTreeMap<String, Spanned<toml::Value>>;

/// The source of `dir` in the file's defaults.
pub(crate) fn default_dir(config: &EffectiveConfig) -> Source {
    let found = values(&config.texts, None).ok();
    let found = found.and_then(|(mut values, _)| values.remove("dir"));
    found.map_or(Source::DEFAULT, |found| found.source)
}

/// The effective settings, and the formats of paths.
pub(crate) fn of_config(config: &EffectiveConfig) -> anyhow::Result<(Values, Values)> {
    values(&config.texts, config.profile.as_deref())
}

/// Both by the texts of the configuration files. A profile of them overrides single keys of the built-in profile
/// of the same name, and both override the defaults.
pub(super) fn values(texts: &Texts, profile: Option<&str>) -> anyhow::Result<(Values, Values)> {
    let mut built_in: Written = toml::from_str(BUILT_IN)?;
    let base = profile.and_then(|name| built_in.profiles.remove(name));
    let mut is_known = base.is_some();
    let (mut values, mut formats, mut own) = (Values::new(), Values::new(), Values::new());
    for (text, of_machine) in texts.in_order() {
        let mut written: Written = toml::from_str(text)?;
        let sourced = |section: Section, name: &str| -> Values {
            let sourced = section.into_iter().map(|(key, value)| {
                let before = text.get(..value.span().start).unwrap_or_default();
                let source = Source {
                    name: name.to_owned().into(),
                    line: Some(before.matches('\n').count() + 1),
                    of_machine,
                };
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
            is_known = true;
            own.extend(sourced(section, &format!("profiles.{name}")));
        }
    }
    if let Some(name) = profile {
        if !is_known {
            let known = profile_names(texts)?.join(", ");
            bail!(UsageError(format!(
                "unknown profile `{name}`; available: {known}"
            )));
        }
        // What comes later has precedence.
        values.retain(|key, _| !NOT_FOR_PROFILES.contains(&key.as_str()));
        let base = base.into_iter().flatten().map(|(key, value)| {
            let (value, source) = (value.into_inner(), Source::BUILT_IN);
            (key, Sourced { value, source })
        });
        values.extend(base);
        values.extend(own);
    }
    Ok((values, formats))
}

/// The names of the built-in profiles and of those in the texts of the configuration files.
pub(super) fn profile_names(texts: &Texts) -> anyhow::Result<Vec<String>> {
    let mut profiles = toml::from_str::<Written>(BUILT_IN)?.profiles;
    for (text, _) in texts.in_order() {
        profiles.extend(toml::from_str::<Written>(text)?.profiles);
    }
    Ok(profiles.into_keys().collect())
}

/// A value on one line. It is valid TOML, of which JSON's strings, numbers and arrays are a part. A table
/// becomes a line for each of its values, by dotted keys.
pub(crate) fn lines(key: &str, value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::Table(table) => table
            .iter()
            .flat_map(|(below, value)| lines(&format!("{key}.{}", quoted_key(below)), value))
            .collect(),
        value => {
            let text = serde_json::to_string(value).unwrap_or_default();
            vec![format!("{key} = {text}")]
        }
    }
}

/// A key, quoted if TOML requires it.
pub(crate) fn quoted_key(key: &str) -> String {
    let is_bare = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    if !key.is_empty() && key.chars().all(is_bare) {
        key.to_owned()
    } else {
        serde_json::to_string(key).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{effective, parse};
    use super::*;

    const FILE: &str = "[defaults]\n\
        dir = \"/srv/locks\"\n\
        wait = \"7s\"\n\
        max-age = 90\n\
        refusal = \"\"\"\nin use by\n\\\"{owner}\\\"\"\"\"\n\
        [profiles.memory]\n\
        ttl = \"5s\"\n\
        [profiles.own]\n\
        dir = [\"$X/a b\", \"~/ä\"]\n\
        [formats]\n\
        \"/var/lock/\" = \"flock\"\n";

    fn user(text: &str) -> Texts {
        Texts {
            machine: None,
            user: text.to_owned(),
        }
    }

    #[test]
    fn key_of_the_users_file_overrides_the_one_of_the_machine() {
        let machine = "[defaults]\ndir = \"/m\"\nwait = \"1s\"\nttl = \"9s\"\n\
            [profiles.memory]\nttl = \"2s\"\nwait = \"3s\"\n\
            [formats]\n\"/run/a\" = \"pid\"\n\"/run/b\" = \"pid\"\n";
        let own = "[defaults]\nwait = \"4s\"\n[profiles.memory]\nwait = \"5s\"\n\
            [formats]\n\"/run/b\" = \"flock\"\n";
        let texts = Texts {
            machine: Some(machine.to_owned()),
            user: own.to_owned(),
        };
        let shown = |values: &Values, key: &str| {
            let Sourced { value, source } = &values[key];
            (
                value.as_str().unwrap().to_owned(),
                source.line,
                source.of_machine,
            )
        };
        let (values, formats) = super::values(&texts, None).unwrap();
        assert_eq!(shown(&values, "dir"), ("/m".into(), Some(2), true));
        assert_eq!(shown(&values, "wait"), ("4s".into(), Some(2), false));
        let format = |path| shown(&formats, path).0;
        assert_eq!([format("/run/a"), format("/run/b")], ["pid", "flock"]);
        let (values, _) = super::values(&texts, Some("memory")).unwrap();
        assert_eq!(shown(&values, "ttl"), ("2s".into(), Some(6), true));
        assert_eq!(shown(&values, "wait"), ("5s".into(), Some(4), false));
        let mut merged = parse(own, Path::new("own")).unwrap();
        let settings = effective(&mut merged, &texts, None).unwrap();
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
            let (values, formats) = super::values(&user(FILE), profile).unwrap();
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
            let shown = parse(&text, Path::new("shown")).unwrap();
            let mut file = parse(FILE, Path::new("file")).unwrap();
            let effective = effective(&mut file, &user(FILE), profile).unwrap();
            assert_eq!(
                format!("{:?}", shown.defaults),
                format!("{effective:?}"),
                "{profile:?}: {text}"
            );
            assert_eq!(
                format!("{:?}", shown.formats),
                format!("{:?}", file.formats)
            );
        }
    }

    #[test]
    fn source_names_section_and_line() {
        let (values, formats) = super::values(&user(FILE), Some("memory")).unwrap();
        let source = |sourced: &Sourced| (sourced.source.name.to_string(), sourced.source.line);
        assert_eq!(source(&values["wait"]), ("built-in".to_owned(), None));
        let own = ("profiles.memory".to_owned(), Some(9));
        assert_eq!(source(&values["ttl"]), own);
        let (values, _) = super::values(&user(FILE), None).unwrap();
        let defaults = ("defaults".to_owned(), Some(5));
        assert_eq!(source(&values["refusal"]), defaults);
        let of_path = ("formats".to_owned(), Some(13));
        assert_eq!(source(&formats["/var/lock/"]), of_path);
    }
}
