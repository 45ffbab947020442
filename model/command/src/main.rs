//! The program `quell-model`: the model's commands.

fn main() -> std::process::ExitCode {
    quell_model::rest::main()
}
