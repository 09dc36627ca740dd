//! `config`: show the effective settings, and where each one comes from.

use std::path::Path;

use serde_json::{Value, json};
use toml::Value as Toml;

use crate::configuration::sources::{self, Source, Sourced, Values, lines, quoted_key};
use crate::configuration::{Session, StoreSource};
use crate::messages::{CommandResult, Exit, Outcome};
use crate::output::escape_json;
use crate::words;

#[inline(never)]
pub(crate) fn config(session: &Session) -> CommandResult {
    let config = &session.config;
    let (mut settings, formats) = sources::values(&config.files, config.profile.as_deref())?;
    put_store(session, &mut settings);
    put_defaults(session, &mut settings);
    let mut text = header(session);
    text.push("[defaults]".to_owned());
    text.extend(section(&settings));
    if !formats.is_empty() {
        text.push("[formats]".to_owned());
        text.extend(section(&formats));
    }
    let mut outcome = Outcome::new(Exit::DONE, "listed", "effective settings");
    outcome.more = json!({
        "machine_file": config.file(true).map(Path::to_string_lossy),
        "file": config.file(false).map(Path::to_string_lossy),
        "profile": config.profile,
        "settings": objects(&settings),
        "formats": objects(&formats),
    });
    if !session.global.json {
        outcome = outcome.data(text.join("\n"));
    }
    Ok(outcome.into())
}

fn header(session: &Session) -> Vec<String> {
    let file = session.config.file(false);
    let file = file.map_or_else(|| "none".to_owned(), words::path_text);
    let mut lines = vec![format!("# configuration: {file}")];
    if let Some(machine) = session.config.file(true) {
        lines.push(format!("# of the machine: {}", words::path_text(machine)));
    }
    if let Some(profile) = &session.config.profile {
        let source = match session.global.profile {
            Some(_) => "--profile",
            None => "ONEHOLD_PROFILE",
        };
        let profile = words::escape(profile);
        lines.push(format!("# profile: {profile}, from {source}"));
    }
    lines
}

/// Replaces the keys that name the store by the directory or path that they lead to.
fn put_store(session: &Session, settings: &mut Values) {
    let mut by_key = |key| {
        let found = settings.remove(key);
        found.map_or(Source::DEFAULT, |found| found.source)
    };
    let (configured, project) = (by_key("dir"), by_key("project-dir"));
    let text = |path: &Path| match std::path::absolute(path) {
        Ok(absolute) if !session.store.is_remote() => absolute.to_string_lossy().into_owned(),
        _ => path.to_string_lossy().into_owned(),
    };
    if let Some(only) = &session.only {
        let source = by_key("path");
        put(settings, "path", text(Path::new(only.as_str())), source);
        return;
    }
    let source = match session.store_source {
        StoreSource::CommandLine => Source::named("--dir"),
        StoreSource::Project if session.global.project => Source::named("--project"),
        StoreSource::Project => project,
        StoreSource::Environment => Source::named("ONEHOLD_DIR"),
        StoreSource::Profile => configured,
        // Also under a profile, which does not inherit it.
        StoreSource::Configuration => sources::default_dir(&session.config),
        StoreSource::Default => Source::DEFAULT,
    };
    put(settings, "dir", text(session.store.path()), source);
}

fn put(settings: &mut Values, key: &str, value: impl Into<String>, source: Source) {
    let value = Toml::String(value.into());
    settings.insert(key.to_owned(), Sourced { value, source });
}

/// Adds what the command line sets, and the defaults of keys that nothing sets.
fn put_defaults(session: &Session, settings: &mut Values) {
    if let Some(format) = session.global.format {
        put(settings, "format", format.name(), Source::named("--format"));
    }
    for (key, value) in [
        ("format", session.format.name()),
        ("max-age", "24h"),
        ("on-zombie", "take"),
        ("wait", "0s"),
    ] {
        if !settings.contains_key(key) {
            put(settings, key, value, Source::DEFAULT);
        }
    }
}

/// A line for each value, and its source behind it.
fn section(values: &Values) -> Vec<String> {
    /// Longer values do not move the sources of the others.
    const MAX_WIDTH: usize = 40;
    let rows: Vec<(String, String)> = values
        .iter()
        .flat_map(|(key, sourced)| {
            let source = source_text(key, sourced);
            let shown = lines(&quoted_key(key), &sourced.value);
            shown.into_iter().map(move |line| (line, source.clone()))
        })
        .collect();
    let widths = rows.iter().map(|(line, _)| line.chars().count());
    let width = widths.filter(|width| *width <= MAX_WIDTH).max();
    let width = width.unwrap_or_default();
    rows.iter()
        .map(|(line, source)| format!("{:width$}  # {source}", escape_json(line)))
        .collect()
}

fn source_text(key: &str, sourced: &Sourced) -> String {
    let source = &sourced.source;
    let name = &source.name;
    let text = match source.line {
        Some(line) if source.of_machine => format!("line {line}, [{name}] of the machine"),
        Some(line) => format!("line {line}, [{name}]"),
        None if *name == Source::BUILT_IN.name => "built-in profile".to_owned(),
        None => name.to_string(),
    };
    if key != "owner-env" {
        return text;
    }
    let names = match &sourced.value {
        Toml::Array(names) => names.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut set = names.iter().filter_map(Toml::as_str);
    let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    match (names.len(), set.find(is_set)) {
        (0 | 1, Some(_)) => format!("{text}; the variable is set"),
        (0 | 1, None) => format!("{text}; the variable is not set"),
        (_, Some(set)) => format!("{text}; {set} is set"),
        (_, None) => format!("{text}; none of the variables is set"),
    }
}

fn objects(values: &Values) -> Vec<Value> {
    let object = |(key, sourced): (&String, &Sourced)| {
        let Sourced { value, source } = sourced;
        json!({
            "key": key,
            "value": value,
            "source": source.name,
            "line": source.line,
            "of_machine": source.of_machine,
        })
    };
    values.iter().map(object).collect()
}
