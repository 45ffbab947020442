//! Edits find their place, are made once, and say where they could not be made.

use quell_asterinas::edits::{Edit, EditError, Edits};
use std::path::{Path, PathBuf};

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn edit(at: &str) -> Edit {
    Edit {
        file: PathBuf::from("src/some.rs"),
        why: "a test".into(),
        at: at.into(),
        through: None,
        with: None,
        after: None,
        before: None,
    }
}

const TEXT: &str = "one\n  two { a; b; }\nthree\n";

#[test]
fn an_edit_replaces_and_inserts_lines() {
    let replaced = Edit {
        with: Some("four".into()),
        ..edit("two")
    };
    assert_eq!(
        replaced.apply(TEXT).unwrap(),
        "one\n  four { a; b; }\nthree\n"
    );
    let through = Edit {
        through: Some("}".into()),
        with: Some("four".into()),
        ..edit("two")
    };
    assert_eq!(through.apply(TEXT).unwrap(), "one\n  four\nthree\n");
    let after = Edit {
        after: Some("four\n".into()),
        ..edit("two")
    };
    assert_eq!(
        after.apply(TEXT).unwrap(),
        "one\n  two { a; b; }\nfour\nthree\n"
    );
    let before = Edit {
        before: Some("four\n".into()),
        ..edit("two")
    };
    assert_eq!(
        before.apply(TEXT).unwrap(),
        "one\nfour\n  two { a; b; }\nthree\n"
    );
}

#[test]
fn an_edit_that_was_made_is_not_made_again() {
    for edit in [
        Edit {
            with: Some("four".into()),
            ..edit("two")
        },
        Edit {
            with: Some("two, four".into()),
            ..edit("two")
        },
        Edit {
            after: Some("four\n".into()),
            ..edit("two")
        },
        Edit {
            before: Some("four\n".into()),
            ..edit("two")
        },
    ] {
        let once = edit.apply(TEXT).unwrap();
        assert_ne!(once, TEXT);
        assert_eq!(edit.apply(&once).unwrap(), once);
    }
}

#[test]
fn an_anchor_that_is_missing_or_twice_there_is_named() {
    let missing = Edit {
        with: Some("four".into()),
        ..edit("five")
    };
    let error = missing.apply(TEXT).unwrap_err().to_string();
    for named in ["src/some.rs", "five", "0 times", "a test"] {
        assert!(error.contains(named), "{error}");
    }
    let twice = Edit {
        with: Some("four".into()),
        ..edit("e")
    };
    assert!(matches!(
        twice.apply(TEXT),
        Err(EditError::Anchor { found: 3, .. })
    ));
    let endless = Edit {
        through: Some("five".into()),
        with: Some("four".into()),
        ..edit("two")
    };
    let error = endless.apply(TEXT).unwrap_err().to_string();
    assert!(
        error.contains("src/some.rs") && error.contains("five"),
        "{error}"
    );
}

#[test]
fn an_edit_that_puts_nothing_or_two_things_is_refused() {
    let nothing = edit("two");
    let empty = Edit {
        with: Some(String::new()),
        ..edit("two")
    };
    let both = Edit {
        with: Some("four".into()),
        after: Some("five".into()),
        ..edit("two")
    };
    for wrong in [nothing, empty, both] {
        assert!(matches!(
            wrong.apply(TEXT),
            Err(EditError::Ambiguous { .. })
        ));
    }
}

/// Sources that hold every anchor of a list: what the edits take for the crate.
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
    for name in ["measure.toml", "port.toml"] {
        let list = Edits::read(&home().join(name), &[("QUELL", "somewhere")]).unwrap();
        let sources = stand_in(&list);
        let state = || -> Vec<String> {
            let files = list.edit.iter().map(|edit| &edit.file);
            let files = files.chain(list.file.iter().map(|file| &file.to));
            let read =
                |file| std::fs::read_to_string(sources.path().join(file)).unwrap_or_default();
            files.map(read).collect()
        };
        let untouched = state();
        list.apply(sources.path(), home()).unwrap();
        let made = state();
        assert_ne!(untouched, made);
        list.apply(sources.path(), home()).unwrap();
        assert_eq!(made, state(), "{name} is made twice");

        let last = list.edit.last().unwrap();
        let sources = stand_in(&list);
        let file = sources.path().join(&last.file);
        let text = std::fs::read_to_string(&file)
            .unwrap()
            .replace(&last.at, "");
        std::fs::write(&file, &text).unwrap();
        let error = list.apply(sources.path(), home()).unwrap_err().to_string();
        assert!(error.contains(&*last.file.to_string_lossy()), "{error}");
        for file in &list.file {
            assert!(
                !sources.path().join(&file.to).exists(),
                "{name} is made in part"
            );
        }
    }
}
