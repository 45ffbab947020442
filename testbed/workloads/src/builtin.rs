//! The built-in workload files, read at first use.

use crate::read::read;
use crate::script::Script;
use alloc::boxed::Box;
use once_cell::race::OnceBox;

/// A built-in file.
pub(crate) struct File {
    pub name: &'static str,
    pub text: &'static str,
    read: OnceBox<Option<Script>>,
}

impl File {
    const fn new(name: &'static str, text: &'static str) -> Self {
        File { name, text, read: OnceBox::new() }
    }

    /// Returns its content. A test reads every file, so none is missing.
    pub fn script(&self) -> Option<&Script> {
        self.read.get_or_init(|| Box::new(read(self.name, self.text).ok())).as_ref()
    }
}

macro_rules! files {
    ($($name:literal,)*) => {
        /// Every built-in file, by name.
        pub(crate) static FILES: [File; [$($name),*].len()] = [
            $(File::new($name, include_str!(concat!("../workloads/", $name, ".toml"))),)*
        ];
    };
}

files! {
    "dontneed", "fileio", "swap", "migrate", "demand", "pingpong", "readers", "crowd", "protect", "munmap", "scattered",
    "collector", "promote",
}
