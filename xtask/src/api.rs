//! `cargo xtask api`: the public interface of the crates that others use, kept in `docs/api`.
//!
//! A file for each crate lists every public item, with the version that it is the interface of. The check compares
//! it with the source. Something on which others may depend (an item that is gone or changed, a trait that asks
//! for more, a variant or field more) may differ only if the version has risen as Semantic Versioning asks; any
//! other difference is accepted with `cargo xtask api --accept`, and then shows in the diff of the file.
//!
//! Nothing is published, so the kept lists are what there is to compare with. They come from rustdoc, which writes
//! them only if told that it may (`RUSTC_BOOTSTRAP`); the crate `public-api` reads them. Left out are what derived
//! and hand-written implementations of traits repeat of the trait, and automatic traits but `Send` and `Sync`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::cargo;

/// The crates that others use.
pub const CRATES: [&str; 4] = ["quell", "quell-zero", "quell-arch", "quell-conformance"];

/// The interface of a crate, as a file of `docs/api` has it.
#[derive(PartialEq, Eq, Debug)]
struct Interface {
    version: String,
    items: BTreeSet<String>,
}

/// Before the signature of a method that an implementation must write itself.
const REQUIRED: &str = "required ";

impl Interface {
    fn parse(text: &str) -> Interface {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        Interface {
            version: first.rsplit(' ').next().unwrap_or_default().to_string(),
            items: lines
                .filter(|line| !line.is_empty())
                .map(str::to_string)
                .collect(),
        }
    }

    fn write(&self, name: &str) -> String {
        let mut text = format!("{name} {}\n", self.version);
        for item in &self.items {
            let _ = write!(text, "\n{item}");
        }
        text.push('\n');
        text
    }

    /// Whether the type or trait with this path was there, and closed to what is added to it.
    fn is_closed(&self, path: &str) -> bool {
        let is = |item: &String| {
            let declares = ["trait ", "enum ", "struct "].iter().any(|word| {
                let declared = item.split_once(word).map(|(_, rest)| rest);
                declared.is_some_and(|rest| {
                    let end = rest.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
                    rest[..end.unwrap_or(rest.len())].trim_end_matches(':') == path
                })
            });
            declares && !item.contains("#[non_exhaustive]")
        };
        self.items.iter().any(is)
    }

    /// What of `now` could break code that was written against this: each with the reason.
    fn broken_by(&self, now: &Interface) -> Vec<String> {
        let gone = self
            .items
            .difference(&now.items)
            .map(|item| format!("gone or changed: {item}"));
        let added = now.items.difference(&self.items).filter(|item| {
            let signature = item.strip_prefix(REQUIRED);
            let path = path_of(signature.unwrap_or(item));
            let parent = path.rsplit_once("::").map(|(parent, _)| parent);
            let member = signature.is_some() || is_member(item);
            member && parent.is_some_and(|parent| self.is_closed(parent))
        });
        gone.chain(added.map(|item| format!("added to what others write out: {item}")))
            .collect()
    }
}

/// Whether a line is a field or a variant: it has no word but `pub` before its path.
fn is_member(item: &str) -> bool {
    let path = item.strip_prefix("pub ").unwrap_or_default();
    let end = path.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    path[..end.unwrap_or(path.len())].contains("::")
}

/// The path of an item: the first word of its line that has one.
fn path_of(item: &str) -> &str {
    let word = item
        .split(' ')
        .find(|word| word.contains("::"))
        .unwrap_or_default();
    let end = word.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
    word[..end.unwrap_or(word.len())].trim_end_matches(':')
}

/// Whether code written against `old` may have to change for `new`, as Semantic Versioning counts.
fn may_break(old: &str, new: &str) -> bool {
    let part = |version: &str, nth: usize| -> u64 {
        version
            .split('.')
            .nth(nth)
            .and_then(|part| part.parse().ok())
            .unwrap_or(0)
    };
    let leading = |version: &str| match (part(version, 0), part(version, 1)) {
        (0, 0) => (0, 0, part(version, 2)),
        (0, minor) => (0, minor, 0),
        (major, _) => (major, 0, 0),
    };
    leading(new) > leading(old)
}

/// What to do about a kept interface, given the one of the source: nothing, accept it, or say why not.
fn judge(name: &str, kept: &Interface, now: &Interface) -> Result<bool, String> {
    let broken = kept.broken_by(now);
    if !broken.is_empty() && !may_break(&kept.version, &now.version) {
        return Err(format!(
            "{name} {} breaks what others wrote for {}; raise the version in Cargo.toml, or take this back:\n  {}",
            now.version,
            kept.version,
            broken.join("\n  ")
        ));
    }
    Ok(kept != now)
}

