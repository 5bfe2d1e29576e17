//! Completions and the manual page, generated from the arguments.

use clap::CommandFactory;

use super::args::{Args, Completions};
use super::exit::{self, Failure};
use super::output::Output;

pub fn completions(completions: &Completions, out: &mut Output) -> Result<u8, Failure> {
    // Into a buffer first: the generator cannot stop when its output is closed.
    let mut text = Vec::new();
    clap_complete::generate(completions.shell, &mut Args::command(), "fairlock", &mut text);
    out.raw(&text)?;
    Ok(exit::OK)
}

/// Prints one page: the command, then each of its subcommands.
pub fn man(out: &mut Output) -> Result<u8, Failure> {
    let mut text = Vec::new();
    let command = Args::command();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for sub in command.get_subcommands() {
        let page = clap_mangen::Man::new(sub.clone().disable_help_flag(true));
        writeln_section(&mut text, sub.get_name());
        page.render_description_section(&mut text)?;
        page.render_synopsis_section(&mut text)?;
        page.render_options_section(&mut text)?;
        page.render_extra_section(&mut text)?;
    }
    out.raw(&text)?;
    Ok(exit::OK)
}

fn writeln_section(text: &mut Vec<u8>, name: &str) {
    text.extend(format!(".SH \"FAIRLOCK {}\"\n", name.to_uppercase()).into_bytes());
}
