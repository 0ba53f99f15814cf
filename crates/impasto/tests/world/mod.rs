//! The program beside drivers of every kind.

#![allow(dead_code, reason = "each test uses its part")]

use std::path::Path;
use std::process::{Command, Output};

use impasto_testkit::drivers::{drivers, lavapipe};
use impasto_testkit::model::Small;

/// A program in a world of its own: one fake driver before lavapipe, a fake libcuda if asked for, and a cache folder.
pub struct World {
    folder: tempfile::TempDir,
    pub env: Vec<(&'static str, String)>,
}

impl World {
    pub fn new(vulkan: &str, cuda: Option<&str>) -> World {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let manifests = [drivers().manifest(), lavapipe()].map(|path| path.display().to_string()).join(":");
        let mut env = vec![
            ("VK_DRIVER_FILES", manifests),
            ("FAKE_VULKAN", vulkan.to_owned()),
            ("FAKE_TOUCHED", folder.path().join("touched").display().to_string()),
            ("HOME", folder.path().join("home").display().to_string()),
            ("XDG_CACHE_HOME", folder.path().join("cache").display().to_string()),
        ];
        if let Some(cuda) = cuda {
            env.push(("FAKE_CUDA", cuda.to_owned()));
            env.push(("LD_LIBRARY_PATH", drivers().cuda.display().to_string()));
        }
        World { folder, env }
    }

    /// With another libcuda, in this folder.
    pub fn with_cuda(mut self, folder: &Path) -> World {
        self.env.push(("LD_LIBRARY_PATH", folder.display().to_string()));
        self
    }

    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
        for name in [
            "LD_LIBRARY_PATH",
            "LD_PRELOAD",
            "VK_ICD_FILENAMES",
            "CUDA_VISIBLE_DEVICES",
            "IMPASTO_CPU",
            "XDG_CONFIG_HOME",
        ] {
            command.env_remove(name);
        }
        command.args(args).envs(self.env.iter().cloned()).output().expect("the program starts")
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn touched(&self) -> bool {
        std::fs::remove_file(self.folder.path().join("touched")).is_ok()
    }

    /// Makes a small picture, and returns what was said.
    pub fn paint(&self, gpu: &str) -> Output {
        let model = self.path("small.safetensors");
        if !Path::new(&model).exists() {
            Small::sd1().write_original(Path::new(&model));
        }
        let output = self.path("picture.png");
        let size = ["-W", "64", "-H", "64", "--steps", "1", "--force"];
        self.run(&[&["-m", &model, "-p", "a house", "-o", &output, "--gpu", gpu], &size[..]].concat())
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn assert_painted(world: &World, out: &Output) {
    assert!(out.status.success(), "{}", text(&out.stderr));
    let picture = std::fs::read(world.path("picture.png")).expect("the picture is there");
    assert!(picture.starts_with(b"\x89PNG"));
}
