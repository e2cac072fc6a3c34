//! Checks that `docs/commands.md` uses every command of the gateway and of the kubectl plugin.
//!
//! The comments above its blocks are those of the guide, and the tests of the plugin run its last section.

use std::collections::BTreeSet;

use clap::Subcommand as _;

use crate::repository::files;

/// The commands that lines of the page's blocks begin with.
fn used(page: &str, program: &str) -> BTreeSet<String> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(program)?.strip_prefix(' '));
    lines.filter_map(|rest| rest.split_whitespace().next()).map(str::to_owned).collect()
}

fn names(command: &clap::Command) -> BTreeSet<String> {
    command.get_subcommands().map(|one| one.get_name().to_owned()).filter(|name| name != "help").collect()
}

#[test]
fn the_tour_uses_every_command() {
    let page = files().into_iter().find(|file| file.path == "docs/commands.md").expect("the page").text;
    let of_gateway = names(&tidegate::cli::command());
    assert!(of_gateway.len() > 25, "{of_gateway:?}");
    assert_eq!(used(&page, "tidegate"), of_gateway);
    // The plugin adds the part of `explain` that queries a gateway.
    let mut of_plugin = names(&tidegate_cli::Command::augment_subcommands(clap::Command::new("kubectl")));
    of_plugin.insert("explain".to_owned());
    assert_eq!(used(&page, "kubectl tidegate"), of_plugin);
}
