//! The modules of a crate, what each imports of the others, and the circles among them.

use crate::paths::{Names, Reader, for_tests};
use crate::{Unreadable, read};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use syn::punctuated::Punctuated;
use syn::visit::Visit;
use walkdir::WalkDir;

/// That one file imports from another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Import {
    /// The file with the import.
    pub from: PathBuf,
    /// The file that it leads to.
    pub to: PathBuf,
    /// What is imported, as a path from the root of the crate.
    pub what: String,
}

/// What was found in a crate.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Findings {
    /// All imports between files, without those of tests.
    pub imports: BTreeSet<Import>,
    /// Files of the folders of sources and of tests that are no module of any of the crate's targets: nothing compiles
    /// them.
    pub strays: Vec<PathBuf>,
}

impl Findings {
    /// The circles: for each set of files that lead to each other, the imports among them.
    pub fn circles(&self) -> Vec<Vec<Import>> {
        let edges = self.imports.iter();
        let graph: DiGraphMap<&Path, ()> = edges.map(|i| (&*i.from, &*i.to)).collect();
        let mut circles: Vec<Vec<Import>> = tarjan_scc(&graph)
            .into_iter()
            .filter(|files| files.len() > 1)
            .map(|files| {
                let inside = |path: &PathBuf| files.contains(&path.as_path());
                let tied = self.imports.iter();
                tied.filter(|i| inside(&i.from) && inside(&i.to))
                    .cloned()
                    .collect()
            })
            .collect();
        circles.sort();
        circles
    }
}

/// A module, in a file of its own or inside another's.
#[derive(Debug)]
struct Module {
    file: PathBuf,
    children: HashMap<String, usize>,
    /// What names imported here stand for.
    aliases: HashMap<String, Names>,
    /// Modules whose names are all handed on.
    globs: Vec<Names>,
    /// Paths that the code takes, from the root of the crate.
    taken: Vec<Names>,
}

/// The modules of one target, the root first.
#[derive(Default)]
struct Target {
    modules: Vec<Module>,
    files: HashSet<PathBuf>,
}

/// The string that a `path = "..."` says.
fn path_of(pair: &syn::MetaNameValue) -> Option<String> {
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(path),
            ..
        }) if pair.path.is_ident("path") => Some(path.value()),
        _ => None,
    }
}

/// The files of a module that the file `parent` declares: where `#[path]` says, also if only on some machines,
/// or one of the two usual places in `folder`.
fn files_of(folder: &Path, parent: &Path, item: &syn::ItemMod) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for attribute in &item.attrs {
        if let syn::Meta::NameValue(pair) = &attribute.meta {
            paths.extend(path_of(pair));
        }
        let nested = Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        if attribute.path().is_ident("cfg_attr")
            && let Ok(nested) = attribute.parse_args_with(nested)
        {
            let pairs = nested
                .iter()
                .filter_map(|meta| meta.require_name_value().ok());
            paths.extend(pairs.filter_map(path_of));
        }
    }
    if !paths.is_empty() {
        let beside = parent.parent().map(Path::to_owned).unwrap_or_default();
        return paths.iter().map(|path| beside.join(path)).collect();
    }
    let name = item.ident.to_string();
    let flat = folder.join(format!("{name}.rs"));
    vec![if flat.exists() {
        flat
    } else {
        folder.join(name).join("mod.rs")
    }]
}

impl Target {
    /// Reads a module's file and those of its children. `folder` is where the children's files are.
    fn load(&mut self, file: &Path, folder: &Path, names: &Names) -> Result<usize, Unreadable> {
        let parsed = syn::parse_file(&read(file)?).map_err(|error| Unreadable::Source {
            path: file.to_owned(),
            error,
        })?;
        self.files.insert(file.to_owned());
        self.add(file, folder, names, &parsed.items)
    }

