//! Where settings come from besides the command line: the settings file and `IMPASTO_*` variables.

use std::path::{Path, PathBuf};

use super::{Setting, Settings, SettingsError};

/// Variables that begin like settings and are none: the instruction path, and what a parent tells its trial.
const OTHER_VARIABLES: [&str; 3] = ["IMPASTO_CPU", "IMPASTO_TRIAL", "IMPASTO_WORKER"];

impl Settings {
    /// The settings of a TOML text: `name = value` lines.
    pub fn from_toml(toml_text: &str, path: &Path) -> Result<Settings, SettingsError> {
        let file = |problem: String| SettingsError::File { path: path.display().to_string(), problem };
        let table: toml::Table =
            toml_text.parse().map_err(|e: toml::de::Error| file(e.to_string().trim_end().into()))?;
        let mut settings = Settings::default();
        for (name, value) in table {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(n) => n.to_string(),
                toml::Value::Float(x) => x.to_string(),
                toml::Value::Boolean(b) => b.to_string(),
                other => return Err(file(format!("{name} is a {}, no plain value", other.type_str()))),
            };
            let line = text_line(toml_text, &name);
            settings.set(&name, &text).map_err(|error| file(format!("line {line}: {error}")))?;
        }
        Ok(settings)
    }
}

/// The line of a key, from 1.
fn text_line(text: &str, key: &str) -> usize {
    let names = |line: &str| line.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key);
    text.lines().position(names).map_or(1, |at| at + 1)
}

/// Lays flags over variables over the settings file. Warnings say what was passed over.
pub fn layered(flags: &Settings) -> Result<(Settings, Vec<String>), SettingsError> {
    let mut warnings = vec![];
    let file = match config_path() {
        None => {
            warnings.push("neither XDG_CONFIG_HOME nor HOME is set: no settings file is looked for".into());
            Settings::default()
        }
        Some(path) => match std::fs::read_to_string(&path) {
            Ok(text) => Settings::from_toml(&text, &path)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Settings::default(),
            Err(e) => {
                warnings.push(format!("settings file {} not used: {e}", path.display()));
                Settings::default()
            }
        },
    };
    let utf8 =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let (variables, unknown) = from_variables(utf8)?;
    warnings.extend(unknown.iter().map(|name| format!("{name} is no setting; impasto --help lists them")));
    Ok((flags.over(variables.over(file)), warnings))
}

/// The settings of `IMPASTO_*` variables, and the names of those that are no setting.
pub fn from_variables(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<(Settings, Vec<String>), SettingsError> {
    let (mut settings, mut unknown) = (Settings::default(), vec![]);
    for (name, text) in variables {
        let Some(rest) = name.strip_prefix("IMPASTO_") else { continue };
        if OTHER_VARIABLES.iter().any(|other| name.starts_with(other)) || text.is_empty() {
            continue;
        }
        match Setting::named(&rest.to_lowercase()) {
            Some(_) => settings.set(&rest.to_lowercase(), &text)?,
            None => unknown.push(name),
        }
    }
    unknown.sort();
    Ok((settings, unknown))
}

/// Where the settings file is looked for: `impasto/config.toml` in the folder for configuration, `None` where the system names none.
pub fn config_path() -> Option<PathBuf> {
    let named = |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let folder = if cfg!(windows) {
        named("APPDATA")
    } else {
        // A relative path in XDG_CONFIG_HOME is to be ignored, by its specification.
        named("XDG_CONFIG_HOME").filter(|p| p.is_absolute()).or_else(|| Some(named("HOME")?.join(".config")))
    };
    Some(folder?.join("impasto").join("config.toml"))
}

#[cfg(test)]
mod tests {
    use super::super::TABLE;
    use super::*;

    #[test]
    fn names_and_short_flags_are_unique_and_every_setting_has_help() {
        for (i, a) in TABLE.iter().enumerate() {
            assert!(a.help.len() > 5, "{}", a.name);
            for b in &TABLE[i + 1..] {
                assert_ne!(a.name, b.name);
                assert!(a.short.is_none() || a.short != b.short, "{} and {}", a.name, b.name);
            }
        }
    }

    #[test]
    fn flags_cover_variables_and_variables_cover_the_file() {
        let file = Settings::from_toml("steps = 5\ncfg_scale = 3.5\nforce = true\nclip-l = 'x'", Path::new("c"))
            .expect("it is TOML");
        let vars = [("IMPASTO_STEPS", "6"), ("IMPASTO_SEED", "-1"), ("IMPASTO_STEPPS", "1"), ("HOME", "/")];
        let (vars, unknown) =
            from_variables(vars.map(|(a, b)| (a.to_string(), b.to_string()))).expect("they are right");
        let mut flags = Settings::default();
        flags.set("seed", "7").expect("a number");
        let all = flags.over(vars.over(file));
        assert_eq!((all.steps, all.seed, all.cfg_scale, all.force), (Some(6), Some(7), Some(3.5), Some(true)));
        assert_eq!(all.clip_l, Some("x".into()));
        assert_eq!(unknown, ["IMPASTO_STEPPS"]);
    }

    #[test]
    fn what_cannot_be_is_named_with_its_text_and_the_reason() {
        for (name, text, says) in [
            ("steps", "0", "steps: '0' is not between 1 and 1000"),
            ("steps", "many", "steps: 'many' is no whole number that fits"),
            ("cfg-scale", "nan", "cfg-scale: 'nan' is no number"),
            ("rng", "dice", "rng: 'dice' is not one of cuda, cpu"),
            ("strength", "1.5", "strength: '1.5' is not between 0 and 1"),
            ("no-such", "1", "there is no setting 'no-such'"),
        ] {
            let error = Settings::default().set(name, text).expect_err(text).to_string();
            assert!(error.starts_with(says), "{error}");
        }
        let unknown =
            Settings::from_toml("# mine\nsteps = 3\nstepps = 3", Path::new("config.toml")).expect_err("unknown");
        assert_eq!(
            unknown.to_string(),
            "config.toml: line 3: there is no setting 'stepps'; `impasto --help` lists them"
        );
        for text in ["steps = [1]", "steps = ", "stepps = 3", "steps = 'x'"] {
            assert!(Settings::from_toml(text, Path::new("c")).is_err(), "{text}");
        }
    }
}