/// The interface of a crate as its source has it.
fn current(root: &Path, name: &str) -> Result<Interface, String> {
    let target = root.join("target/api");
    let status = cargo::command()
        .current_dir(root)
        .env("RUSTC_BOOTSTRAP", "1")
        .env(
            "RUSTDOCFLAGS",
            "-Z unstable-options --output-format json --cap-lints allow",
        )
        .args([
            "doc",
            "--quiet",
            "--no-deps",
            "--lib",
            "--package",
            name,
            "--target-dir",
        ])
        .arg(&target)
        .status()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !status.success() {
        return Err(format!("rustdoc does not list {name}"));
    }
    let json = target
        .join("doc")
        .join(name.replace('-', "_"))
        .with_extension("json");
    let text =
        std::fs::read_to_string(&json).map_err(|error| format!("{}: {error}", json.display()))?;
    let unreadable = |why: String| {
        format!(
            "this Rust writes lists that `public-api` does not read ({why}); update it in xtask/Cargo.toml"
        )
    };
    let raw: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    let api = public_api::Builder::from_rustdoc_json(&json)
        .omit_blanket_impls(true)
        .build()
        .map_err(|error| unreadable(error.to_string()))?;
    let lines = api.items().map(ToString::to_string);
    Ok(Interface {
        version: raw["crate_version"]
            .as_str()
            .unwrap_or_default()
            .to_string(),
        items: items(lines, &required(&raw)),
    })
}

/// The ends of the paths of all methods that traits ask for: `Trait::method`.
fn required(raw: &serde_json::Value) -> BTreeSet<String> {
    let index = &raw["index"];
    let traits = index
        .as_object()
        .into_iter()
        .flat_map(|items| items.values());
    let methods = traits.flat_map(|item| {
        let name = item["name"].as_str().unwrap_or_default();
        let members = item["inner"]["trait"]["items"].as_array();
        members.into_iter().flatten().filter_map(move |id| {
            let member = &index[id.to_string().as_str()];
            let asked = member["inner"]["function"]["has_body"].as_bool() == Some(false);
            asked.then(|| format!("{name}::{}", member["name"].as_str().unwrap_or_default()))
        })
    });
    methods.collect()
}

/// The lines of a list that are kept.
fn items(lines: impl Iterator<Item = String>, required: &BTreeSet<String>) -> BTreeSet<String> {
    let mut kept = BTreeSet::new();
    // The type of the implementation of a trait that is being listed.
    let mut implements = String::new();
    for line in lines {
        let declares = line.starts_with("impl");
        if declares {
            let of = line
                .split_once(" for ")
                .map(|(_, of)| of.split(['<', ' ']).next());
            implements = of.flatten().map(|of| format!("{of}::")).unwrap_or_default();
        }
        let automatic = [
            "Freeze",
            "Unpin",
            "UnsafeUnpin",
            "RefUnwindSafe",
            "UnwindSafe",
            "StructuralPartialEq",
        ];
        let is_automatic = |name: &&str| line.contains(&format!("::{name} for "));
        let path = path_of(&line);
        let repeats = !declares && !implements.is_empty() && path.starts_with(&implements);
        if repeats || declares && automatic.iter().any(is_automatic) {
            continue;
        }
        let asked = required.iter().any(|end| {
            path.strip_suffix(end.as_str())
                .is_some_and(|rest| rest.ends_with("::"))
        });
        kept.insert(if asked && line.contains("fn ") {
            format!("{REQUIRED}{line}")
        } else {
            line
        });
    }
    kept
}

fn file(root: &Path, name: &str) -> PathBuf {
    root.join("docs/api").join(name).with_extension("txt")
}

