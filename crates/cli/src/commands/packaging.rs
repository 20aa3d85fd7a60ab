//! `completions` and `man`: what a package installs beside the program.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "afterimage", &mut text);
    std::io::stdout().write_all(&text).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Writes one page for the program and one for each command.
pub(crate) fn man(folder: &Path) -> Result<ExitCode> {
    std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    clap_mangen::generate_to(Args::command(), folder)
        .and_then(|()| rename_extra(folder))
        .with_context(|| format!("pages cannot be written to {}", folder.display()))?;
    eprintln!("pages: {}", folder.display());
    Ok(ExitCode::SUCCESS)
}

/// What stands below the options is examples and exit codes: notes, as manual pages call them.
fn rename_extra(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("afterimage"));
        if ours && path.extension().is_some_and(|ending| ending == "1") {
            let text = std::fs::read_to_string(&path)?;
            std::fs::write(&path, text.replace(".SH EXTRA\n", ".SH NOTES\n"))?;
        }
    }
    Ok(())
}
