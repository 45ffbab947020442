//! `quell hunt` as a user runs it, without the emulated machine. `kernels/boot/hunt/check` runs real hunts.

use crate::command::{Ended, Folder, ended};

fn hunt(line: &str) -> Ended {
    let folder = Folder::new();
    folder.write("file", "no kernel");
    folder.write("map", "1000 t f\n");
    let mut command = folder.quell(&format!("hunt {line}"));
    // Without programs nothing can be downloaded.
    ended(command.env("QUELL_HUNT_CACHE", folder.path()).env("PATH", folder.path()))
}

#[test]
fn wrong_arguments_are_refused_and_a_lacking_machine_is_told_with_the_way_to_build_it() {
    for (line, code, part) in [
        ("", 2, "KERNEL"),
        ("/no/such/kernel", 2, "/no/such/kernel: no such file"),
        ("quell --aggressive 10", 2, "--aggressive"),
        ("quell --plain --aggressive 3", 2, "--plain"),
        ("quell --plain --entries", 2, "--entries"),
        ("file --arch aarch64 --nmi 64", 2, "--nmi is for x86_64 alone"),
        ("file --arch aarch64 --entries", 2, "--entries is for x86_64 alone"),
        ("file --boot", 2, "--boot is for aarch64 alone"),
        ("file --hold 64-8", 2, "expected 0 to 100000, or two such numbers as in `8-64`"),
        ("file --hold 0-8", 2, "expected 0 to 100000"),
        ("quell --initrd file", 2, "leave out --initrd"),
        ("file --symbols file", 2, "contains no functions"),
        ("file --skip f", 2, "give --symbols"),
        ("file --frames linux", 2, "give --symbols"),
        ("quell --append rum=munmap", 2, "did you mean `run`?"),
        ("/dev/zero", 2, "/dev/zero: not a regular file"),
        ("file", 1, "quell hunt --setup --arch x86_64"),
        ("file --arch aarch64", 1, "quell hunt --setup --arch aarch64"),
        ("file --arch riscv64", 2, "aarch64"),
        ("file --arch aarch64 --symbols map --skip invlpg@f", 2, "no function is called invlpg"),
        ("--setup", 1, "meson"),
        ("--setup", 1, "setup-boot --hunt"),
    ] {
        hunt(line).code(code).stderr(part);
    }
}
