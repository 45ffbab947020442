//! Tests the lists of edits that make both kernels.

use quell_boot::asterinas::kernels::home;
use quell_boot::edits::Edits;
use std::path::PathBuf;

/// Creates sources that contain every anchor of a list, in place of the crate's.
fn stand_in(list: &Edits) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for edit in &list.edit {
        let path = folder.path().join(&edit.file);
        let text = [&edit.at, edit.through.as_deref().unwrap_or_default(), "\n"].concat();
        match files.iter_mut().find(|(known, _)| *known == path) {
            Some((_, held)) => held.push_str(&text),
            None => files.push((path, text)),
        }
    }
    for (path, text) in files {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn the_lists_are_made_once_and_completely_or_not_at_all() {
    let home = home().unwrap();
    for name in ["measure.toml", "port.toml", "conformance.toml"] {
        let list = Edits::read(&home.join(name), &[("QUELL", "somewhere")]).unwrap();
        let sources = stand_in(&list);
        let state = || -> Vec<String> {
            let files = list.edit.iter().map(|edit| &edit.file);
            let files = files.chain(list.file.iter().map(|file| &file.to));
            let read =
                |file| std::fs::read_to_string(sources.path().join(file)).unwrap_or_default();
            files.map(read).collect()
        };
        let untouched = state();
        list.apply(sources.path(), &home).unwrap();
        let made = state();
        assert_ne!(untouched, made);
        list.apply(sources.path(), &home).unwrap();
        assert_eq!(made, state(), "{name} is made twice");

        let last = list.edit.last().unwrap();
        let sources = stand_in(&list);
        let file = sources.path().join(&last.file);
        let text = std::fs::read_to_string(&file).unwrap().replace(&last.at, "");
        std::fs::write(&file, &text).unwrap();
        let error = list.apply(sources.path(), &home).unwrap_err().to_string();
        assert!(error.contains(&*last.file.to_string_lossy()), "{error}");
        for file in &list.file {
            assert!(!sources.path().join(&file.to).exists(), "{name} is made in part");
        }
    }
}
