//! Writes files that another run of the command may be reading.
//!
//! Tests or people often run two comparisons at the same time. So we write a file under a temporary name beside its
//! place, and rename it when it's complete.

use anyhow::Context;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use tempfile::{Builder, NamedTempFile, TempPath};

/// Writes a complete file and leaves it open. A process that opens it reads either the old content or all of `content`.
/// The file's permissions follow the process's mask.
///
/// # Errors
/// If the directory can't be created, or the file can't be written in it.
pub fn replace(place: &Path, content: &[u8]) -> anyhow::Result<File> {
    let directory = match place.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    written(directory, "partial-", "", content)
        .and_then(|file| Ok(file.persist(place)?))
        .with_context(|| format!("writing {}", place.display()))
}

/// Writes a file with a new name, which is deleted when the value is dropped.
///
/// # Errors
/// The errors of [`replace`].
pub(crate) fn temporary(
    directory: &Path,
    prefix: &str,
    suffix: &str,
    content: &[u8],
) -> anyhow::Result<TempPath> {
    written(directory, prefix, suffix, content)
        .map(NamedTempFile::into_temp_path)
        .with_context(|| format!("writing {prefix}…{suffix} in {}", directory.display()))
}

fn written(
    directory: &Path,
    prefix: &str,
    suffix: &str,
    content: &[u8],
) -> anyhow::Result<NamedTempFile> {
    std::fs::create_dir_all(directory)?;
    let mut builder = Builder::new();
    builder.prefix(prefix).suffix(suffix).permissions(Permissions::from_mode(0o666));
    let mut file = builder.tempfile_in(directory)?;
    file.write_all(content)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_never_see_a_part_and_nothing_is_left_over() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("file");
        let contents = [vec![1_u8; 1 << 16], vec![2_u8; 1 << 17]];
        replace(&place, &contents[0]).expect("written");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200 {
                    replace(&place, &contents[round % 2]).expect("written");
                }
            });
            for _ in 0..200 {
                let seen = std::fs::read(&place).expect("read");
                assert!(contents.contains(&seen), "{} bytes", seen.len());
            }
        });
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
    }

    #[test]
    fn two_temporary_files_are_two_and_go_when_they_are_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let make = |content: &[u8]| {
            temporary(directory.path(), "initial-", ".cpio", content).expect("written")
        };
        let (first, second) = (make(b"one"), make(b"two"));
        assert_eq!(std::fs::read(&first).expect("read"), b"one");
        assert_eq!(std::fs::read(&second).expect("read"), b"two");
        drop((first, second));
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
    }
}
