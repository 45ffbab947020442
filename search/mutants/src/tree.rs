//! Copies of the workspace with mutants, below `target/mutants`.
//!
//! We write a file only if its content changes, so that builds stay valid. There are two copies: one with the mutants
//! written by hand, in all crates, and one with generated mutants, in the engine, zeroing and the memory manager.

use crate::points::{self, Piece, Point};
use crate::sources::{FOLDERS, Source};
use crate::{anchor, list};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The modules of the engine's copies that select mutants.
const SELECTOR: &str = include_str!("selector.rs");
const OPERATORS: &str = include_str!("operators.rs");

/// The folder of the engine's sources.
const ENGINE: &str = "engine/quell/src";

/// Returns the folder of the copy with the listed mutants.
pub fn place(root: &Path) -> PathBuf {
    root.join("target/mutants/tree")
}

/// Returns the build folder of that copy.
pub fn build(root: &Path) -> PathBuf {
    root.join("target/mutants/build")
}

/// Returns the folder of the copy with the generated mutants.
pub fn derived(root: &Path) -> PathBuf {
    root.join("target/mutants/derived/tree")
}

/// Returns the workspace's files with listed mutants, and the modules that select mutants.
///
/// # Errors
/// A line for each mutant whose piece the source doesn't contain exactly once, and for each file that can't be read.
pub fn instrumented(root: &Path) -> Result<BTreeMap<PathBuf, String>, Vec<String>> {
    let all = list::all();
    let names: BTreeSet<&str> =
        all.iter().flat_map(|mutant| mutant.places.iter().map(|place| &*place.file)).collect();
    let mut files = BTreeMap::new();
    let mut wrong = Vec::new();
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).map_err(|error| vec![format!("{name}: {error}")])
    };
    for name in names {
        let selector = match name.starts_with(ENGINE) {
            true => "crate::selector",
            false => "quell::selector",
        };
        let text = read(name);
        match text.and_then(|text| anchor::instrument(name, &text, all, selector)) {
            Ok(text) => drop(files.insert(PathBuf::from(name), text)),
            Err(lines) => wrong.extend(lines),
        }
    }
    let listed: Vec<&str> = all.iter().map(|mutant| &*mutant.name).collect();
    let selector =
        SELECTOR.replace("NAMES: &[&str] = &[]", &format!("NAMES: &[&str] = &{listed:?}"));
    files.insert(Path::new(ENGINE).join("selector.rs"), selector);
    let lib = Path::new(ENGINE).join("lib.rs");
    match read(&lib.to_string_lossy()) {
        Ok(text) => drop(files.insert(lib, with_module(text, "selector"))),
        Err(lines) => wrong.extend(lines),
    }
    if wrong.is_empty() { Ok(files) } else { Err(wrong) }
}

/// Adds a module at the end of a crate's file, so that the lines above keep their numbers.
fn with_module(lib: String, name: &str) -> String {
    lib + "#[allow(missing_docs, unsafe_code)]\n#[doc(hidden)]\npub mod " + name + ";\n"
}

/// Copies the workspace with the listed mutants.
///
/// # Errors
/// If a file can't be read or written, or the source doesn't contain a mutant's piece.
pub fn copy(root: &Path) -> io::Result<()> {
    let files = instrumented(root).map_err(|wrong| io::Error::other(wrong.join("\n")))?;
    copy_with(root, &place(root), &files, &BTreeSet::new())
}

/// Copies the workspace, except the files that [`mutate`] writes.
///
/// # Errors
/// If a file can't be read or written.
pub fn copy_derived(root: &Path, sources: &[Source]) -> io::Result<()> {
    let mutated = sources.iter().map(|source| PathBuf::from(&source.file)).collect();
    // We leave out the module's own test, which would select mutants while other tests run.
    let operators = OPERATORS.split("#[cfg(test)]").next().unwrap_or_default();
    let mut files =
        BTreeMap::from([(Path::new(ENGINE).join("operators.rs"), operators.to_string())]);
    for (folder, _) in FOLDERS {
        let path = Path::new(folder).join("lib.rs");
        let lib = fs::read_to_string(root.join(&path))?;
        let lib = match folder {
            ENGINE => with_module(lib, "operators"),
            _ => lib + "use quell::operators;\n",
        };
        files.insert(path, lib);
    }
    copy_with(root, &derived(root), &files, &mutated)
}

