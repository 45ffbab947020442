//! Writes a man page of each command into a folder: `cargo run --package quell-cli --example man -- FOLDER`.

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.ok_or_else(|| std::io::Error::other("name a folder"))?;
    std::fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(without_help(quell_cli::command()), folder)
}

/// Leaves out `quell help COMMAND`, which has the same text as the pages of the commands.
fn without_help(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|below| match below.get_name() {
        "help" => below.hide(true),
        _ => without_help(below),
    })
}
