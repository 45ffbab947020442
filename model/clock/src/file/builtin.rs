//! The built-in machine files.

/// Name and text of every built-in machine file.
pub static BUILT_IN: &[(&str, &str)] = &[
    (
        "haswell-server",
        include_str!("../../../machines/haswell-server.toml"),
    ),
    (
        "skylake-laptop",
        include_str!("../../../machines/skylake-laptop.toml"),
    ),
    ("milan", include_str!("../../../machines/milan.toml")),
    (
        "snapdragon-888",
        include_str!("../../../machines/snapdragon-888.toml"),
    ),
    (
        "kunpeng-920",
        include_str!("../../../machines/kunpeng-920.toml"),
    ),
    (
        "xeon-6430-cxl",
        include_str!("../../../machines/xeon-6430-cxl.toml"),
    ),
];
