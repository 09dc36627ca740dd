//! Programs by the names that tests use as commands: copies of one example of this package.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const NAMES: [&str; 8] = [
    "true", "false", "echo", "cat", "printf", "touch", "sleep", "hold",
];

/// A directory with `true.exe` and so on.
pub fn programs() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let fill = || {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("programs-{}", env!("CARGO_CRATE_NAME")));
        fs::create_dir_all(&directory).unwrap();
        let example = super::example("programs");
        for name in NAMES {
            fs::copy(&example, directory.join(name).with_extension("exe")).unwrap();
        }
        std::path::absolute(directory).unwrap()
    };
    DIRECTORY.get_or_init(fill).clone()
}
