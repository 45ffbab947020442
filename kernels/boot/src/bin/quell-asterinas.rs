//! `kernels/asterinas/run`; see its help.

fn main() -> std::process::ExitCode {
    quell_boot::asterinas::main()
}
