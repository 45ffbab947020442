//! `cargo xtask api`: records the public interfaces of published crates in `docs/api`, so that each change shows in a
//! diff.
//!
//! Rustdoc produces the lists as unstable JSON (hence `RUSTC_BOOTSTRAP`); the crate `public-api` reads them. We leave
//! it to the author whether a change needs a higher version; `cargo semver-checks` helps.

use crate::{cargo, root, run as command};
use public_api::Builder;
use std::collections::BTreeSet;
use std::fs;

/// The crates that others use.
const CRATES: [&str; 4] = ["quell", "quell-zero", "quell-arch", "quell-conformance"];

/// Compares the interfaces of the published crates with `docs/api`, or updates that folder.
///
/// # Errors
/// If an interface differs from the kept one and `accept` isn't set, or if it can't be read.
pub fn run(accept: bool) -> Result<(), String> {
    let mut changed = Vec::new();
    for name in CRATES {
        let now = interface(name)?;
        let kept = root().join(format!("docs/api/{name}.txt"));
        let then = fs::read_to_string(&kept).unwrap_or_default();
        if accept {
            fs::write(&kept, now).map_err(|error| format!("{}: {error}", kept.display()))?;
        } else if now != then {
            let (old, new): (Vec<_>, Vec<_>) = (then.lines().collect(), now.lines().collect());
            let gone = old.iter().filter(|line| !new.contains(line));
            changed.extend(gone.map(|line| format!("{name}: - {line}")));
            let added = new.iter().filter(|line| !old.contains(line));
            changed.extend(added.map(|line| format!("{name}: + {line}")));
        }
    }
    if changed.is_empty() {
        Ok(())
    } else {
        let changed = changed.join("\n");
        Err(format!("{changed}\n`cargo xtask api --accept` keeps these"))
    }
}

/// Returns a crate's interface: a line for each public item, except blanket and auto traits other than `Send` and
/// `Sync`.
fn interface(name: &str) -> Result<String, String> {
    let mut doc = cargo();
    doc.env("RUSTC_BOOTSTRAP", "1");
    let flags = "-Z unstable-options --output-format json --cap-lints allow";
    doc.env("RUSTDOCFLAGS", flags);
    doc.args(["doc", "--no-deps", "--lib", "--package", name]);
    command(doc.args(["--target-dir", "target/api"]))?;
    let json = root().join(format!("target/api/doc/{}.json", name.replace('-', "_")));
    let api = Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_derived_impls(true)
        .build();
    let api = api.map_err(|error| {
        format!("`public-api` cannot read this Rust's output ({error}): update it")
    })?;
    let mut kept = BTreeSet::new();
    // The type of the current implementation of a trait, while its items follow.
    let mut of = None;
    for line in api.items().map(ToString::to_string) {
        if line.starts_with("impl") {
            let implemented = line.split_once(" for ").map(|(_, of)| of);
            of = implemented.and_then(|of| Some(format!(" {}", of.split(['<', ' ']).next()?)));
            if !IMPLIED.iter().any(|name| line.contains(&format!("::{name} for "))) {
                kept.insert(line);
            }
        } else if !of.as_ref().is_some_and(|of| is_item_of(&line, of)) {
            kept.insert(line);
        }
    }
    Ok(kept.into_iter().map(|line| line + "\n").collect())
}

/// Returns whether a line lists an item of this type, generic or not.
fn is_item_of(line: &str, of: &str) -> bool {
    let rest = line.split_once(of).map(|(_, rest)| rest);
    rest.is_some_and(|rest| rest.starts_with("::") || rest.starts_with('<') && rest.contains(">::"))
}

/// Traits that we omit, because they follow from other traits or from the fields.
const IMPLIED: [&str; 6] =
    ["Freeze", "Unpin", "UnsafeUnpin", "RefUnwindSafe", "UnwindSafe", "StructuralPartialEq"];
