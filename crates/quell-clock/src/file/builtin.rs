//! The machines that come with the crate.

use super::MachineFile;

/// Name and text of every built-in machine file.
pub static BUILT_IN: &[(&str, &str)] = &[
    (
        "haswell-server",
        include_str!("../../machines/haswell-server.toml"),
    ),
    (
        "skylake-laptop",
        include_str!("../../machines/skylake-laptop.toml"),
    ),
    ("milan", include_str!("../../machines/milan.toml")),
    (
        "snapdragon-888",
        include_str!("../../machines/snapdragon-888.toml"),
    ),
    (
        "kunpeng-920",
        include_str!("../../machines/kunpeng-920.toml"),
    ),
    (
        "xeon-6430-cxl",
        include_str!("../../machines/xeon-6430-cxl.toml"),
    ),
];

/// A built-in machine by its name; `None` if there is none of that name.
pub fn built_in(name: &str) -> Option<MachineFile> {
    let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name)?;
    // A test reads every built-in file.
    MachineFile::parse(&format!("{name}.toml"), text).ok()
}
