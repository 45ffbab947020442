//! The built-in machine, kernel and policy files.

/// Lists the files of a folder with these names: names and texts.
macro_rules! files {
    ($folder:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../", $folder, "/", $name, ".toml")))),*]
    };
}

/// The name and text of every built-in machine file.
pub static BUILT_IN: &[(&str, &str)] = files!("machines":
    "haswell-server" "skylake-laptop" "milan" "snapdragon-888" "kunpeng-920" "xeon-6430-cxl");

/// The name and text of every built-in kernel file.
pub static KERNELS: &[(&str, &str)] = files!("kernels":
    "quell-vm" "linux-4.13" "linux-5.1" "linux-6.5" "linux-6.9" "linux-6.18");

/// The name and text of every built-in policy file.
pub static POLICIES: &[(&str, &str)] = files!("policies":
    "quell" "linux" "linux-4.10" "linux-invlpgb" "linux-tlbi" "linux-local-tlbi" "latr" "rar" "abis");
