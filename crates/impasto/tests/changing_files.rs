//! Model files that are truncated, overwritten or replaced while a picture is made from them: the picture is that of one model, or there is an
//! error that names the file. What a user would lose: the program without a word, or a picture of neither model.
//!
//! In CI a few trials on each device; `IMPASTO_CHANGES=60` makes so many.
#![cfg(target_os = "linux")]

use std::hash::{BuildHasher, RandomState};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use impasto_testkit::model::Small;

/// The files of a model.
const FILES: [&str; 3] = [
    "text_encoder/model.safetensors",
    "unet/diffusion_pytorch_model.safetensors",
    "vae/diffusion_pytorch_model.safetensors",
];

fn trials(usual: usize) -> usize {
    std::env::var("IMPASTO_CHANGES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

/// A device with a model, another of the same shapes, and the pictures that may come of them.
struct World {
    folder: PathBuf,
    backend: &'static str,
    /// By whether a file is the other model's: none, then each.
    pictures: Vec<Vec<u8>>,
    /// How long a run takes.
    usual: Duration,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl World {
    fn new(backend: &'static str) -> World {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("changing");
        let folder = all.join(format!("{backend}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut world = World { folder, backend, pictures: vec![], usual: Duration::ZERO };
        Small::sd1().write_folder(&world.folder.join("one"));
        Small::sd1().write_folder(&world.folder.join("other"));
        for file in FILES {
            // Other numbers in every tensor.
            let path = world.folder.join("other").join(file);
            let mut bytes = std::fs::read(&path).expect("written");
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
            for number in bytes[header..].chunks_exact_mut(4) {
                let x = f32::from_le_bytes(number.try_into().expect("four bytes"));
                number.copy_from_slice(&(0.9 * x).to_le_bytes());
            }
            std::fs::write(path, bytes).expect("written");
        }
        for file in [None].into_iter().chain(FILES.map(Some)) {
            world.restore();
            if let Some(file) = file {
                std::fs::copy(world.folder.join("other").join(file), world.model().join(file)).expect("copied");
            }
            let begun = Instant::now();
            let out = world.command(&["--force"]).output().expect("it runs");
            assert!(out.status.success(), "{}", said(&out));
            world.usual = begun.elapsed();
            let picture = world.picture().expect("a picture");
            assert!(!world.pictures.contains(&picture), "each file shows in the picture");
            world.pictures.push(picture);
        }
        world
    }

    fn model(&self) -> PathBuf {
        self.folder.join("model")
    }

    /// The first model, in new files.
    fn restore(&self) {
        let _ = std::fs::remove_dir_all(self.model());
        let _ = std::fs::remove_file(self.folder.join("x.png"));
        // A run that failed in the middle has kept what it had done.
        let _ = std::fs::remove_file(self.folder.join("x.latent.safetensors"));
        copy_folder(&self.folder.join("one"), &self.model());
    }

    fn picture(&self) -> Option<Vec<u8>> {
        Some(image::open(self.folder.join("x.png")).ok()?.to_rgb8().into_raw())
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
        command.args(["-p", "a red circle", "--seed", "3", "--steps", "3", "-W", "32", "-H", "32", "--backend"]);
        command.arg(self.backend).args(more).arg("-m").arg(self.model()).arg("-o").arg(self.folder.join("x.png"));
        // Kernels that were compiled once, here or by the tests of the worker, are there for all.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("worker/cache");
        command.env("XDG_CACHE_HOME", cache);
        command.env("XDG_CONFIG_HOME", self.folder.join("config")).env("HOME", &self.folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// One run in which a file is changed, and what came of it.
    fn trial(&self, number: usize, random: &mut impl FnMut(usize) -> usize) -> &'static str {
        self.restore();
        let (which, how) = (random(FILES.len()), number % 3);
        let path = self.model().join(FILES[which]);
        let other = self.folder.join("other").join(FILES[which]);
        let moment = self.usual.mul_f64(random(1000) as f64 / 900.0);
        let more: &[&str] = if random(2) == 0 { &[] } else { &["--params-backend", "disk"] };
        let what = format!("trial {number} on {}: {} after {moment:?}, {more:?}: ", self.backend, FILES[which]);
        let what = what + ["truncated", "overwritten", "replaced"][how];
        let mut child = self.command(more).spawn().expect("it runs");
        std::thread::sleep(moment);
        match how {
            0 => {
                let file = std::fs::File::options().write(true).open(&path).expect("it opens");
                let bytes = file.metadata().expect("it is there").len();
                file.set_len(random(bytes as usize) as u64).expect("truncated");
            }
            1 => drop(std::fs::copy(&other, &path).expect("copied")),
            _ => {
                let beside = path.with_extension("new");
                std::fs::copy(&other, &beside).expect("copied");
                std::fs::rename(beside, &path).expect("replaced");
            }
        }
        let begun = Instant::now();
        while child.try_wait().expect("it is our child").is_none() {
            if begun.elapsed() > Duration::from_secs(120) {
                let _ = child.kill();
                panic!("{what}: it hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let out = child.wait_with_output().expect("it has ended");
        let said = said(&out);
        assert_eq!(out.status.signal(), None, "{what}: {said}");
        assert!(!said.contains("panicked"), "{what}: {said}");
        if out.status.success() {
            let picture = self.picture().unwrap_or_else(|| panic!("{what}: no picture: {said}"));
            let same = [0, 1 + which].iter().any(|&i| self.pictures[i] == picture);
            assert!(same, "{what}: a picture of neither model: {said}");
            return "a picture";
        }
        assert_eq!(self.picture(), None, "{what}: an error and a picture: {said}");
        let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{what}: {said}"));
        assert!(error.contains(FILES[which]), "{what}: {said}");
        let words = ["was truncated", "was overwritten", "was replaced", "is empty", "cut off", "do not lie inside"];
        assert!(words.iter().any(|word| error.contains(word)), "{what}: {said}");
        "a named error"
    }
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("it is there").flatten() {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

fn changes_on(backend: &'static str, usual: usize) {
    let seed = RandomState::new().hash_one(backend);
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n.max(1)
    };
    let world = World::new(backend);
    let mut ends = std::collections::BTreeMap::new();
    for number in 0..trials(usual) {
        *ends.entry(world.trial(number, &mut random)).or_insert(0) += 1;
    }
    println!("{backend}: {ends:?}, a run takes {:?}", world.usual);
}

#[test]
fn on_the_cpu() {
    changes_on("cpu", 9);
}

impasto_testkit::trial! {
    /// In a worker process, which opens the files by their names.
    fn on_a_gpu_of_software(changes: usize = 1, 3) {
        changes_on("vulkan0", changes);
    }
}
