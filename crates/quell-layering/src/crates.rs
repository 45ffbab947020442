//! The crates of a workspace, what each depends on, and the order in which they may.

use crate::{Unreadable, read};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::{Table, Value};
use walkdir::WalkDir;

/// A crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The crates of the workspace that it depends on, tests aside.
    pub uses: Vec<String>,
    /// The crates of others that it depends on, tests aside.
    pub foreign: Vec<String>,
    /// The crates of others that its tests, benches and examples alone depend on.
    pub in_tests: Vec<String>,
}

/// The names of the dependencies in some tables of a manifest, for all targets.
fn dependencies(manifest: &Table, kinds: &[&str]) -> Vec<String> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values);
    let tables = std::iter::once(manifest).chain(targets.filter_map(Value::as_table));
    let mut names: Vec<String> = tables
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .flat_map(Table::keys)
        .cloned()
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The crates below some folders, by name, each with what it uses of the others.
///
/// # Errors
/// If a manifest cannot be read or names no package.
pub fn packages(folders: &[impl AsRef<Path>]) -> Result<Vec<Package>, Unreadable> {
    let mut manifests = BTreeMap::new();
    let entries = folders.iter().flat_map(|folder| {
        let folder = folder.as_ref();
        let files = WalkDir::new(folder).into_iter();
        let ours = files.filter_entry(|entry| entry.file_name() != "target");
        ours.map(move |entry| (folder, entry))
    });
    for (folder, entry) in entries {
        let entry = entry.map_err(|error| Unreadable::File {
            path: folder.to_owned(),
            error: error.into(),
        })?;
        if entry.file_name() != "Cargo.toml" {
            continue;
        }
        let path = entry.into_path();
        let wrong = |what: String| Unreadable::Manifest {
            path: path.clone(),
            what,
        };
        let table: Table = read(&path)?
            .parse()
            .map_err(|error: toml::de::Error| wrong(error.message().into()))?;
        let name = table.get("package").and_then(|package| package.get("name"));
        let name = name.and_then(Value::as_str).map(str::to_owned);
        let name = name.ok_or_else(|| wrong("names no package".into()))?;
        manifests.insert(name, (path, table));
    }
    let package = |(name, (path, table)): (&String, &(PathBuf, Table))| {
        let all = dependencies(table, &["dependencies", "build-dependencies"]);
        let (uses, foreign): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|used| manifests.contains_key(used));
        let mut in_tests = dependencies(table, &["dev-dependencies"]);
        in_tests.retain(|used| !manifests.contains_key(used) && !foreign.contains(used));
        Package {
            name: name.clone(),
            folder: path.parent().map(Path::to_owned).unwrap_or_default(),
            uses,
            foreign,
            in_tests,
        }
    };
    Ok(manifests.iter().map(package).collect())
}

/// The order of crates that a document gives: the names at the start of the lines of its first code
/// block that begin with two spaces and name a folder (`  quell-vm/   what it is`).
pub fn order(document: &str) -> Vec<String> {
    document
        .split("```")
        .nth(1)
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            let (name, _) = line.strip_prefix("  ")?.split_once('/')?;
            (!name.is_empty() && !name.starts_with(' ')).then(|| name.to_owned())
        })
        .collect()
}

/// What is wrong with the crates: one that the order does not name, a name in the order without a crate,
/// one that uses a crate which comes after it. Crates that only its tests, benches and examples use do not
/// count.
pub fn disorder(packages: &[Package], order: &[String]) -> Vec<String> {
    let place = |name: &str| order.iter().position(|known| known == name);
    let mut wrong = Vec::new();
    for name in order {
        if !packages.iter().any(|package| package.name == *name) {
            wrong.push(format!("{name} stands in the order and is no crate"));
        }
    }
    for package in packages {
        let name = &package.name;
        let Some(own) = place(name) else {
            wrong.push(format!("{name} does not stand in the order"));
            continue;
        };
        for used in &package.uses {
            if place(used).is_some_and(|used| used >= own) {
                wrong.push(format!("{name} uses {used}, which comes after it"));
            }
        }
    }
    wrong
}
