//! The machines that come with the crate.

use super::MachineFile;

macro_rules! built_in_files {
    ($($name:literal),*) => {
        /// Name and text of every built-in machine file.
        pub static BUILT_IN: &[(&str, &str)] = &[$((
            $name,
            include_str!(concat!("../../machines/", $name, ".toml")),
        )),*];
    };
}

built_in_files!(
    "haswell-server",
    "skylake-laptop-kvm",
    "milan",
    "snapdragon-888",
    "kunpeng-920",
    "xeon-6430-cxl"
);

/// A built-in machine by its name; `None` if there is none of that name.
pub fn built_in(name: &str) -> Option<MachineFile> {
    let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    // A test reads every built-in file.
    MachineFile::parse(&format!("{name}.toml"), text).ok()
}
