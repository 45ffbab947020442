//! The command `quell`: see the library.

fn main() -> std::process::ExitCode {
    quell_cli::main()
}
