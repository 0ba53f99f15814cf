//! The command line, made from the table of settings.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command};
use impasto::generate::settings::{Group, Setting, SettingKind, Settings, SettingsError, TABLE};

use super::peers::lacks;
use super::serve::{SERVE_HELP, Serve};

const EXIT_CODES: &str = "\
Exit codes: 0 a picture was written, 1 it failed or was refused, 2 bad arguments, 130 interrupted.

Settings: lines such as `steps = 30` in ~/.config/impasto/config.toml (or $XDG_CONFIG_HOME/impasto/config.toml), over them
variables such as IMPASTO_STEPS=30, over them flags. IMPASTO_CPU=amx|avx512bf16|avx512|avx2|portable forces an instruction path.

Results go to stdout, everything else to stderr; NO_COLOR is honoured. Nothing touches the network but `serve`, which listens where it is told to.";

/// The whole command: settings at the root and below `generate`, and the other subcommands.
pub fn command(others: impl FnOnce(Command) -> Command) -> Command {
    let root = Command::new("impasto")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Words to pictures on whatever hardware it finds, and it always finishes.")
        .long_about(
            "Words to pictures on whatever hardware it finds, and it always finishes.\n\n  \
             impasto a red house under a yellow sun by the sea                    the model inside\n  \
             impasto -m model.safetensors -p \"a lighthouse at dawn\" -o dawn.png   a Stable Diffusion model",
        )
        .after_help(EXIT_CODES)
        .args_conflicts_with_subcommands(true)
        .args(arguments());
    let generate = Command::new("generate")
        .about("Make pictures; what happens without a subcommand too")
        .after_help(EXIT_CODES)
        .args(arguments());
    let device = Arg::new("device")
        .long("device")
        .value_name("NAME:memory=SIZE,...")
        .action(ArgAction::Append)
        .help("Plan for a machine with this device instead of this machine's, such as vulkan0:memory=8GiB,max-buffer=1GiB; may be given several times");
    let plan = Command::new("plan")
        .about("Say what `generate` would do with the same arguments: where, in how much memory, how long. Nothing is loaded")
        .after_help("Exit codes: 0 it fits, 1 it does not or something failed, 2 bad arguments.")
        .args(arguments())
        .arg(device);
    let with_file = |name: &'static str, about: &'static str, what: &'static str| {
        let file = Arg::new("file").value_name("FILE").required(true).help(what).value_hint(clap::ValueHint::FilePath);
        Command::new(name).about(about).after_help(EXIT_CODES).arg(file).args(TABLE.iter().map(argument))
    };
    let kept = "The file that a run leaves beside its picture: picture.latent.safetensors";
    let resume = with_file("resume", "Go on with a run that was killed or failed, from its last finished step", kept);
    let decode = with_file("decode", "Make the picture of a run as it stands, without another step", kept);
    let again =
        with_file("again", "Make a picture again by what it says of itself", "A PNG, JPEG or WebP that impasto made");
    let of_server =
        |setting: &&Setting| matches!(setting.group, Group::Model | Group::Machine) || setting.name == "verbose";
    let serve = Serve::augment_args(Command::new("serve"))
        .about("Serve pictures over HTTP: a page, and APIs that clients know")
        .after_help(SERVE_HELP)
        .args(TABLE.iter().filter(of_server).map(argument));
    let with_pictures =
        root.subcommand(generate).subcommand(resume).subcommand(decode).subcommand(again).subcommand(plan);
    others(with_pictures.subcommand(serve))
}

/// The file that `resume`, `decode` and `again` take.
pub fn file(matches: &ArgMatches) -> PathBuf {
    matches.get_one::<String>("file").map(PathBuf::from).unwrap_or_default()
}

/// The devices that `plan` is to plan for.
pub fn imagined(matches: &ArgMatches) -> Vec<String> {
    matches.get_many::<String>("device").map_or(vec![], |given| given.cloned().collect())
}

fn arguments() -> impl Iterator<Item = Arg> {
    let words = Arg::new("words")
        .value_name("PROMPT")
        .help("What to show, as -p; quotes are not needed")
        .num_args(0..)
        .conflicts_with("prompt");
    TABLE.iter().map(argument).chain([words])
}

