//! The recipes of the guide are held against the source: what a step names must stand where the step says, and the
//! lists that a recipe adds to must be those that the program reads.

use crate::markdown::{Document, documents, normal, root};
use crate::none;
use quell_adversary::{MachineKind, Mistake, Scenario};
use quell_clock::file::BUILT_IN;
use quell_experiments::headlines::HEADLINES;
use quell_workloads::Workload;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The chapters that tell how something is added.
const RECIPES: [&str; 7] = [
    "architecture",
    "broadcast",
    "experiment",
    "machine-file",
    "mutant",
    "scenario",
    "workload",
];

/// The recipes by their names.
fn recipes() -> BTreeMap<&'static str, Document> {
    let mut documents = documents();
    RECIPES
        .map(|name| {
            let path = PathBuf::from(format!("docs/guide/{name}.md"));
            (name, documents.remove(&path).expect(name))
        })
        .into()
}

/// Where a path of a recipe leads, if it is one: from the root, or from `crates`.
fn place(code: &str) -> Option<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let path = code.contains(['/', '.']) && code.chars().all(plain);
    let places = ["", "crates"].map(|place| root().join(place).join(code));
    places.into_iter().find(|place| path && place.exists())
}

fn letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The parts of a name of the source, as in `Scenario::ALL`; none of what is no such name.
fn name(code: &str) -> Option<Vec<&str>> {
    let name = code.split(['(', '<', '{']).next().unwrap_or_default();
    let parts: Vec<_> = name.split("::").collect();
    let word = |part: &&str| {
        part.chars().all(letter) && part.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    parts.iter().all(word).then_some(parts)
}

/// The words of a file, or of all files of a folder.
fn words(place: &Path) -> BTreeSet<String> {
    let files = WalkDir::new(place).into_iter();
    let files = files.filter_entry(|entry| entry.file_name() != "target");
    let files = files.map(|entry| entry.expect("a file").into_path());
    let mut words = BTreeSet::new();
    // What is no text has no words.
    for text in files.filter_map(|file| std::fs::read_to_string(file).ok()) {
        let all = text.split(|c| !letter(c)).filter(|word| !word.is_empty());
        words.extend(all.map(str::to_owned));
    }
    words
}

/// What stands in code font in a line of Markdown.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Words of a recipe that are none of the source: what the reader puts in their place.
const PLACEHOLDERS: [&str; 4] = ["NAME", "WORKLOAD", "MUTANT", "FILE"];

#[test]
fn what_a_row_of_a_recipe_names_stands_in_the_files_of_the_row() {
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (recipe, document) in recipes() {
        for row in document.text.lines().filter(|line| line.starts_with('|')) {
            let places: Vec<_> = code(row).filter_map(place).collect();
            if places.is_empty() {
                continue;
            }
            let there: BTreeSet<_> = places.iter().flat_map(|place| words(place)).collect();
            for code in code(row).filter(|code| place(code).is_none()) {
                let Some(parts) = name(code) else { continue };
                if PLACEHOLDERS.contains(&code) {
                    continue;
                }
                looked += 1;
                let missing = parts.iter().find(|part| !there.contains(**part));
                if missing.is_some() {
                    wrong.push(format!("{recipe}: `{code}` in: {row}"));
                }
            }
        }
    }
    none("not in the files of its row", &wrong);
    assert!(looked > 10, "{looked} names: the rows were not read");
}

/// Whether the source defines a word: as an item, a field or variant, or a method.
pub fn defined(word: &str, sources: &[String]) -> bool {
    let before = [
        "fn ",
        "const ",
        "static ",
        "struct ",
        "enum ",
        "trait ",
        "type ",
        "mod ",
        "macro_rules! ",
    ];
    sources.iter().any(|text| {
        text.match_indices(word).any(|(at, _)| {
            let (head, tail) = (&text[..at], &text[at + word.len()..]);
            if head.ends_with(letter) || tail.starts_with(letter) {
                return false;
            }
            before.iter().any(|kind| head.ends_with(kind))
                // A field, a variant, a flag of a form.
                || tail.starts_with(": ")
                || (head.ends_with("    ") && tail.starts_with([',', ' ', '(']))
        })
    })
}

#[test]
fn what_a_recipe_names_is_defined_in_the_source() {
    let sources: Vec<String> = WalkDir::new(root().join("crates"))
        .into_iter()
        .filter_entry(|entry| entry.file_name() != "target" && entry.file_name() != "quell-book")
        .map(|entry| entry.expect("a file").into_path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| std::fs::read_to_string(path).expect("a source file"))
        .collect();
    let mut wrong = Vec::new();
    let mut looked = BTreeSet::new();
    for (recipe, document) in recipes() {
        for code in &document.code {
            let Some(parts) = name(code) else { continue };
            let snake = |part: &&str| part.contains('_') && !part.ends_with('_');
            let camel = |part: &&str| {
                part.starts_with(|c: char| c.is_ascii_uppercase())
                    && part.contains(|c: char| c.is_ascii_lowercase())
            };
            let telling = parts.len() > 1 || snake(&parts[0]) || camel(&parts[0]);
            if !telling || PLACEHOLDERS.contains(&code.as_str()) {
                continue;
            }
            for part in parts {
                // The name of a crate defines itself.
                let a_crate = part.replace('_', "-");
                if !looked.insert(part.to_owned()) || root().join("crates").join(a_crate).exists() {
                    continue;
                }
                if !defined(part, &sources) {
                    wrong.push(format!("{recipe}: `{code}`"));
                }
            }
        }
    }
    none("the source defines no such thing", &wrong);
    assert!(
        looked.len() > 60,
        "{} names: the recipes were not read",
        looked.len()
    );
}

/// The crate whose tests are one program of this name, of which a file is a module.
fn crate_of(test: &str) -> Option<PathBuf> {
    let named = format!("name = \"{test}\"\npath = \"tests/all.rs\"\n");
    let crates = std::fs::read_dir(root().join("crates")).expect("the crates");
    crates
        .map(|entry| entry.expect("a crate").path())
        .find(|folder| {
            std::fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|text| text.contains(&named))
        })
}

