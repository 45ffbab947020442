//! The program `quell-model`: the model's commands.

#[global_allocator]
static ALLOCATOR: quell_model::memory::Allocator = quell_model::memory::Allocator;

fn main() -> std::process::ExitCode {
    quell_model::rest::main()
}
