//! Types of tensors by name: `^vae\.=f16,attn=q8_0`.

use std::str::FromStr;

use impasto_graph::{DType, Storage};
use regex::Regex;

use super::ConvertError;

/// Rules that give tensors a type by their names, as stable-diffusion.cpp reads them: regular expressions that are searched for anywhere in a
/// name, the first that is found decides.
///
/// ```
/// use impasto_weights::TypeRules;
/// let rules: TypeRules = r"^vae\.=f16,attn=q8_0".parse()?;
/// assert_eq!(rules.find("blocks.1.attn.weight").map(|(_, storage)| storage.name()), Some("q8_0"));
/// assert!("attn=q9".parse::<TypeRules>().is_err());
/// # Ok::<(), impasto_weights::ConvertError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TypeRules(Vec<(Regex, Storage)>);

impl TypeRules {
    /// The first rule that matches a name: its number, and the type.
    pub fn find(&self, name: &str) -> Option<(usize, Storage)> {
        self.0
            .iter()
            .enumerate()
            .find(|(_, (pattern, _))| pattern.is_match(name))
            .map(|(i, (_, storage))| (i, *storage))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn storages(&self) -> impl Iterator<Item = Storage> + '_ {
        self.0.iter().map(|(_, storage)| *storage)
    }

    /// The rules that decided nothing.
    pub(super) fn unmatched(&self, matched: &[bool]) -> Vec<String> {
        let rules = self.0.iter().zip(matched).filter(|(_, matched)| !**matched);
        rules.map(|((pattern, storage), _)| format!("{pattern}={storage}")).collect()
    }
}

impl FromStr for TypeRules {
    type Err = ConvertError;

    fn from_str(text: &str) -> Result<TypeRules, ConvertError> {
        let mut rules = vec![];
        for rule in text.split(',').filter(|rule| !rule.trim().is_empty()) {
            let wrong = |problem: String| ConvertError::Rule { rule: rule.into(), problem };
            // A pattern may have the sign too; a type has none.
            let (pattern, storage) = rule
                .rsplit_once('=')
                .ok_or_else(|| wrong("is no PATTERN=TYPE; commas stand between rules, not inside them".into()))?;
            let pattern = Regex::new(pattern.trim()).map_err(|error| wrong(format!("has a wrong pattern: {error}")))?;
            rules.push((pattern, parse_storage(storage.trim()).map_err(wrong)?));
        }
        Ok(TypeRules(rules))
    }
}

/// A type of weights by any of the names that people have for it: `q4_K` and `Q4_K` are `q4_k`, `fp16` is `f16`.
pub fn parse_storage(text: &str) -> Result<Storage, String> {
    let lower = text.to_lowercase();
    let name = match lower.as_str() {
        "fp32" => "f32",
        "fp16" => "f16",
        "fp8" | "f8_e4m3fn" | "fp8_e4m3fn" | "float8_e4m3fn" => "f8_e4m3",
        "fp8_e5m2" | "float8_e5m2" => "f8_e5m2",
        name => name,
    };
    name.parse().ok().filter(|storage: &Storage| storage.is_float()).ok_or_else(|| {
        let names = Storage::ALL.iter().filter(|s| **s != Storage::Dense(DType::I32)).map(|s| s.name());
        format!("'{text}' is no type of weights ({})", names.collect::<Vec<_>>().join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_is_found_decides() {
        let rules: TypeRules = r"^vae\.=f16, attn\d=Q4_K,attn=fp8_e5m2,nothing=q8_0".parse().expect("they are good");
        let name = |text| rules.find(text).map(|(_, storage)| storage.name());
        assert_eq!(name("vae.attn1"), Some("f16"));
        assert_eq!(name("x.vae.attn1"), Some("q4_k"));
        assert_eq!(name("x.attn"), Some("f8_e5m2"));
        assert_eq!(name("x"), None);
        assert_eq!(rules.unmatched(&[true, true, true, false]), ["nothing=q8_0"]);
        for wrong in ["q8_0", "(=q8_0", "x=i32", "x="] {
            assert!(wrong.parse::<TypeRules>().is_err(), "{wrong}");
        }
    }
}
