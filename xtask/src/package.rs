//! `cargo xtask package`: builds every crate from its archive.
//!
//! `cargo package` builds each crate from its archive, against the archives of the others. Cargo keeps those unpacked
//! in its home, by name and version. Their folder's name begins with a hyphen, because it belongs to no registry. We
//! package a version many times before we publish it, so we remove those folders first.

use crate::{cargo, run as command};
use std::path::PathBuf;
use std::{env, fs};

/// Builds every crate from its archive.
///
/// # Errors
/// If cargo can't build a crate from its archive.
pub fn run() -> Result<(), String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let sources = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    for folder in sources.into_iter().flatten().flatten() {
        if folder.file_name().to_string_lossy().starts_with('-') {
            let path = folder.path();
            fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    let mut package = cargo();
    // Archives lack the workspace's profiles. Without debug information the builds take less time.
    package.env("CARGO_PROFILE_DEV_DEBUG", "false");
    command(package.args(["package", "--workspace", "--allow-dirty"]))
}