/// Compares all interfaces with those that are kept, and keeps the new ones if `accept`.
///
/// # Errors
/// If one differs and is not to be accepted, or breaks what the version promises; or the lists cannot be made.
pub fn run(root: &Path, accept: bool) -> Result<(), String> {
    let mut wrong = Vec::new();
    for name in CRATES {
        let (path, now) = (file(root, name), current(root, name)?);
        let kept = match std::fs::read_to_string(&path) {
            Ok(text) => Interface::parse(&text),
            Err(_) if accept => Interface::parse(""),
            Err(error) => {
                wrong.push(format!(
                    "docs/api/{name}.txt: {error}; cargo xtask api --accept"
                ));
                continue;
            }
        };
        match judge(name, &kept, &now) {
            Ok(false) => println!("{name} {}: {} items, as kept", now.version, now.items.len()),
            Ok(true) if accept => {
                let written = std::fs::create_dir_all(root.join("docs/api"))
                    .and_then(|()| std::fs::write(&path, now.write(name)));
                written.map_err(|error| format!("{}: {error}", path.display()))?;
                println!(
                    "{name} {}: {} items, accepted",
                    now.version,
                    now.items.len()
                );
            }
            Ok(true) => wrong.push(format!(
                "docs/api/{name}.txt is out of date: cargo xtask api --accept"
            )),
            Err(why) => wrong.push(why),
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: &str = "made-up 0.1.3

#[non_exhaustive] pub enum made_up::Open
impl core::clone::Clone for made_up::Closed
pub enum made_up::Closed
pub fn made_up::free(u8) -> u8
pub made_up::Closed::First
pub trait made_up::Trait<T>: core::marker::Sync
required pub fn made_up::Trait::asked(&self)
";

    /// What is said of a list in which `from` was replaced.
    fn judged(from: &str, to: &str) -> Result<bool, String> {
        assert!(KEPT.contains(from));
        judge(
            "made-up",
            &Interface::parse(KEPT),
            &Interface::parse(&KEPT.replace(from, to)),
        )
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let kept = Interface::parse(KEPT);
        assert_eq!((kept.version.as_str(), kept.items.len()), ("0.1.3", 7));
        assert_eq!(kept.write("made-up"), KEPT);
        assert_eq!(judge("made-up", &kept, &kept), Ok(false));
    }

    #[test]
    fn what_breaks_nothing_is_accepted() {
        let end = "required pub fn made_up::Trait::asked(&self)\n";
        for added in [
            "pub fn made_up::more()",
            "pub made_up::Open::Second",
            "pub fn made_up::Trait::provided(&self)",
            "pub enum made_up::Other\npub made_up::Other::First",
            "pub trait made_up::Young\nrequired pub fn made_up::Young::asked(&self)",
        ] {
            assert_eq!(judged(end, &format!("{end}{added}\n")), Ok(true), "{added}");
        }
    }

    #[test]
    fn what_breaks_others_needs_a_version() {
        let end = "required pub fn made_up::Trait::asked(&self)\n";
        for (from, to) in [
            ("pub fn made_up::free(u8) -> u8\n", ""),
            ("free(u8)", "free(u16)"),
            ("impl core::clone::Clone for made_up::Closed\n", ""),
            ("#[non_exhaustive] pub enum", "pub enum"),
            (
                end,
                &format!("{end}required pub fn made_up::Trait::more(&self)\n"),
            ),
            (end, &format!("{end}pub made_up::Closed::Second\n")),
        ] {
            let why = judged(from, to).expect_err(to);
            assert!(
                why.starts_with("made-up 0.1.3 breaks what others wrote for 0.1.3; raise"),
                "{why}"
            );
            let (old, new) = (Interface::parse(KEPT), KEPT.replace(from, to));
            let raised = |version: &str| {
                judge(
                    "made-up",
                    &old,
                    &Interface::parse(&new.replace("0.1.3", version)),
                )
            };
            assert!(raised("0.1.4").is_err(), "{to}");
            assert_eq!(raised("0.2.0"), Ok(true), "{to}");
            assert_eq!(raised("1.0.0"), Ok(true), "{to}");
        }
    }

    #[test]
    fn implementations_are_listed_without_what_they_repeat() {
        let lines = [
            "impl core::clone::Clone for made_up::Closed",
            "pub fn made_up::Closed::clone(&self) -> made_up::Closed",
            "impl core::marker::Unpin for made_up::Closed",
            "impl core::marker::Send for made_up::Closed",
            "pub fn made_up::free()",
            "pub trait made_up::Trait",
            "pub fn made_up::Trait::asked(&self)",
            "pub fn made_up::Trait::provided(&self)",
        ];
        let required = BTreeSet::from(["Trait::asked".to_string()]);
        let kept = items(lines.iter().map(ToString::to_string), &required);
        let expected = [
            lines[0],
            lines[3],
            lines[4],
            "pub fn made_up::Trait::provided(&self)",
            lines[5],
        ];
        let expected = expected.iter().map(ToString::to_string);
        let asked = format!("required {}", lines[6]);
        assert_eq!(kept, expected.chain([asked]).collect());
    }
}
