//! Names of the files that pictures are written to.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use impasto_store::Claim;

use crate::picture::{Format, PictureError};
use crate::saved_run::run_file;

/// Where pictures go.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    path: PathBuf,
    force: bool,
    named: bool,
    /// Files of unfinished runs are not overwritten either.
    spares_runs: bool,
    given: HashSet<PathBuf>,
}

impl OutputFiles {
    /// `path` is what the user named; by default `output.png`. Refuses at once what could not be written in the end.
    pub fn new(path: Option<&Path>, count: usize, force: bool) -> Result<OutputFiles, PictureError> {
        OutputFiles::named_or(path, "output.png", count, force)
    }

    /// The same with another name where the user has named none; it takes a number if there is such a file.
    pub fn named_or(path: Option<&Path>, usual: &str, count: usize, force: bool) -> Result<OutputFiles, PictureError> {
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(usual)).to_path_buf();
        Format::of(&path)?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let problem = format!("there is no folder {}", folder.display());
            return Err(PictureError::Write { path, problem });
        }
        let output = OutputFiles { path, force, named, spares_runs: false, given: HashSet::new() };
        let there = output.meant(count).find(|path| path.exists());
        match there {
            Some(path) => Err(PictureError::Exists { path }),
            None => Ok(output),
        }
    }

    /// The same, and what unfinished runs have kept beside such pictures is not overwritten either.
    pub(crate) fn sparing_runs(self, count: usize) -> Result<OutputFiles, PictureError> {
        // One that another process is making now is not unfinished: that process holds the claim until its state is gone.
        let abandoned =
            |state: &Path, path: &Path| state.exists() && Claim::of(path).is_some_and(|_claim| state.exists());
        let runs = self.meant(count).map(|path| (run_file(&path), path));
        let unfinished = runs.into_iter().find(|(state, path)| abandoned(state, path));
        match unfinished {
            Some((state, path)) => Err(PictureError::Unfinished { path, state }),
            None => Ok(OutputFiles { spares_runs: true, ..self }),
        }
    }

    /// The names that were given and must be free: said before the work, not after.
    fn meant(&self, count: usize) -> impl Iterator<Item = PathBuf> {
        let meant = self.named && !self.force && self.pattern().is_none();
        (0..if meant { count } else { 0 }).map(|i| self.numbered(i))
    }

    /// The next picture's file: with a number in the name (`%03d`, or `_2` and so on after it), and no file that is there
    /// already unless overwriting is allowed.
    pub fn claim(&mut self) -> PathBuf {
        let there = |path: &PathBuf| path.exists() || self.spares_runs && run_file(path).exists();
        let free = |path: &PathBuf| !self.given.contains(path) && (self.force || !there(path));
        let mut names = (0..).map(|i| self.numbered(i));
        let path = names.find(free).unwrap_or_else(|| self.path.clone());
        self.given.insert(path.clone());
        path
    }

    /// Whether files may be overwritten.
    pub fn force(&self) -> bool {
        self.force
    }

    /// The place and width of `%d` or `%03d` in the file's name: start, end, digits.
    fn pattern(&self) -> Option<(usize, usize, usize)> {
        let name = self.path.file_name()?.to_str()?;
        let start = name.find('%')?;
        let rest = &name[start + 1..];
        let digits = rest.find('d').filter(|&n| rest[..n].bytes().all(|b| b.is_ascii_digit()))?;
        let width = rest[..digits].parse().unwrap_or(0).min(20);
        Some((start, start + 2 + digits, width))
    }

    fn numbered(&self, i: usize) -> PathBuf {
        let name = self.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some((start, end, width)) = self.pattern() {
            return self.path.with_file_name(format!("{}{i:0width$}{}", &name[..start], &name[end..]));
        }
        match i {
            0 => self.path.clone(),
            _ => {
                let (stem, end) = name.rsplit_once('.').unwrap_or((&name, "png"));
                self.path.with_file_name(format!("{stem}_{}.{end}", i + 1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_numbered_and_none_that_is_there_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let mut plain = OutputFiles::new(Some(&at("a.png")), 3, false).expect("it can be written");
        assert_eq!([plain.claim(), plain.claim(), plain.claim()], [at("a.png"), at("a_2.png"), at("a_3.png")]);
        std::fs::write(at("b_001.jpg"), "x").expect("written");
        let mut pattern = OutputFiles::new(Some(&at("b_%03d.jpg")), 3, false).expect("it can be written");
        assert_eq!([pattern.claim(), pattern.claim()], [at("b_000.jpg"), at("b_002.jpg")]);
        let mut force = OutputFiles::new(Some(&at("b_%03d.jpg")), 3, true).expect("it can be written");
        assert_eq!([force.claim(), force.claim()], [at("b_000.jpg"), at("b_001.jpg")]);

        std::fs::write(at("a_2.png"), "x").expect("written");
        assert!(matches!(OutputFiles::new(Some(&at("a.png")), 2, false), Err(PictureError::Exists { .. })));
        assert!(OutputFiles::new(Some(&at("a.png")), 1, false).is_ok());
        assert!(OutputFiles::new(Some(&at("a.png")), 2, true).is_ok());
        assert!(matches!(OutputFiles::new(Some(&at("a.gif")), 1, false), Err(PictureError::Kind { .. })));
        assert!(matches!(OutputFiles::new(Some(&at("no/a.png")), 1, false), Err(PictureError::Write { .. })));
    }
}
