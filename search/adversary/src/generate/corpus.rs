//! A corpus on disk: a folder of programs with which a campaign begins, and to which it adds what it finds, as it finds
//! it.
//!
//! A file's name says why the program is kept: `kept-` shows something new, `found-` breaks the contract, `kills-`
//! kills the mutant of that name. When a campaign begins with the folder, all of them are programs like any other. How
//! a file is read and written is up to the caller: whoever reads the folder while a search runs must find each file
//! whole.

use super::campaign::Campaign;
use super::text::Recorded;
use crate::cases::{Read, recorded};
use std::path::{Path, PathBuf};

/// What the name of a program's file ends with.
const ENDING: &str = "toml";

/// A folder of programs, and how much of a campaign lies there.
#[derive(Debug)]
pub struct Corpus {
    folder: PathBuf,
    kept: usize,
    found: usize,
    killed: usize,
}

impl Corpus {
    /// The corpus in a folder, and its programs in the order of their names. A folder that does not exist yet is made,
    /// in one that does.
    ///
    /// # Errors
    /// If the folder cannot be made or read, or a file in it is no program.
    pub fn open(folder: &Path, read: Read<'_>) -> Result<(Corpus, Vec<Recorded>), String> {
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
        let corpus = Corpus {
            folder: folder.to_owned(),
            kept: 0,
            found: 0,
            killed: 0,
        };
        Ok((corpus, programs))
    }

    /// Gives `write` what the campaign has found since it was last asked: the place of each file, and its text.
    ///
    /// # Errors
    /// The first that `write` has; what follows it is given at the next call, too.
    pub fn keep<E>(
        &mut self,
        campaign: &Campaign,
        mut write: impl FnMut(&Path, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut one = |name: String, program: &Recorded| {
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
