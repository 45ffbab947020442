//! Finds the allocator's or runtime's setting that makes a proposed change. The table is `allocators.toml`.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// The table.
static ALLOCATORS: LazyLock<Vec<Allocator>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        allocator: Vec<Allocator>,
    }
    let table: Table = toml::from_str(include_str!("../../allocators.toml"))
        .expect("the table is part of the program, and a test reads it");
    table.allocator
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allocator {
    name: String,
    frames: Vec<String>,
    /// Frames that other allocators have, too. They count only if no entry's `frames` match.
    #[serde(default)]
    shared: Vec<String>,
    /// Functions that the program calls to give memory back. No setting keeps it then.
    #[serde(default)]
    asked: Vec<String>,
    source: String,
    knob: Vec<Setting>,
}

/// One of its settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    kinds: Vec<String>,
    set: String,
    also: Option<String>,
    memory: String,
}

/// A setting that makes a proposed change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Knob {
    /// The allocator or the runtime.
    pub allocator: String,
    /// Environment variables, each as `NAME=VALUE`.
    pub set: Vec<String>,
    /// Its effect on memory use.
    pub memory: String,
    /// The address of its documentation.
    pub source: String,
}

/// Finds the allocator that gave memory back. Frames are given innermost first.
fn allocator<'f>(frames: impl Iterator<Item = &'f str> + Clone) -> Option<&'static Allocator> {
    let innermost = |own: fn(&Allocator) -> &[String]| {
        frames.clone().find_map(|frame| {
            let is_its = |of: &&Allocator| own(of).iter().any(|begin| frame.starts_with(&**begin));
            ALLOCATORS.iter().find(is_its)
        })
    };
    innermost(|of| &of.frames).or_else(|| innermost(|of| &of.shared))
}

/// Returns whether the program asked the allocator to give memory back.
fn is_asked<'f>(allocator: &Allocator, mut frames: impl Iterator<Item = &'f str>) -> bool {
    let is = |frame: &str| allocator.asked.iter().any(|of| frame.starts_with(&**of));
    frames.any(is)
}

/// Returns the name of the allocator that gave memory back by itself, so that its setting may keep the memory.
pub(super) fn keeper<'f>(frames: impl Iterator<Item = &'f str> + Clone) -> Option<&'static str> {
    let allocator = allocator(frames.clone())?;
    (!is_asked(allocator, frames)).then_some(&allocator.name)
}

/// Finds the setting for this kind of advice at a site. Frames are given innermost first.
pub(super) fn knob<'f>(kind: &str, frames: impl Iterator<Item = &'f str> + Clone) -> Option<Knob> {
    let allocator = allocator(frames.clone())?;
    if kind != "free" && is_asked(allocator, frames) {
        return None;
    }
    let known = allocator.knob.iter().find(|knob| knob.kinds.iter().any(|of| of == kind))?;
    Some(Knob {
        allocator: allocator.name.clone(),
        set: [&known.set].into_iter().chain(&known.also).cloned().collect(),
        memory: known.memory.clone(),
        source: allocator.source.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_found_by_the_frames_between_the_call_and_the_program() {
        let set = |kind: &str, frames: &[&str]| {
            let knob = knob(kind, frames.iter().copied());
            knob.map(|knob| (knob.allocator, knob.set[0].clone()))
        };
        let jemalloc = ["__madvise", "je_pages_purge_forced", "pac_decay", "main"];
        let (name, value) = set("keep", &jemalloc).unwrap();
        assert_eq!(name, "jemalloc");
        assert!(value.starts_with("MALLOC_CONF=dirty_decay_ms:"));
        // Frames of the C library above an allocator's don't make the site the C library's.
        let rust = ["__madvise", "_rjem_je_pages_purge_forced", "libc.so.6+0x10", "main"];
        assert_eq!(set("keep", &rust).unwrap().0, "jemalloc in Rust");
        assert_eq!(set("cache", &["__munmap", "munmap_chunk", "main"]).unwrap().0, "glibc");
        // A runtime that frees by the C library follows the C library's setting.
        let node =
            ["brk", "sbrk", "systrim.constprop.0", "_int_free", "v8::internal::BackingStore"];
        assert_eq!(set("keep", &node).unwrap().0, "glibc");
        let other = ["brk", "sbrk", "tcmalloc::SystemRelease", "main"];
        assert_eq!(set("keep", &other).unwrap().0, "tcmalloc of gperftools");
        let unnamed = ["brk", "sbrk", "libc.so.6+0x9a2b1", "main"];
        assert_eq!(set("keep", &unnamed).unwrap().0, "glibc");
        // A program may have an allocator of its own above this call.
        assert_eq!(set("keep", &["brk", "sbrk", "main"]), None);
        // The program itself asks for this, whatever the settings are.
        let go = ["runtime.madvise", "runtime.(*pageAlloc).scavenge.func1"];
        assert_eq!(set("free", &go).unwrap().0, "Go");
        assert_eq!(set("keep", &go), None);
        let freed = [go[0], go[1], "runtime.runtime_debug_freeOSMemory.func1"];
        assert_eq!(set("keep", &freed), None);
        assert_eq!(set("free", &freed).unwrap().1, "GODEBUG=madvdontneed=0");
        assert_eq!(set("keep", &["__madvise", "systrim", "malloc_trim", "main"]), None);
        // jemalloc has no setting for this, and the second stack has no allocator.
        assert_eq!(set("huge", &jemalloc), None);
        assert_eq!(set("keep", &["__madvise", "main"]), None);
    }

    #[test]
    fn every_entry_can_be_followed() {
        for allocator in ALLOCATORS.iter() {
            assert!(allocator.source.starts_with("https://"), "{allocator:?}");
            for knob in &allocator.knob {
                for set in [&knob.set].into_iter().chain(&knob.also) {
                    let (name, value) = set.split_once('=').expect("NAME=VALUE");
                    assert!(!name.is_empty() && !value.is_empty(), "{set}");
                }
                assert!(!knob.memory.is_empty() && !knob.kinds.is_empty(), "{allocator:?}");
            }
        }
    }
}
