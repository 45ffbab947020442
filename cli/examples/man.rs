//! Writes a man page of each command into a folder: `cargo run --package quell-cli --example man -- FOLDER`.

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1);
    let folder = folder.ok_or_else(|| std::io::Error::other("name a folder"))?;
    std::fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(quell_cli::command(), folder)
}
