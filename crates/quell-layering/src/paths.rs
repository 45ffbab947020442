//! The paths that the code of one module takes, from the root of its crate.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{HashMap, HashSet};
use syn::visit::{self, Visit};

/// A path of names from the root of a crate.
pub(crate) type Names = Vec<String>;

/// Whether code with these attributes is there for tests alone.
pub(crate) fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let words = idents(list.tokens.clone());
                let has = |word: &str| words.iter().any(|known| known == word);
                has("test") && !has("not")
            })
    })
}

/// All identifiers of a stream.
fn idents(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Group(group) => idents(group.stream()),
            TokenTree::Ident(ident) => vec![ident.to_string()],
            _ => Vec::new(),
        })
        .collect()
}

/// Collects the paths that the code of one module takes.
pub(crate) struct Reader<'m> {
    /// The module.
    pub(crate) here: &'m Names,
    /// Its children.
    pub(crate) children: HashSet<String>,
    /// What names imported here stand for.
    pub(crate) aliases: HashMap<String, Names>,
    /// Modules whose names are all handed on, or brought in.
    pub(crate) globs: Vec<Names>,
    /// Paths that the code takes, from the root of the crate.
    pub(crate) taken: Vec<Names>,
}

impl Reader<'_> {
    /// A path as the module writes it, from the root of the crate; `None` if it leads out of it.
    fn absolute(&self, path: &[String]) -> Option<Names> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" => self.here.clone(),
            "super" => {
                let mut base = self.here.clone();
                base.pop()?;
                base
            }
            name => {
                if let Some(alias) = self.aliases.get(name) {
                    alias.clone()
                } else if self.children.contains(name) && !rest.is_empty() {
                    [&self.here[..], std::slice::from_ref(first)].concat()
                } else {
                    return None;
                }
            }
        };
        for name in rest {
            match name.as_str() {
                "super" => drop(base.pop()?),
                "self" => {}
                name => base.push(name.to_owned()),
            }
        }
        Some(base)
    }

    /// Takes note of the leaves of a `use`.
    pub(crate) fn import(&mut self, tree: &syn::UseTree, mut path: Names, handed_on: bool) {
        match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path, handed_on);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone(), handed_on);
                }
            }
            syn::UseTree::Glob(_) => {
                if let Some(path) = self.absolute(&path).or_else(|| self.child(&path)) {
                    if !handed_on {
                        self.taken.push(path.clone());
                    }
                    self.globs.push(path);
                }
            }
            syn::UseTree::Name(tree) => {
                let name = tree.ident.to_string();
                let alias = match name.as_str() {
                    "self" => path.last().cloned().unwrap_or_default(),
                    _ => {
                        path.push(name.clone());
                        name
                    }
                };
                self.alias(alias, &path, handed_on);
            }
            syn::UseTree::Rename(tree) => {
                if tree.ident != "self" {
                    path.push(tree.ident.to_string());
                }
                self.alias(tree.rename.to_string(), &path, handed_on);
            }
        }
    }

    /// A child of this module by its bare name, as `use child::*` has it.
    fn child(&self, path: &[String]) -> Option<Names> {
        let [name] = path else { return None };
        self.children
            .contains(name)
            .then(|| [&self.here[..], path].concat())
    }

    fn alias(&mut self, name: String, path: &[String], handed_on: bool) {
        if let Some(path) = self.absolute(path).or_else(|| self.child(path)) {
            if !handed_on {
                self.taken.push(path.clone());
            }
            self.aliases.insert(name, path);
        }
    }

    fn take(&mut self, path: &[String]) {
        if matches!(path, [word] if word == "self" || word == "crate" || word == "super") {
            return;
        }
        if let Some(path) = self.absolute(path) {
            self.taken.push(path);
        }
    }

    /// The paths in the arguments of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut colons = 0;
        let mut field = false;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.take(&std::mem::take(&mut path));
                    }
                    if !std::mem::take(&mut field) {
                        path.push(ident.to_string());
                    }
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                other => {
                    self.take(&std::mem::take(&mut path));
                    colons = 0;
                    field = matches!(&other, TokenTree::Punct(mark) if matches!(mark.as_char(), '.' | '\''));
                    if let TokenTree::Group(group) = other {
                        self.scan(group.stream());
                    }
                }
            }
        }
        self.take(&path);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[syn::Attribute] = match item {
            // Modules are read on their own, imports were.
            syn::Item::Mod(_) | syn::Item::Use(_) => return,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            _ => &[],
        };
        if !for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // Inside of a function: there, nothing is handed on.
        self.import(&item.tree, Vec::new(), false);
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        match statement {
            syn::Stmt::Item(syn::Item::Use(item)) => self.visit_item_use(item),
            _ => visit::visit_stmt(self, statement),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.take(&names);
        }
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {
        // Says which modules may look, and looks nowhere.
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        self.scan(invocation.tokens.clone());
    }
}
