//! `kernels/linux/run`; see its help.

fn main() -> std::process::ExitCode {
    quell_boot::linux::main()
}
