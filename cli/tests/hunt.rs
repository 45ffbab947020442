//! `quell hunt` as a user runs it, without the emulated machine. `kernels/boot/hunt/check` runs real hunts.

use std::process::{Command, Output};

fn hunt(arguments: &[&str]) -> (Option<i32>, String) {
    let nowhere = tempfile::tempdir().expect("a folder");
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_quell"))
        .arg("hunt")
        .args(arguments)
        .env("QUELL_HUNT_CACHE", nowhere.path())
        // Without programs nothing can be downloaded.
        .env("PATH", nowhere.path())
        .output()
        .expect("it starts");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn wrong_arguments_are_refused() {
    let here = env!("CARGO_MANIFEST_DIR").to_string() + "/Cargo.toml";
    for (arguments, part) in [
        (&[][..], "KERNEL"),
        (&["/no/such/kernel"], "/no/such/kernel: no such file"),
        (&["quell", "--aggressive", "10"], "--aggressive"),
        (&["quell", "--plain", "--aggressive", "3"], "--plain"),
        (&["quell", "--initrd", &here], "leave out --initrd"),
        (&[&here, "--symbols", &here], "contains no functions"),
        (&[&here, "--skip", "f"], "give --symbols"),
        (&[&here, "--frames", "linux-6.12"], "give --symbols"),
        (&["quell", "--append", "rum=munmap"], "did you mean `run`?"),
        (&["/dev/zero"], "/dev/zero: not a regular file"),
    ] {
        let (code, text) = hunt(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {text}");
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}

#[test]
fn without_the_machine_a_hunt_tells_how_to_build_it() {
    let here = env!("CARGO_MANIFEST_DIR").to_string() + "/Cargo.toml";
    let (code, text) = hunt(&[&here]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("quell hunt --setup"), "{text}");
    let (code, text) = hunt(&["--setup"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("meson") && text.contains("setup-boot --hunt"), "{text}");
}
