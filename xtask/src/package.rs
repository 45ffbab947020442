//! `cargo xtask package`: the crates that others use build from what would be published of them.
//!
//! `cargo package` does that, and builds each crate from its archive against the archives of the others. It keeps
//! what it unpacks of those in its home, by the crate's name, version and the folder of the workspace. A version is
//! packaged here many times before it is published, so whatever an earlier run unpacked is taken away first: cargo
//! would build against it.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use super::api::CRATES;
use super::cargo;

/// # Errors
/// If what an earlier run unpacked cannot be taken away, or cargo does not build a crate from its archive.
pub fn run(root: &Path) -> Result<(), String> {
    if let Some(home) = home() {
        let sources = home.join("registry/src");
        forget(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    }
    let status = cargo::command()
        .current_dir(root)
        // All that is needed was fetched when this command was built: a registry that does not answer is no mistake of
        // the packages.
        .args(["package", "--quiet", "--offline", "--allow-dirty"])
        .args(CRATES.iter().flat_map(|name| ["--package", name]))
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo package: {status}"))
    }
}

/// Where cargo keeps what it fetched and unpacked.
fn home() -> Option<PathBuf> {
    match env::var_os("CARGO_HOME") {
        Some(home) => Some(home.into()),
        None => Some(env::home_dir()?.join(".cargo")),
    }
}

/// Removes what was unpacked of our crates from archives of this host: a registry without a host has no name before
/// its number.
fn forget(sources: &Path) -> io::Result<()> {
    let registries = match fs::read_dir(sources) {
        Ok(registries) => registries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for registry in registries {
        let registry = registry?;
        if !registry.file_name().to_string_lossy().starts_with('-') {
            continue;
        }
        for unpacked in fs::read_dir(registry.path())? {
            let unpacked = unpacked?;
            let name = unpacked.file_name();
            if is_ours(&name.to_string_lossy()) {
                fs::remove_dir_all(unpacked.path())?;
            }
        }
    }
    Ok(())
}

/// Whether a folder's name is one of our crates' with a version.
fn is_ours(folder: &str) -> bool {
    CRATES.iter().any(|name| {
        let version = folder
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_unpacked_of_our_crates_is_taken_away() {
        let sources = env::temp_dir().join(format!("quell-unpacked-{}", std::process::id()));
        for folder in [
            "-1f/quell-0.2.0/src",
            "-1f/quellen-0.2.0",
            "-1f/fnv-1.0.7",
            "host-1f/quell-0.2.0",
        ] {
            fs::create_dir_all(sources.join(folder)).unwrap();
        }
        forget(&sources).unwrap();
        let left = |folder: &str| sources.join(folder).exists();
        assert!(!left("-1f/quell-0.2.0"));
        assert!(left("-1f/quellen-0.2.0") && left("-1f/fnv-1.0.7") && left("host-1f/quell-0.2.0"));
        fs::remove_dir_all(&sources).unwrap();
        assert!(forget(&sources).is_ok(), "nothing was unpacked yet");
    }

    #[test]
    fn crates_whose_names_begin_alike_are_told_apart() {
        assert!(is_ours("quell-zero-0.2.0") && is_ours("quell-0.2.0"));
        assert!(!is_ours("quell-cli-0.2.0") && !is_ours("quell"));
    }
}