/// What documents give to `quell` is tested in `quell-cli`.
#[test]
fn tests_that_documents_name_are_there() {
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (path, document) in documents() {
        for told in document.text.split("cargo test ").skip(1) {
            let told = told.split(['`', '\n', '#', '<']).next().unwrap_or_default();
            let words: Vec<&str> = told
                .split_whitespace()
                .map(|word| word.trim_end_matches([',', ')']))
                .collect();
            let mut complain = |why: &str| wrong.push(format!("{}: {told}: {why}", path.display()));
            let file = |folder: &Path, test: &str| {
                let tests = folder.join("tests");
                tests.join(test).with_extension("rs").exists()
                    || tests.join(test).join("main.rs").exists()
            };
            match words[..] {
                ["-p", package, ref rest @ ..] => {
                    let folder = root().join("crates").join(package);
                    if !folder.join("Cargo.toml").exists() {
                        complain("no such crate");
                        continue;
                    }
                    match *rest {
                        ["--test", test, ..] if !file(&folder, test) => complain("no such test"),
                        // A word alone is a part of the names of the tests that are run.
                        [part, ..] if part.chars().all(letter) && !text(&folder).contains(part) => {
                            complain("no test of such a name");
                        }
                        _ => {}
                    }
                }
                ["--test", test, ref rest @ ..] => match (crate_of(test), rest) {
                    (None, _) => complain("no such test"),
                    (Some(folder), [module, ..]) if *module != "--" && !file(&folder, module) => {
                        complain("no such file of tests");
                    }
                    _ => {}
                },
                _ => continue,
            }
            looked += 1;
        }
    }
    none("no such crate or test", &wrong);
    assert!(
        looked > 10,
        "{looked} commands: the documents were not read"
    );
}

