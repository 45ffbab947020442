//! Checks that pkg-config and CMake find the installation of `scripts/build-c --prefix`, for each architecture.

use crate::support::{build_c, compiler, objects, run, source, tool};
use object::Object;
use std::path::Path;

/// Installs a debug library. Prints a note and returns `None` where it can't be built.
fn installed(target: &str, prefix: &Path) -> Option<()> {
    let prefix = prefix.to_str().expect("text");
    let options = ["--debug", "--target", target, "--prefix", prefix];
    let library = build_c(&[("QUELL_BATCH_SPACES", "2")], &options)?;
    assert_eq!(library, Path::new(prefix).join("lib/libquell_c.a"));
    Some(())
}

/// Returns the architecture of the engine's own member.
fn architecture(library: &Path) -> object::Architecture {
    let data = std::fs::read(library).expect("a library");
    let objects = objects(&data);
    let own = objects.iter().find(|(name, _)| name.starts_with("quell_c"));
    own.expect("the engine's object").1.architecture()
}

fn pkg_config(prefix: &Path, question: &str) -> Option<Vec<String>> {
    let mut pkg_config = tool("pkg-config", "apt install pkg-config")?;
    pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let output = pkg_config.args([question, "quell"]).output().expect("it runs");
    assert!(output.status.success());
    let words = String::from_utf8(output.stdout).expect("text");
    Some(words.split_whitespace().map(str::to_owned).collect())
}

/// The linked program gets batches of two spaces, and the function that a debug library needs.
#[test]
#[ignore = "builds the library for kernels: `cargo xtask ci c`"]
fn pkg_config_and_cmake_find_an_installed_debug_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("quell");
    let Some(()) = installed("x86_64-unknown-none", &prefix) else {
        return;
    };
    let (Some(flags), Some(libraries)) =
        (pkg_config(&prefix, "--cflags"), pkg_config(&prefix, "--libs"))
    else {
        return;
    };
    let program = folder.path().join("left");
    let mut cc = compiler("CC", "cc").expect("found above");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.args(flags).arg(source("tests/c/left.c")).args(libraries);
    let (ok, output) = run(&mut cc);
    assert!(ok, "{output}");
    let (ok, output) = run(&mut std::process::Command::new(&program));
    assert!(!ok && output.contains("quell_panic: the batch at"), "{output}");

    let Some(mut cmake) = tool("cmake", "apt install cmake") else {
        return;
    };
    let left = source("tests/c/left.c");
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(kernel C)\nfind_package(quell 0.8 REQUIRED)\n\
         add_executable(left {})\ntarget_link_libraries(left quell::quell)\n",
        left.display()
    );
    std::fs::write(folder.path().join("CMakeLists.txt"), project).expect("a file");
    let build = folder.path().join("build");
    cmake.arg("-S").arg(folder.path()).arg("-B").arg(&build);
    let (ok, output) = run(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    assert!(ok, "{output}");
    let (ok, output) = run(std::process::Command::new("cmake").arg("--build").arg(&build));
    assert!(ok && build.join("left").exists(), "{output}");
}

#[test]
#[ignore = "builds libraries for two more architectures: `cargo xtask ci c`"]
fn libraries_for_other_architectures_link_to_their_programs() {
    for (target, is, cross) in [
        ("aarch64-unknown-none-softfloat", object::Architecture::Aarch64, "aarch64-linux-gnu-gcc"),
        ("riscv64imac-unknown-none-elf", object::Architecture::Riscv64, "riscv64-linux-gnu-gcc"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(()) = installed(target, folder.path()) else {
            continue;
        };
        assert_eq!(architecture(&folder.path().join("lib/libquell_c.a")), is);
        let Some(mut gcc) = tool(cross, "apt install the cross compiler") else {
            continue;
        };
        let flags = pkg_config(folder.path(), "--cflags").unwrap_or_default();
        gcc.args(["-std=c11", "-ffreestanding", "-Wall", "-Werror", "-fsyntax-only"]).args(flags);
        let (ok, output) = run(gcc.arg(source("tests/c/sizes.c")));
        assert!(ok, "{output}");
    }
}
