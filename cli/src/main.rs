//! The command `quell`; the library contains everything else.

fn main() -> std::process::ExitCode {
    quell_cli::main()
}
