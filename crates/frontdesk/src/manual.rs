//! What comes with the command: completions for shells, and manual pages, both from its definition.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, italic, roman};
use std::path::PathBuf;
use std::process::ExitCode;

/// The configuration file as it is shipped, which explains itself.
const CONFIGURATION: &str = include_str!("../../../packaging/frontdesk.toml");

/// Print completions for a shell.
///
/// The package installs them where bash, zsh and fish look for them.
#[derive(clap::Args)]
#[command(after_help = "Example:
  frontdesk completions bash > ~/.local/share/bash-completion/completions/frontdesk")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write the manual pages into a folder, which must exist.
#[derive(clap::Args)]
pub(crate) struct ManualArgs {
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let text = completions_for(args.shell);
    std::io::Write::write_all(&mut std::io::stdout(), &text).context("cannot print the completions")?;
    Ok(ExitCode::SUCCESS)
}

fn completions_for(shell: Shell) -> Vec<u8> {
    // Hidden commands would be completed, too.
    let all = crate::Cli::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    let mut command = clap::Command::new("frontdesk")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .subcommands(shown.cloned());
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "frontdesk", &mut text);
    text
}

pub(crate) fn manual(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let failed = || format!("cannot write manual pages to {}", folder.display());
    clap_mangen::generate_to(crate::Cli::command(), folder).with_context(failed)?;
    std::fs::write(folder.join("frontdesk.toml.5"), configuration_page(CONFIGURATION))
        .with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// The shipped configuration file as a manual page: `# text` explains the `#key = default`s after it, and
/// `#[table]` begins a table.
fn configuration_page(file: &str) -> String {
    let mut page = Roff::new();
    page.control("TH", ["frontdesk.toml", "5", "", concat!("frontdesk ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("frontdesk.toml - configuration of the frontdesk daemon")]);
    page.control("SH", ["DESCRIPTION"]);
    // What explains the next key or table.
    let mut words: Vec<&str> = Vec::new();
    for line in file.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            words.push(text);
            continue;
        }
        let Some(setting) = line.strip_prefix('#').filter(|setting| !setting.is_empty()) else {
            // A blank line, or "#" for one: a paragraph ends.
            if !words.is_empty() {
                page.control("PP", []);
                page.text([roman(std::mem::take(&mut words).join(" "))]);
            }
            continue;
        };
        let explained = std::mem::take(&mut words).join(" ");
        if let Some((key, default)) = setting.split_once(" = ") {
            page.control("TP", []);
            page.text([bold(key), roman(" = "), italic(default)]);
        } else {
            page.control("SS", [setting]);
        }
        if !explained.is_empty() {
            page.text([roman(explained)]);
        }
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("frontdesk-run"), roman("(1)")]);
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        manual(&ManualArgs { folder: folder.path().into() }).unwrap();
        let command = crate::Cli::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut expected: Vec<String> =
            shown.map(|command| format!("frontdesk-{}.1", command.get_name())).collect();
        expected.extend(["frontdesk.1".to_owned(), "frontdesk.toml.5".to_owned()]);
        expected.sort();
        let written = std::fs::read_dir(folder.path()).unwrap();
        let mut written: Vec<String> =
            written.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        written.sort();
        assert_eq!(written, expected);
    }

    #[test]
    fn commands_that_are_shown_are_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completions_for(shell)).unwrap();
            assert!(text.contains("doctor") && text.contains("observe"), "{shell}");
            assert!(
                !text.contains("manual") && !text.contains(frontdesk_guardian::GUARDIAN_ARGUMENT),
                "{shell}"
            );
        }
    }

    #[test]
    fn every_option_is_explained() {
        fn check(command: &clap::Command, path: &str) {
            assert!(command.get_about().is_some(), "{path}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path}: {}", argument.get_id());
            }
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                check(command, &format!("{path} {}", command.get_name()));
            }
        }
        let mut command = crate::Cli::command();
        command.build();
        check(&command, "frontdesk");
    }

    #[test]
    fn the_configuration_page_has_every_key_with_its_default_and_meaning() {
        let page = configuration_page("# Of all.\n\n#[one]\n# What it\n# does. .5 to 1.\n#key = \"500us\"\n");
        let expected = [
            ".SH DESCRIPTION\n.PP\nOf all.\n.SS [one]\n",
            ".TP\n\\fBkey\\fR = \\fI\"500us\"\\fR\nWhat it does. .5 to 1.\n",
        ];
        for text in expected {
            assert!(page.contains(text), "{text:?} in {page:?}");
        }
        let page = configuration_page(CONFIGURATION);
        for line in CONFIGURATION.lines() {
            let setting = line.strip_prefix('#').filter(|setting| !setting.starts_with([' ', '[']));
            if let Some((key, _)) = setting.and_then(|setting| setting.split_once(" = ")) {
                assert!(page.contains(&format!("\\fB{key}\\fR = ")), "{key}");
            }
        }
    }
}
