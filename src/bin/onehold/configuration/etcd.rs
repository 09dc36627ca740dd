//! How etcd is reached: by the variables of etcdctl(1), or by the configuration.

use std::path::Path;

use anyhow::bail;
use onehold::EtcdAccess;
use onehold::command_line::is_exposed;

use super::values::{of_variable, text, truth};
use crate::arguments::args::UsageError;
use crate::configuration::{ConfigPath, EffectiveConfig};
use crate::words;

/// What the variables say, and what the configuration says where they are not set.
#[cold]
#[inline(never)]
pub(crate) fn access(config: &EffectiveConfig) -> anyhow::Result<EtcdAccess> {
    let settings = &config.settings;
    let configured = |key: &str, path: &Option<ConfigPath>| {
        let path = path.as_ref().map(|path| path.of_key(key));
        path.transpose()
    };
    let path = |name: &str, key: &str, path| match text(name) {
        Some(path) => Ok(Some(path.into())),
        None => configured(key, path),
    };
    let mut access = EtcdAccess::default();
    access.endpoints = match text("ETCDCTL_ENDPOINTS") {
        Some(list) => list.split(',').map(str::to_owned).collect(),
        None => settings.etcd_endpoints.clone().unwrap_or_default(),
    };
    let user = text("ETCDCTL_USER").or_else(|| settings.etcd_user.clone());
    // As etcdctl reads it: with the password behind a colon, or in a variable of its own.
    let (user, password) = match user.as_deref().and_then(|user| user.split_once(':')) {
        Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
        None => (user, text("ETCDCTL_PASSWORD")),
    };
    if password.is_none() {
        access.password_file = configured("etcd-password-file", &settings.etcd_password_file)?;
    }
    (access.user, access.password) = (user, password);
    access.ca_certificate = path("ETCDCTL_CACERT", "etcd-cacert", &settings.etcd_cacert)?;
    access.certificate = path("ETCDCTL_CERT", "etcd-cert", &settings.etcd_cert)?;
    access.key = path("ETCDCTL_KEY", "etcd-key", &settings.etcd_key)?;
    let skips = of_variable("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", truth)?;
    access.skips_verification = skips.unwrap_or_default();
    let has_password = access.password.is_some() || access.password_file.is_some();
    if access.user.is_some() && !has_password {
        bail!(UsageError(
            "no password for the user of etcd: set ETCDCTL_PASSWORD, or `etcd-password-file`"
                .to_owned()
        ));
    }
    Ok(access)
}

/// Warns of a password file that is not private.
#[cold]
#[inline(never)]
pub(crate) fn warning(config: &EffectiveConfig) -> Option<String> {
    let file = access(config).ok()?.password_file?;
    is_exposed(&file).then(|| {
        let shown = words::path_text(&file);
        let quoted = words::shell_quoted(&file.to_string_lossy());
        let command = words::escape(&format!("chmod 600 {quoted}"));
        format!("other users can read the password file `{shown}`: run `{command}`")
    })
}

/// How to remove a value that is not a record, by its URL.
pub(crate) fn removal(record: &Path) -> Option<String> {
    let (scheme, rest) = record.to_str()?.split_once("://")?;
    let (hosts, key) = rest.split_at(rest.find('/')?);
    let scheme = if scheme == "etcds" { "https://" } else { "" };
    let endpoints: Vec<String> = hosts.split(',').map(|at| format!("{scheme}{at}")).collect();
    let endpoints = words::shell_quoted(&endpoints.join(","));
    let key = words::shell_quoted(key);
    Some(words::escape(&format!(
        "  left unchanged; to remove it, run `etcdctl --endpoints {endpoints} del {key}`"
    )))
}