    /// Adds a module with these items.
    fn add(
        &mut self,
        file: &Path,
        folder: &Path,
        names: &Names,
        items: &[syn::Item],
    ) -> Result<usize, Unreadable> {
        let number = self.modules.len();
        self.modules.push(Module {
            file: file.to_owned(),
            children: HashMap::new(),
            aliases: HashMap::new(),
            globs: Vec::new(),
            taken: Vec::new(),
        });
        for item in items {
            let syn::Item::Mod(item) = item else {
                continue;
            };
            let name = item.ident.to_string();
            let mut below = names.clone();
            below.push(name.clone());
            let inner = folder.join(&name);
            let files = || files_of(folder, file, item);
            let mut variants = Vec::new();
            match &item.content {
                _ if for_tests(&item.attrs) => {
                    if item.content.is_none() {
                        files().iter().for_each(|file| self.leave_out(file));
                    }
                }
                Some((_, items)) => variants.push(self.add(file, &inner, &below, items)?),
                None => {
                    for file in files() {
                        variants.push(self.load(&file, &inner, &below)?);
                    }
                }
            }
            // Where a module has a file for each machine, what leads to it leads to the first.
            if let Some(child) = variants.first() {
                self.modules[number].children.insert(name, *child);
            }
        }
        let mut reader = Reader {
            here: names,
            children: self.modules[number].children.keys().cloned().collect(),
            aliases: HashMap::new(),
            globs: Vec::new(),
            taken: Vec::new(),
        };
        // Names first: the code below them may use them before they are imported.
        for item in items {
            if let syn::Item::Use(item) = item
                && !for_tests(&item.attrs)
            {
                let handed_on = !matches!(item.vis, syn::Visibility::Inherited);
                reader.import(&item.tree, Vec::new(), handed_on);
            }
        }
        for item in items {
            reader.visit_item(item);
        }
        let Reader {
            aliases,
            globs,
            taken,
            ..
        } = reader;
        let module = &mut self.modules[number];
        (module.aliases, module.globs, module.taken) = (aliases, globs, taken);
        Ok(number)
    }

    /// A file and what lies below it belong to tests.
    fn leave_out(&mut self, file: &Path) {
        self.files.insert(file.to_owned());
        let inside = match file.file_name() {
            Some(name) if name == "mod.rs" => file.parent().map(Path::to_owned),
            _ => Some(file.with_extension("")),
        };
        for entry in WalkDir::new(inside.unwrap_or_default())
            .into_iter()
            .flatten()
        {
            self.files.insert(entry.into_path());
        }
    }

    /// The module that a path leads to, re-exports followed; `None` if to none of this crate.
    fn resolve(&self, path: &[String], patience: u32) -> Option<usize> {
        let mut at = 0;
        for (place, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            if let Some(child) = module.children.get(name) {
                at = *child;
                continue;
            }
            let patience = patience.checked_sub(1)?;
            let rest = &path[place + 1..];
            if let Some(alias) = module.aliases.get(name) {
                let through = [alias, rest].concat();
                return self.resolve(&through, patience).or(Some(at));
            }
            let elsewhere = module.globs.iter().find_map(|glob| {
                let found = self.resolve(glob, patience)?;
                let has = &self.modules[found];
                let known = has.children.contains_key(name) || has.aliases.contains_key(name);
                known.then(|| self.resolve(&[glob, &path[place..]].concat(), patience))?
            });
            return elsewhere.or(Some(at));
        }
        Some(at)
    }

    /// The imports between files.
    fn imports(&self) -> impl Iterator<Item = Import> + '_ {
        self.modules.iter().flat_map(move |module| {
            module.taken.iter().filter_map(move |path| {
                let to = &self.modules[self.resolve(path, 16)?].file;
                (*to != module.file).then(|| Import {
                    from: module.file.clone(),
                    to: to.clone(),
                    what: path.join("::"),
                })
            })
        })
    }
}

/// Reads a crate's manifest.
fn manifest(folder: &Path) -> Result<toml::Table, Unreadable> {
    let path = folder.join("Cargo.toml");
    read(&path)?
        .parse()
        .map_err(|error: toml::de::Error| Unreadable::Manifest {
            path,
            what: error.message().into(),
        })
}

