//! Edits find their place, are made once, and report failures.

use quell_boot::edits::{Edit, EditError, Edits, write};
use std::path::{Path, PathBuf};

fn edit(at: &str) -> Edit {
    Edit {
        file: PathBuf::from("src/some.rs"),
        why: "a test".into(),
        at: at.into(),
        within: None,
        through: None,
        with: None,
        after: None,
        before: None,
    }
}

const TEXT: &str = "one\n  two { a; b; }\nthree\n";

#[test]
fn an_edit_replaces_and_inserts_lines() {
    let replaced = Edit { with: Some("four".into()), ..edit("two") };
    assert_eq!(replaced.apply(TEXT).unwrap(), "one\n  four { a; b; }\nthree\n");
    let through = Edit { through: Some("}".into()), with: Some("four".into()), ..edit("two") };
    assert_eq!(through.apply(TEXT).unwrap(), "one\n  four\nthree\n");
    let after = Edit { after: Some("four\n".into()), ..edit("two") };
    assert_eq!(after.apply(TEXT).unwrap(), "one\n  two { a; b; }\nfour\nthree\n");
    let before = Edit { before: Some("four\n".into()), ..edit("two") };
    assert_eq!(before.apply(TEXT).unwrap(), "one\nfour\n  two { a; b; }\nthree\n");
}

#[test]
fn an_edit_that_was_made_is_not_made_again() {
    for edit in [
        Edit { with: Some("four".into()), ..edit("two") },
        Edit { with: Some("two, four".into()), ..edit("two") },
        Edit { after: Some("four\n".into()), ..edit("two") },
        Edit { before: Some("four\n".into()), ..edit("two") },
    ] {
        let once = edit.apply(TEXT).unwrap();
        assert_ne!(once, TEXT);
        assert_eq!(edit.apply(&once).unwrap(), once);
    }
}

#[test]
fn an_anchor_that_is_missing_or_twice_there_is_named() {
    let missing = Edit { with: Some("four".into()), ..edit("five") };
    let error = missing.apply(TEXT).unwrap_err().to_string();
    for named in ["src/some.rs", "five", "0 times", "a test"] {
        assert!(error.contains(named), "{error}");
    }
    let twice = Edit { with: Some("four".into()), ..edit("e") };
    assert!(matches!(twice.apply(TEXT), Err(EditError::Anchor { found: 3, .. })));
    let endless = Edit { through: Some("five".into()), with: Some("four".into()), ..edit("two") };
    let error = endless.apply(TEXT).unwrap_err().to_string();
    assert!(error.contains("src/some.rs") && error.contains("five"), "{error}");
}

#[test]
fn an_edit_that_means_nothing_is_refused() {
    let empty = Edit { with: Some(String::new()), after: Some("four\n".into()), ..edit("two") };
    let through_nothing =
        Edit { through: Some("}".into()), after: Some("four\n".into()), ..edit("two") };
    let nowhere = Edit { with: Some("four".into()), ..edit("") };
    for wrong in [edit("two"), empty, through_nothing, nowhere] {
        assert!(matches!(wrong.apply(TEXT), Err(EditError::Meaningless { .. })));
    }
}

#[test]
fn an_anchor_can_be_replaced_preceded_and_followed_at_once() {
    let edit = Edit {
        with: Some("four".into()),
        before: Some("three\n".into()),
        after: Some("five\n".into()),
        ..edit("two")
    };
    let once = edit.apply(TEXT).unwrap();
    assert_eq!(once, "one\nthree\n  four { a; b; }\nfive\nthree\n");
    assert_eq!(edit.apply(&once).unwrap(), once);
}

#[test]
fn what_follows_the_last_line_is_a_line() {
    let edit = Edit { after: Some("four\n".into()), ..edit("two") };
    assert_eq!(edit.apply("one\ntwo").unwrap(), "one\ntwo\nfour\n");
}

const C: &str = "int other(void)\n{\n\treturn 0;\n}\n\nint some(void)\n{\n\treturn 0;\n}\n";

fn within() -> Edit {
    Edit {
        within: Some("int some(void)".into()),
        before: Some("\tprepare();\n".into()),
        ..edit("return 0;")
    }
}