/// Each list that a recipe adds to: the recipe, the file or folder that it names, and what the program finds in the
/// list.
fn registries() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let of = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect::<Vec<_>>();
    let folder = root().join("crates/quell-adversary/src/scenarios");
    let modules = WalkDir::new(folder).into_iter().map(|entry| {
        let path = entry.expect("a file").into_path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        format!("mod {stem};")
    });
    let modules = modules
        .filter(|module| !["mod mod;", "mod scenarios;"].contains(&module.as_str()))
        .collect();
    let workloads = Workload::all();
    let workloads = || workloads.iter().map(Workload::name);
    vec![
        (
            "machine-file",
            "quell-clock/src/file/builtin.rs",
            of(&mut BUILT_IN.iter().map(|(name, _)| *name)),
        ),
        (
            "workload",
            "quell-workloads/src/builtin.rs",
            of(&mut workloads()),
        ),
        (
            "workload",
            "quell-workloads/src/tests.rs",
            of(&mut workloads()),
        ),
        ("scenario", "quell-adversary/src/scenarios/mod.rs", modules),
        (
            "scenario",
            "quell-adversary/src/scenarios/",
            of(&mut Scenario::ALL.iter().map(|scenario| scenario.name)),
        ),
        (
            "experiment",
            "quell-experiments/src/headlines.rs",
            of(&mut HEADLINES.iter().map(|headline| headline.experiment)),
        ),
        (
            "broadcast",
            "quell-adversary/src/kind.rs",
            of(&mut MachineKind::ALL.iter().map(|kind| kind.name)),
        ),
    ]
}

/// All of a file, or of the files of a folder.
fn text(place: &Path) -> String {
    let files = WalkDir::new(place).into_iter();
    let files = files.filter_entry(|entry| entry.file_name() != "target");
    let files = files.map(|entry| entry.expect("a file").into_path());
    files
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect()
}

#[test]
fn the_lists_that_recipes_add_to_are_those_that_are_read() {
    let recipes = recipes();
    let mut wrong = Vec::new();
    for (recipe, path, found) in registries() {
        if !recipes[recipe].code.iter().any(|code| code == path) {
            wrong.push(format!("{recipe} does not name {path}"));
        }
        let text = text(&root().join("crates").join(path));
        let missing = found.iter().filter(|name| !text.contains(name.as_str()));
        wrong.extend(missing.map(|name| format!("{recipe}: {name} is not in {path}")));
        assert!(found.len() > 3, "{path}: {found:?}");
    }
    none("a recipe and a list of the program differ", &wrong);
}

#[test]
fn every_mutant_is_written_down_where_its_recipe_says() {
    let recipe = &recipes()["mutant"];
    let places: Vec<_> = recipe
        .text
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(code)
        .filter_map(place)
        .collect();
    assert!(places.len() >= 4, "{places:?}");
    let there: BTreeSet<_> = places.iter().flat_map(|place| words(place)).collect();
    let wrong: Vec<_> = Mistake::all()
        .map(|mistake| mistake.name().to_owned())
        .filter(|name| !there.contains(name))
        .collect();
    none("in none of the files that the recipe names", &wrong);
}

/// What a recipe adds to, by the names of all that is there.
fn kinds() -> Vec<(&'static str, Vec<String>)> {
    let named = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect();
    let folders = std::fs::read_dir(root().join("crates/quell-arch/src")).expect("the source");
    let folders = folders.map(|entry| entry.expect("a file").path());
    let formats = folders.filter(|folder| folder.join("entry.rs").exists());
    let formats = formats.map(|folder| folder.file_name().expect("a name").to_owned());
    let manager = Mistake::all().filter(|mistake| mistake.name().starts_with("Vm"));
    let manager: Vec<_> = manager.collect();
    let workloads = Workload::all();
    vec![
        (
            "architecture",
            formats.map(|name| name.to_string_lossy().into()).collect(),
        ),
        (
            "broadcast",
            named(&mut MachineKind::ALL.iter().map(|kind| kind.name)),
        ),
        (
            "machine-file",
            named(&mut BUILT_IN.iter().map(|(name, _)| *name)),
        ),
        (
            "mutant",
            named(&mut quell::rules::ALL.iter().map(|rule| rule.name)),
        ),
        (
            "mutant",
            named(&mut manager.iter().map(|mistake| mistake.name())),
        ),
        (
            "mutant",
            named(&mut quell_zero::rules::zero::ALL.iter().map(|rule| rule.name)),
        ),
        (
            "scenario",
            named(&mut Scenario::ALL.iter().map(|scenario| scenario.name)),
        ),
        ("workload", named(&mut workloads.iter().map(Workload::name))),
    ]
}

