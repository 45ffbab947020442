//! The built-in machine, kernel and policy files.

/// The name and text of every built-in machine file.
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

/// The name and text of every built-in kernel file.
pub static KERNELS: &[(&str, &str)] = &[
    ("quell-vm", include_str!("../../kernels/quell-vm.toml")),
    ("linux-4.13", include_str!("../../kernels/linux-4.13.toml")),
    ("linux-5.1", include_str!("../../kernels/linux-5.1.toml")),
    ("linux-6.5", include_str!("../../kernels/linux-6.5.toml")),
    ("linux-6.9", include_str!("../../kernels/linux-6.9.toml")),
    ("linux-6.18", include_str!("../../kernels/linux-6.18.toml")),
];

/// The name and text of every built-in policy file.
pub static POLICIES: &[(&str, &str)] = &[
    ("quell", include_str!("../../policies/quell.toml")),
    ("linux", include_str!("../../policies/linux.toml")),
    ("linux-4.10", include_str!("../../policies/linux-4.10.toml")),
    (
        "linux-invlpgb",
        include_str!("../../policies/linux-invlpgb.toml"),
    ),
    ("linux-tlbi", include_str!("../../policies/linux-tlbi.toml")),
    (
        "linux-local-tlbi",
        include_str!("../../policies/linux-local-tlbi.toml"),
    ),
    ("latr", include_str!("../../policies/latr.toml")),
    ("rar", include_str!("../../policies/rar.toml")),
];