fn argument(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name)
        .long(setting.flag())
        .short(setting.short)
        .help(setting.help.trim())
        .help_heading(setting.group.heading());
    let other = if setting.flag() == setting.name { setting.name.replace('_', "-") } else { setting.name.to_owned() };
    let arg = if other == setting.flag() { arg } else { arg.alias(other) };
    match setting.kind {
        SettingKind::Flag => arg.action(ArgAction::SetTrue),
        SettingKind::Choice(names) => arg.value_name(setting.value).value_parser(PossibleValuesParser::new(names)),
        SettingKind::Whole | SettingKind::Number => arg.value_name(setting.value).allow_negative_numbers(true),
        // A prompt may begin with a dash.
        SettingKind::Text => arg.value_name(setting.value).allow_hyphen_values(true),
        SettingKind::List => arg.value_name(setting.value).action(ArgAction::Append),
        SettingKind::File => arg.value_name(setting.value).value_hint(clap::ValueHint::AnyPath),
    }
}

/// The settings that flags ask for.
pub fn settings(matches: &ArgMatches) -> Result<Settings, SettingsError> {
    let mut settings = Settings::default();
    // A command may take some of them only.
    for setting in TABLE.iter().filter(|setting| matches.ids().any(|id| id == setting.name)) {
        match setting.kind {
            SettingKind::Flag => {
                if matches.get_flag(setting.name) {
                    settings.set(setting.name, "true")?;
                }
            }
            SettingKind::List => {
                if let Some(texts) = matches.get_many::<String>(setting.name) {
                    settings.set(setting.name, &texts.map(String::as_str).collect::<Vec<_>>().join(","))?;
                }
            }
            _ => {
                if let Some(text) = matches.get_one::<String>(setting.name) {
                    settings.set(setting.name, text)?;
                }
            }
        }
    }
    if let Ok(Some(words)) = matches.try_get_many::<String>("words") {
        settings.set("prompt", &words.map(String::as_str).collect::<Vec<_>>().join(" "))?;
    }
    Ok(settings)
}

/// Asks about words that begin with what was probably meant as a command: `impasto genrate`.
pub fn misspelt(command: &Command, matches: &ArgMatches) -> Option<String> {
    let mut words = matches.try_get_many::<String>("words").ok()??;
    let (first, alone) = (words.next()?, words.next().is_none());
    let near = |name: &&str| match edits(first, name) {
        0 => false,
        1 => alone || name.len() > 5,
        2 => name.len() > 5,
        _ => false,
    };
    let meant = command.get_subcommands().map(Command::get_name).find(near)?;
    Some(format!("there is no command '{first}': did you mean `impasto {meant}`? To paint it, write impasto -p TEXT"))
}

/// Letters to add, leave out, change or swap with their neighbour to make one word the other.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                _ => {
                    let changed = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swapped = if swapped { table[i - 2][j - 2] + 1 } else { usize::MAX };
                    changed.min(swapped).min(table[i - 1][j] + 1).min(table[i][j - 1] + 1)
                }
            };
        }
    }
    table[a.len()][b.len()]
}

/// What clap says, and where a flag is one of stable-diffusion.cpp's that we lack, that.
pub fn explain(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => lacks(flag),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_of_commands_are_asked_about_and_prompts_are_painted() {
        let command = command(|root| root.subcommand(Command::new("inspect")).subcommand(Command::new("devices")));
        for (line, asked) in [
            ("genrate", true),
            ("genrate a red house", true),
            ("paln", true),
            ("plane over the sea", false),
            ("inspct", true),
            ("a red house", false),
            ("house", false),
        ] {
            let args = std::iter::once("impasto").chain(line.split(' '));
            let matches = command.clone().try_get_matches_from(args).expect("a prompt");
            assert_eq!(misspelt(&command, &matches).is_some(), asked, "{line}");
            assert_eq!(settings(&matches).expect("settings").prompt.as_deref(), Some(line));
        }
    }
}