/// The texts that people maintain, by their paths from the root; what changed, and recordings, are none.
fn maintained() -> BTreeMap<PathBuf, String> {
    let mut texts = BTreeMap::new();
    for folder in ["README.md", "crates", "docs", "integrations", "scripts"] {
        let files = WalkDir::new(root().join(folder)).into_iter();
        let files = files.filter_entry(|entry| entry.file_name() != "target");
        for path in files.map(|entry| entry.expect("a file").into_path()) {
            let data = path
                .extension()
                .is_some_and(|kind| kind == "json" || kind == "lock");
            if let (false, Ok(text)) = (data, std::fs::read_to_string(&path)) {
                let path = path.strip_prefix(root()).expect("below the root");
                texts.insert(path.to_owned(), text.to_lowercase());
            }
        }
    }
    texts
}

/// Whether a text has the name as a word of its own, in capitals or not.
fn has(text: &str, name: &str) -> bool {
    let name = name.to_lowercase();
    text.match_indices(&name).any(|(at, _)| {
        let (head, tail) = (&text[..at], &text[at + name.len()..]);
        !head.ends_with(letter) && !tail.starts_with(letter)
    })
}

/// The paths from the root that a recipe names, as links, alone or as words of a command.
fn named(document: &Document) -> Vec<PathBuf> {
    let links = document.links.iter().map(|link| &link.to);
    let links = links.map(|to| to.split('#').next().unwrap_or_default());
    let links = links.map(|to| normal(&Path::new("docs/guide").join(to)));
    let code = document.code.iter().flat_map(|code| code.split(' '));
    let code = code
        .filter_map(place)
        .map(|path| normal(path.strip_prefix(root()).expect("below the root")));
    links.chain(code).collect()
}

/// A file with the names of all that there is of a kind is a list: one thing more belongs into it.
#[test]
fn a_recipe_names_every_file_that_lists_what_it_adds_to() {
    let (recipes, texts) = (recipes(), maintained());
    let mut wrong = Vec::new();
    let mut lists = 0;
    for (recipe, names) in kinds() {
        assert!(names.len() > 2, "{recipe}: {names:?}");
        let named = named(&recipes[recipe]);
        let itself = PathBuf::from(format!("docs/guide/{recipe}.md"));
        for (path, text) in &texts {
            if *path == itself || !names.iter().all(|name| has(text, name)) {
                continue;
            }
            lists += 1;
            if !named.iter().any(|named| path.starts_with(named)) {
                wrong.push(format!("{recipe}.md does not name {}", path.display()));
            }
        }
    }
    none("a list that a recipe leaves out", &wrong);
    assert!(lists > 15, "{lists} lists: the files were not read");
}

/// RISC-V came last. Another architecture is asked for wherever it stands, so the recipe names each such file.
#[test]
fn the_recipe_of_an_architecture_names_every_file_in_which_one_stands() {
    let named = named(&recipes()["architecture"]);
    let mut wrong = Vec::new();
    let mut looked = 0;
    for (path, text) in maintained() {
        let own = path.to_string_lossy().contains("riscv");
        // The adversary has kinds of machines, whatever they are called; this test is in the book.
        let source = ["crates", "scripts"]
            .iter()
            .any(|folder| path.starts_with(folder));
        let aside = ["crates/quell-adversary", "crates/quell-book"];
        let aside = aside.iter().any(|folder| path.starts_with(folder));
        if own || aside || !source || !text.contains("riscv") {
            continue;
        }
        looked += 1;
        if !named.iter().any(|named| path.starts_with(named)) {
            wrong.push(path.display().to_string());
        }
    }
    none("docs/guide/architecture.md does not name", &wrong);
    assert!(looked > 20, "{looked} files: the source was not read");
}