/// Copies the workspace to `tree`, with `files` in place of its own and without those that are `kept` there. Removes
/// files there that no longer exist here.
fn copy_with(
    root: &Path,
    tree: &Path,
    files: &BTreeMap<PathBuf, String>,
    kept: &BTreeSet<PathBuf>,
) -> io::Result<()> {
    let mut there: BTreeSet<PathBuf> = kept.iter().map(|path| tree.join(path)).collect();
    for (path, text) in files {
        let to = tree.join(path);
        write(&to, text.as_bytes())?;
        there.insert(to);
    }
    let is_ours = |name: &str| name != "target" && !name.starts_with('.');
    let entries = WalkDir::new(root)
        .into_iter()
        .filter_entry(|entry| entry.depth() == 0 || is_ours(&entry.file_name().to_string_lossy()));
    for entry in entries {
        let entry = entry?;
        let Ok(path) = entry.path().strip_prefix(root) else {
            continue;
        };
        let to = tree.join(path);
        if entry.file_type().is_file() && there.insert(to.clone()) {
            write(&to, &fs::read(entry.path())?)?;
        } else if entry.file_type().is_symlink() {
            link(&to, &fs::read_link(entry.path())?)?;
        }
    }
    // Build output below the copy stays.
    let ours = |entry: &walkdir::DirEntry| entry.file_name() != "target";
    for entry in WalkDir::new(tree).into_iter().filter_entry(ours) {
        let entry = entry?;
        if entry.file_type().is_file() && !there.contains(entry.path()) {
            fs::remove_file(entry.path())?;
            // Cargo would still take an empty folder for a member of the workspace.
            let folders = entry.path().ancestors().skip(1);
            let _ = folders.map_while(|folder| fs::remove_dir(folder).ok()).count();
        }
    }
    Ok(())
}

/// Makes a symbolic link, which has the same relative target in the copy.
fn link(path: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|there| there == target) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, path);
    #[cfg(not(unix))]
    Err(io::ErrorKind::Unsupported.into())
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}

/// The places of mutants in the mutated files.
pub type MutantPlaces = BTreeMap<String, Vec<Place>>;

/// A piece of a mutated file.
#[derive(Clone, Debug)]
pub struct Place {
    /// The piece of text.
    pub piece: Piece,
    /// The numbers of its mutants.
    pub numbers: Vec<u32>,
    /// [`Point::stays`].
    pub stays: bool,
}

/// Writes the mutated files, without the mutants that have these numbers.
///
/// # Errors
/// If a file can't be written.
pub fn mutate(root: &Path, sources: &[Source], without: &HashSet<u32>) -> io::Result<MutantPlaces> {
    let mut places = MutantPlaces::new();
    let mut number = 1;
    for source in sources {
        let mut points: Vec<(&Point, u32)> = Vec::new();
        for point in &source.points {
            // We leave a point out as a whole.
            if !without.contains(&number) {
                points.push((point, number));
            }
            number += point.changes.len() as u32;
        }
        let (text, pieces) = points::mutated(&source.text, &points);
        write(&derived(root).join(&source.file), text.as_bytes())?;
        let numbered = pieces.into_iter().map(|piece| {
            let (point, first) = points[piece.point];
            let numbers = (first..first + point.changes.len() as u32).collect();
            Place { piece, numbers, stays: point.stays() }
        });
        places.insert(source.file.clone(), numbered.collect());
    }
    Ok(places)
}
