//! Keeps the programs of a campaign on disk, in a folder.
//!
//! A campaign starts from the programs in the folder and adds its findings at once. The prefix of a file's name is the
//! reason for keeping it: `kept-` for a new footprint, `found-` for a violation, and `kills-` with the name of the
//! mutant that it kills, for example `kills-SkipWait.toml`. A campaign starts from all of them alike.
//!
//! The caller reads and writes the files. It must write each one atomically, because others may read the folder during
//! a search.

use super::campaign::Campaign;
use super::text::RecordedProgram;
use crate::cases::{FileReader, recorded};
use std::path::{Path, PathBuf};

/// The extension of a program's file.
const ENDING: &str = "toml";

/// A folder of programs, and the number of a campaign's findings in it.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    kept: usize,
    found: usize,
    killed: usize,
}

impl Corpus {
    /// Opens the corpus in a folder.
    ///
    /// Returns the corpus, and its programs in the order of their names. If the folder doesn't exist, it is created,
    /// but its parent must exist.
    ///
    /// # Errors
    /// If the folder can't be created or read, or if a file in it isn't a program.
    pub fn open(
        folder: &Path,
        read: FileReader<'_>,
    ) -> Result<(Corpus, Vec<RecordedProgram>), String> {
        let wrong = |error| format!("{}: {error}", folder.display());
        if !folder.exists() {
            std::fs::create_dir(folder).map_err(wrong)?;
        }
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.extension().is_some_and(|ending| ending == ENDING) {
                paths.push(path);
            }
        }
        paths.sort();
        let program = |path: &PathBuf| {
            let mut program = recorded(&path.display().to_string(), read)?;
            program.mistake = None;
            Ok(program)
        };
        let programs = paths.iter().map(program).collect::<Result<_, String>>()?;
        let corpus = Corpus { folder: folder.to_owned(), kept: 0, found: 0, killed: 0 };
        Ok((corpus, programs))
    }

    /// Passes new findings to `write`, as the path and text of each file.
    ///
    /// # Errors
    /// Returns the first error of `write`. The next call passes the findings that weren't written again.
    pub fn keep<E>(
        &mut self,
        campaign: &Campaign,
        mut write: impl FnMut(&Path, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut one = |name: String, program: &RecordedProgram| {
            let place = self.folder.join(format!("{name}.{ENDING}"));
            write(&place, &program.to_toml())
        };
        for program in campaign.corpus().skip(self.kept) {
            one(format!("kept-{:016x}", program.number()), program)?;
            self.kept += 1;
        }
        for find in &campaign.finds[self.found..] {
            let number = find.recorded.number();
            one(format!("found-{number:016x}"), &find.recorded)?;
            self.found += 1;
        }
        for killed in &campaign.killed[self.killed..] {
            if let Some(find) = &killed.find {
                one(format!("kills-{}", killed.mutant.name()), &find.recorded)?;
            }
            self.killed += 1;
        }
        Ok(())
    }
}
