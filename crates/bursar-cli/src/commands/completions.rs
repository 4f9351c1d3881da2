//! `bursar completions` and `bursar man`: completion scripts and manual pages, made from the command line's definition.

use crate::failure::Failure;
use crate::output::{FAINT, Show};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use serde::Serialize;
use std::io::{Result, Write};
use std::path::PathBuf;

pub(crate) const COMPLETION_EXAMPLES: &str = "\
Examples:
  bursar completions bash > ~/.local/share/bash-completion/completions/bursar
  bursar completions zsh > ~/.zfunc/_bursar
  bursar completions fish > ~/.config/fish/completions/bursar.fish";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  bursar man | man -l -
  bursar man fit | man -l -
  bursar man --to ~/.local/share/man/man1";

/// The completion script of a shell.
#[derive(Debug, Serialize)]
pub(crate) struct Script {
    shell: String,
    script: String,
}

/// Generates the completion script of a shell for `bursar`.
pub(crate) fn script(mut bursar: Command, shell: Shell) -> Script {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut bursar, "bursar", &mut script);
    Script { shell: shell.to_string(), script: String::from_utf8_lossy(&script).into_owned() }
}

impl Show for Script {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        out.write_all(self.script.as_bytes())
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The command whose page is wanted, such as `fit` or `bench pairs`; that of `bursar` by default.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Write the pages of all commands into this folder instead.
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    to: Option<PathBuf>,
}

/// Pages of the manual, and the folder that they were written to.
#[derive(Debug, Serialize)]
pub(crate) struct Manual {
    to: Option<PathBuf>,
    pages: Vec<Page>,
}

#[derive(Debug, Serialize)]
struct Page {
    /// The name of the page, such as `bursar-fit.1`.
    name: String,
    page: String,
}

/// Generates the pages of `bursar` that `args` names, and writes them if it names a folder.
pub(crate) fn manual(bursar: Command, args: &ManArgs) -> std::result::Result<Manual, Failure> {
    let mut bursar = bursar.disable_help_subcommand(true);
    bursar.build();
    let mut pages = Vec::new();
    match &args.to {
        Some(folder) => {
            pages_below(&bursar, &mut pages)?;
            let write = |page: &Page| std::fs::write(folder.join(&page.name), &page.page);
            std::fs::create_dir_all(folder)
                .and_then(|()| pages.iter().try_for_each(write))
                .map_err(|error| Failure::File { path: folder.clone(), error })?;
        }
        None => {
            let named = args.command.iter().try_fold(&bursar, |command, name| command.find_subcommand(name));
            let named = named.ok_or(Failure::Usage("there is no such command"))?;
            pages.push(page(named)?);
        }
    }
    Ok(Manual { to: args.to.clone(), pages })
}

/// Generates the pages of a command and of its visible subcommands.
fn pages_below(command: &Command, pages: &mut Vec<Page>) -> std::result::Result<(), Failure> {
    pages.push(page(command)?);
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| pages_below(command, pages))
}

fn page(command: &Command) -> std::result::Result<Page, Failure> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command.clone()).title(name.to_uppercase()).render(&mut page).map_err(Failure::Output)?;
    Ok(Page { name: format!("{name}.1"), page: String::from_utf8_lossy(&page).into_owned() })
}

impl Show for Manual {
    fn show(&self, out: &mut dyn Write) -> Result<()> {
        let Some(folder) = &self.to else {
            return self.pages.iter().try_for_each(|page| out.write_all(page.page.as_bytes()));
        };
        let written = |page: &Page| writeln!(out, "{FAINT}page:{FAINT:#} {}", folder.join(&page.name).display());
        self.pages.iter().try_for_each(written)
    }
}