#[test]
fn an_anchor_is_found_where_it_is_meant() {
    let expected = C.replace("int some(void)\n{\n", "int some(void)\n{\n\tprepare();\n");
    assert_eq!(within().apply(C).unwrap(), expected);
}

#[test]
fn an_anchor_that_is_not_where_it_is_meant_is_named_with_the_place() {
    let error = within().apply("int some(void)\n{\n}\n").unwrap_err();
    let text = error.to_string();
    for part in ["src/some.rs", "\"return 0;\"", "int some(void)", "a test"] {
        assert!(text.contains(part), "{text}");
    }
    let error = within().apply("\treturn 0;\n").unwrap_err().to_string();
    assert!(error.contains("found \"int some(void)\" 0 times"), "{error}");
    let twice = [C, C].concat();
    assert!(matches!(within().apply(&twice), Err(EditError::Anchor { found: 2, .. })));
}

const LIST: &str = r#"
[[file]]
from = "ours"
to = "src"

[[edit]]
file = "a.c"
why = "the second line"
at = "one"
after = "two\n"

[[edit]]
file = "a.c"
why = "the third"
at = "two"
after = "three\n"
"#;

/// Creates a folder with a list, a file of ours, and sources. Returns the list and the path of the sources.
fn delivered(folder: &Path) -> (Edits, PathBuf) {
    let list = folder.join("list.toml");
    std::fs::write(&list, LIST).unwrap();
    write(&folder.join("ours/deep/b.c"), "ours\n").unwrap();
    let sources = folder.join("sources");
    write(&sources.join("a.c"), "one\n").unwrap();
    (Edits::read(&list, &[]).unwrap(), sources)
}

#[test]
fn edits_of_a_file_build_on_each_other_and_leave_what_was_delivered_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (list, sources) = delivered(folder.path());
    for _ in 0..2 {
        let files = list.changed(&sources, folder.path()).unwrap();
        assert_eq!(files[Path::new("a.c")], b"one\ntwo\nthree\n");
        assert_eq!(files[Path::new("src/deep/b.c")], b"ours\n");
        assert_eq!(files.len(), 2);
    }
    assert_eq!(std::fs::read(sources.join("a.c")).unwrap(), b"one\n");
    assert!(!sources.join("src").exists());
}

/// In place, a list may be repeated. On delivered sources, every edit is made, even if its text is there already.
#[test]
fn only_in_place_is_an_edit_taken_for_made() {
    let folder = tempfile::tempdir().unwrap();
    let (list, sources) = delivered(folder.path());
    for _ in 0..2 {
        list.apply(&sources, folder.path()).unwrap();
        assert_eq!(std::fs::read(sources.join("a.c")).unwrap(), b"one\ntwo\nthree\n");
    }
    let error = list.changed(&sources, folder.path()).unwrap_err();
    assert!(matches!(&error, EditError::Anchor { at, found: 2, .. } if at == "two"), "{error}");
}

/// We decide whether an edit was made from the original file, not from the result of earlier edits with the same text.
#[test]
fn the_same_text_goes_to_all_its_places() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.c");
    std::fs::write(&source, "one\ntwo\n").unwrap();
    let poll = |at: &str| Edit { file: "a.c".into(), after: Some("poll\n".into()), ..edit(at) };
    let list = Edits { file: Vec::new(), edit: vec![poll("one"), poll("two")] };
    for _ in 0..2 {
        list.apply(folder.path(), folder.path()).unwrap();
        let text = std::fs::read_to_string(&source).unwrap();
        assert_eq!(text, "one\npoll\ntwo\npoll\n");
    }
}

#[test]
fn a_file_is_written_only_if_it_differs_and_never_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let (source, tree) = (folder.path().join("source"), folder.path().join("tree"));
    std::fs::write(&source, "same").unwrap();
    std::fs::hard_link(&source, &tree).unwrap();
    let written = || std::fs::metadata(&tree).unwrap().modified().unwrap();
    let before = written();
    write(&tree, "same").unwrap();
    assert_eq!(written(), before);
    write(&tree, "other").unwrap();
    assert_eq!(std::fs::read(&source).unwrap(), b"same");
    assert_eq!(std::fs::read(&tree).unwrap(), b"other");
}
