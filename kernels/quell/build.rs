//! Chooses the linker scripts.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap();
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    for (bin, script) in [("quell-kernel", arch.as_str()), ("quell-user", "user")] {
        let script = format!("{root}/link/{script}.ld");
        println!("cargo:rerun-if-changed={script}");
        println!("cargo:rustc-link-arg-bin={bin}=-T{script}");
    }
    // The code is position independent, because it's above 2 GB, but the images aren't.
    println!("cargo:rustc-link-arg-bins=-no-pie");
    println!("cargo:rustc-link-arg-bins=-zmax-page-size=4096");
    // We relocate nothing, so nothing becomes read-only later.
    println!("cargo:rustc-link-arg-bins=-znorelro");
}
