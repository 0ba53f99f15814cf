//! Modules of others: the shaders of `tests/shaders`, as other compilers translate them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The words in these bytes.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn files(extension: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shaders");
    let all = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let mut found: Vec<PathBuf> = all.filter(|f| f.extension().is_some_and(|e| e == extension)).collect();
    found.sort();
    found
}

/// A shader: its file, and its words.
pub type Shader = (String, Vec<u32>);

fn named(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

/// A compute shader in GLSL, by `glslc -O0`.
pub fn compile(text: &str) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.comp"), folder.path().join("out.spv"));
    std::fs::write(&input, text).unwrap();
    compile_file(&input, &output)
}

fn compile_file(file: &Path, output: &Path) -> Vec<u32> {
    let done = Command::new("glslc").args(["-O0", "--target-env=vulkan1.1"]).arg(file).arg("-o").arg(output).status();
    assert!(done.expect("glslc cannot be run: install it, as tools/test.sh does").success(), "{file:?}");
    words(&std::fs::read(output).unwrap())
}

/// Every so many of the shaders in GLSL, by `glslc -O0`.
pub fn glsl(step: usize) -> Vec<Shader> {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.spv");
    let compile = |file: &PathBuf| (named(file), compile_file(file, &output));
    files("comp").iter().step_by(step).map(compile).collect()
}

/// Every so many of the shaders in WGSL, by naga.
pub fn wgsl(step: usize) -> Vec<Shader> {
    let compile = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let module = naga::front::wgsl::parse_str(&text);
        let module = module.unwrap_or_else(|e| panic!("{file:?}: {}", e.emit_to_string(&text)));
        let flags = naga::valid::ValidationFlags::all();
        let info = naga::valid::Validator::new(flags, naga::valid::Capabilities::all()).validate(&module);
        let info = info.unwrap_or_else(|e| panic!("{file:?}: {e:?}"));
        let (module, info) =
            naga::back::pipeline_constants::process_overrides(&module, &info, None, &Default::default())
                .map(|(m, i)| (m.into_owned(), i.into_owned()))
                .unwrap_or_else(|e| panic!("{file:?}: {e}"));
        // Kernels have no inputs and outputs of 16 bits, which naga would ask for, and lavapipe lacks.
        let options =
            naga::back::spv::Options { lang_version: (1, 3), use_storage_input_output_16: false, ..Default::default() };
        let words = naga::back::spv::write_vec(&module, &info, &options, None);
        (named(file), words.unwrap_or_else(|e| panic!("{file:?}: {e}")))
    };
    files("wgsl").iter().step_by(step).map(compile).collect()
}