/// The files with which a crate's targets begin, its tests, benches and examples aside.
fn roots(folder: &Path, manifest: &toml::Table) -> BTreeSet<PathBuf> {
    let bins = manifest.get("bin").and_then(toml::Value::as_array);
    let named = bins.into_iter().flatten().chain(manifest.get("lib"));
    let named = named.filter_map(|target| target.get("path")?.as_str());
    let usual = ["src/lib.rs", "src/main.rs"];
    let all = named.chain(usual).map(|path| folder.join(path));
    all.filter(|path| path.exists()).collect()
}

/// The files with which a crate's tests begin: those that its manifest names and, unless it says `autotests = false`,
/// each file of `tests/` and each `main.rs` of a folder there.
fn test_roots(folder: &Path, manifest: &toml::Table) -> BTreeSet<PathBuf> {
    let tests = folder.join("tests");
    let of =
        |name: &str| [format!("{name}.rs"), format!("{name}/main.rs")].map(|at| tests.join(at));
    let named = manifest.get("test").and_then(toml::Value::as_array);
    let named = named.into_iter().flatten().flat_map(|target| {
        let path = target.get("path").and_then(toml::Value::as_str);
        let name = target.get("name").and_then(toml::Value::as_str);
        let usual = name.filter(|_| path.is_none()).into_iter().flat_map(of);
        path.map(|path| folder.join(path)).into_iter().chain(usual)
    });
    let mut all: BTreeSet<PathBuf> = named.filter(|path| path.exists()).collect();
    let package = manifest.get("package").and_then(toml::Value::as_table);
    let found = package.and_then(|package| package.get("autotests")?.as_bool());
    if found != Some(false) {
        let here = WalkDir::new(&tests).min_depth(1).max_depth(2);
        let entries = here.into_iter().flatten().filter(|entry| {
            let source = entry.path().extension().is_some_and(|e| e == "rs");
            source && (entry.depth() == 1 || entry.file_name() == "main.rs")
        });
        all.extend(entries.map(walkdir::DirEntry::into_path));
    }
    all
}

/// Reads a crate.
///
/// # Errors
/// If one of its files cannot be read or is not Rust.
pub fn of_crate(folder: &Path) -> Result<Findings, Unreadable> {
    let mut findings = Findings::default();
    let mut files = HashSet::new();
    let manifest = manifest(folder)?;
    let load = |root: &Path| {
        let mut target = Target::default();
        let beside = root.parent().map(Path::to_owned).unwrap_or_default();
        target.load(root, &beside, &Vec::new())?;
        Ok(target)
    };
    for root in roots(folder, &manifest) {
        let target = load(&root)?;
        findings.imports.extend(target.imports());
        files.extend(target.files);
    }
    for root in test_roots(folder, &manifest) {
        files.extend(load(&root)?.files);
    }
    for folder in ["src", "tests"].map(|name| folder.join(name)) {
        for entry in WalkDir::new(folder)
            .sort_by_file_name()
            .into_iter()
            .flatten()
        {
            let path = entry.into_path();
            if path.extension().is_some_and(|e| e == "rs") && !files.contains(&path) {
                findings.strays.push(path);
            }
        }
    }
    Ok(findings)
}

/// A circle, for people: which file imports what from which, one line per pair of files.
pub fn describe(circle: &[Import], relative_to: &Path) -> String {
    let mut pairs: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    let name = |path: &Path| {
        let path = path.strip_prefix(relative_to).unwrap_or(path);
        path.display().to_string()
    };
    for import in circle {
        let pair = (name(&import.from), name(&import.to));
        pairs.entry(pair).or_default().push(&import.what);
    }
    let lines = pairs
        .into_iter()
        .map(|((from, to), what)| format!("  {from} -> {to}: {}", what.join(", ")));
    lines.collect::<Vec<_>>().join("\n")
}
