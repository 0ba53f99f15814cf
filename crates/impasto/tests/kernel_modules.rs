//! `impasto kernel opt` and `impasto kernel diff`, as somebody meets them who has a module of another compiler.

use crate::world::text;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn impasto(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_impasto"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("it has an input");
    let input = input.to_vec();
    // It may end before it has read all.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let out = child.wait_with_output().expect("it ends");
    writer.join().expect("the input was given");
    out
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// Files of one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("a file is written");
        path.display().to_string()
    }

    /// A shader in GLSL, compiled without optimisation.
    fn shader(&self, name: &str, stage: &str, source: &str) -> String {
        let (from, to) = (self.file(&format!("{name}.{stage}"), source.as_bytes()), self.path(&format!("{name}.spv")));
        let done = Command::new("glslc").args(["-O0", "--target-env=vulkan1.1", &from, "-o"]).arg(&to).status();
        assert!(done.expect("glslc cannot be run: install it, as tools/test.sh does").success(), "{source}");
        to.display().to_string()
    }

    fn scaled(&self, name: &str, factor: &str) -> String {
        let source = format!(
            "#version 450
            layout(local_size_x = 64) in;
            layout(binding = 0) readonly buffer X {{ float x[]; }};
            layout(binding = 1) buffer Y {{ float y[]; }};
            layout(std140, binding = 2) uniform U {{ vec3 shift; float scale[3]; mat2 turn; }};
            void main() {{
                uint i = gl_GlobalInvocationID.x;
                float v = 0.0;
                for (int j = 0; j < 3; j++) v += x[i] * scale[j];
                vec2 t = turn * shift.xy;
                y[i] = v * {factor} + t.x - t.y + shift.z;
            }}"
        );
        self.shader(name, "comp", &source)
    }

    fn names(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.0.path()).expect("the folder").flatten();
        all.map(|f| f.file_name().to_string_lossy().into_owned()).collect()
    }
}

fn words(file: &Path) -> Vec<u32> {
    let bytes = std::fs::read(file).expect("a module");
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn is_valid(file: &str) {
    let out = Command::new("spirv-val").args(["--target-env", "vulkan1.3", file]).output();
    let out = out.expect("spirv-val cannot be run: install spirv-tools, as tools/test.sh does");
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn opt_writes_files_and_says_what_became_of_them() {
    let files = Files::new();
    let a = files.scaled("a", "2.5");
    let (b, dump) = (files.path("b.spv").display().to_string(), files.path("dump").display().to_string());
    let quiet = impasto(&["kernel", "opt", &a, "-o", &b], &[]);
    assert!(quiet.status.success() && quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{}", text(&quiet.stderr));
    is_valid(&b);
    let made = words(Path::new(&b));
    assert!(made.len() < words(Path::new(&a)).len());
    let told = impasto(&["kernel", "opt", &a, "-o", &b, "--stats", "--verify"], &[]);
    assert!(told.status.success() && made == words(Path::new(&b)), "the same words each time");
    let lines = text(&told.stdout);
    for key in ["instructions ", "ids ", "bytes ", "seconds "] {
        assert!(lines.lines().any(|l| l.starts_with(key)), "{lines}");
    }
    assert!(lines.contains(&format!("-> {}", 4 * made.len())), "{lines}");
    let out = impasto(
        &["kernel", "opt", &a, "-o", &b, "--json", "--strict", "--dump", &dump, "--target-env", "vulkan1.1"],
        &[],
    );
    assert!(out.status.success(), "{}", text(&out.stderr));
    let line = json(&text(&out.stdout));
    assert_eq!(line["ids"][1], made[3]);
    assert_eq!(line["bytes"][1], 4 * made.len());
    assert!(line["instructions"][1].as_u64() < line["instructions"][0].as_u64(), "{line}");
    assert_eq!(line["passed_through"].as_array().map(Vec::len), Some(0));
    let dumped: Vec<String> = std::fs::read_dir(&dump)
        .expect("the dump")
        .flatten()
        .map(|f| f.file_name().to_string_lossy().into_owned())
        .collect();
    for pass in ["imported", "ssa", "dce"] {
        assert!(dumped.iter().any(|f| f.ends_with(&format!("-main-{pass}.txt"))), "{dumped:?}");
    }
}

#[test]
fn opt_reads_and_writes_pipes() {
    let files = Files::new();
    let a = files.scaled("a", "2.5");
    let b = files.path("b.spv").display().to_string();
    assert!(impasto(&["kernel", "opt", &a, "-o", &b], &[]).status.success());
    let bytes = std::fs::read(&a).expect("the module");
    let piped = impasto(&["kernel", "opt", "-", "-o", "-", "--json"], &bytes);
    assert!(piped.status.success(), "{}", text(&piped.stderr));
    assert_eq!(piped.stdout, std::fs::read(&b).expect("the module"), "only the module goes to the standard output");
    assert_eq!(json(&text(&piped.stderr))["input"], "-");
}

/// A module with two entry points, in assembly: each adds another number to the elements of a buffer.
const TWO: &str = "
               OpCapability Shader
               OpMemoryModel Logical GLSL450
               OpEntryPoint GLCompute %first \"first\" %id
               OpEntryPoint GLCompute %second \"second\" %id
               OpExecutionMode %first LocalSize 8 1 1
               OpExecutionMode %second LocalSize 4 2 1
               OpDecorate %id BuiltIn GlobalInvocationId
               OpDecorate %array ArrayStride 4
               OpDecorate %block BufferBlock
               OpMemberDecorate %block 0 Offset 0
               OpDecorate %y DescriptorSet 0
               OpDecorate %y Binding 0
       %void = OpTypeVoid
         %fn = OpTypeFunction %void
       %uint = OpTypeInt 32 0
         %v3 = OpTypeVector %uint 3
        %in3 = OpTypePointer Input %v3
         %id = OpVariable %in3 Input
      %array = OpTypeRuntimeArray %uint
      %block = OpTypeStruct %array
     %blockp = OpTypePointer Uniform %block
          %y = OpVariable %blockp Uniform
      %uintp = OpTypePointer Uniform %uint
         %u0 = OpConstant %uint 0
         %u5 = OpConstant %uint 5
         %u6 = OpConstant %uint 6
      %first = OpFunction %void None %fn
         %l1 = OpLabel
         %i1 = OpLoad %v3 %id
         %x1 = OpCompositeExtract %uint %i1 0
         %p1 = OpAccessChain %uintp %y %u0 %x1
         %a1 = OpLoad %uint %p1
         %b1 = OpIAdd %uint %a1 %u5
               OpStore %p1 %b1
               OpReturn
               OpFunctionEnd
     %second = OpFunction %void None %fn
         %l2 = OpLabel
         %i2 = OpLoad %v3 %id
         %x2 = OpCompositeExtract %uint %i2 0
         %p2 = OpAccessChain %uintp %y %u0 %x2
         %a2 = OpLoad %uint %p2
         %b2 = OpIAdd %uint %a2 %u6
               OpStore %p2 %b2
               OpReturn
               OpFunctionEnd
";

fn assembled(files: &Files, name: &str, source: &str) -> String {
    let (from, to) = (files.file(&format!("{name}.txt"), source.as_bytes()), files.path(&format!("{name}.spv")));
    let done = Command::new("spirv-as").args(["--target-env", "spv1.3", &from, "-o"]).arg(&to).status();
    assert!(done.expect("spirv-as cannot be run: install spirv-tools, as tools/test.sh does").success());
    to.display().to_string()
}

#[test]
fn both_entry_points_of_a_module_are_optimised_and_compared() {
    let files = Files::new();
    let a = assembled(&files, "two", TWO);
    let b = files.path("b.spv").display().to_string();
    let out = impasto(&["kernel", "opt", &a, "-o", &b, "--strict"], &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    is_valid(&b);
    let same = impasto(&["kernel", "diff", &a, &b, "--no-device", "--groups", "3,1,1"], &[]);
    assert!(same.status.success(), "{}", text(&same.stderr));
    for entry in ["first", "second"] {
        assert!(text(&same.stdout).contains(&format!("CPU reference: '{entry}' equal")), "{}", text(&same.stdout));
    }
    // One constant of the second is another one.
    let c = assembled(&files, "other", &TWO.replace("OpConstant %uint 6", "OpConstant %uint 7"));
    let other = impasto(&["kernel", "diff", &a, &c, "--no-device"], &[]);
    assert_eq!(other.status.code(), Some(1));
    let said = text(&other.stdout);
    assert!(said.contains("'first' equal") && said.contains("DIFFERENT") && said.contains("second"), "{said}");
    assert!(text(&other.stderr).contains("different things in 1 of 2 comparisons"), "{}", text(&other.stderr));
}

#[test]
fn diff_tells_equal_from_different_on_the_reference_and_on_a_device() {
    let files = Files::new();
    let (a, c) = (files.scaled("a", "2.5"), files.scaled("c", "2.75"));
    let b = files.path("b.spv").display().to_string();
    assert!(impasto(&["kernel", "opt", &a, "-o", &b], &[]).status.success());
    let same = impasto(&["kernel", "diff", &a, &b, "--json", "--inputs", "7"], &[]);
    assert!(same.status.success(), "{}{}", text(&same.stdout), text(&same.stderr));
    let lines: Vec<serde_json::Value> = text(&same.stdout).lines().map(json).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0]["place"], "CPU reference");
    for line in &lines {
        assert!(line["difference"].is_null() && line["problem"].is_null(), "{line}");
        assert!(line["changed"].as_u64() > Some(100) && line["entry"] == "main", "{line}");
    }
    let plain = impasto(&["kernel", "diff", &a, &b, "--no-cpu", "--plain-driver", "--json", "--inputs", "7"], &[]);
    assert_eq!(json(text(&plain.stdout).trim()), lines[1], "the driver does not optimise: {}", text(&plain.stderr));
    let other = impasto(&["kernel", "diff", &a, &c], &[]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stdout));
    let said = text(&other.stdout);
    assert_eq!(said.matches("DIFFERENT").count(), 2, "{said}");
    // The place is named: the second buffer, an element, both values.
    assert!(said.contains("binding 1"), "{said}");
    assert!(text(&other.stderr).contains("different things in 2 of 2 comparisons"), "{}", text(&other.stderr));
}

#[test]
fn a_device_that_does_not_answer_is_given_up_after_the_seconds_that_were_named() {
    let files = Files::new();
    // llvmpipe leaves a loop after 65,536 rounds, so that it takes many workgroups to keep it busy for hours.
    let source = "#version 450
        layout(local_size_x = 1) in;
        layout(binding = 0) buffer X { uint x[]; };
        void main() { for (;;) { x[0] += x[1] | 1u; if (x[0] == 0u && x[2] == 77777u) return; } }";
    let a = files.shader("endless", "comp", source);
    let out = impasto(&["kernel", "diff", &a, &a, "--no-cpu", "--seconds", "1", "--groups", "65535,65535,1"], &[]);
    // That it did not answer is no agreement, and no difference.
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains("no answer within 1 second"), "{}", text(&out.stdout));
    assert!(text(&out.stderr).contains("show too little to call the modules equal"), "{}", text(&out.stderr));
}

/// Copies where a mode and a size say so: numbers that random ones never are.
fn copies(files: &Files, name: &str, op: &str, mode: &str) -> String {
    let source = format!(
        "#version 450
        layout(local_size_x = 32) in;
        layout(push_constant) uniform P {{ uint n; uint mode; uint stride; }};
        layout(binding = 0) readonly buffer X {{ float x[]; }};
        layout(binding = 1) buffer Y {{ float y[]; }};
        void main() {{
            uint i = gl_GlobalInvocationID.x;
            if (n % 512u != 0u || i >= n || {mode}) return;
            y[i] = x[i * stride] {op} 3.0;
        }}"
    );
    files.shader(name, "comp", &source)
}

#[test]
fn inputs_are_found_that_reach_the_stores_and_what_is_not_reached_is_not_equal() {
    let files = Files::new();
    let (a, b) = (copies(&files, "a", "*", "mode != 4711u"), copies(&files, "b", "+", "mode != 4711u"));
    let same = impasto(&["kernel", "diff", &a, &a, "--no-device", "--json"], &[]);
    assert!(same.status.success(), "{}{}", text(&same.stdout), text(&same.stderr));
    let line = json(text(&same.stdout).trim());
    assert!(line["changed"].as_u64() > Some(0), "{line}");
    let reached = line["reached"].as_str().unwrap_or_default();
    assert!(reached.starts_with("2 of 2 stores"), "{line}");
    let other = impasto(&["kernel", "diff", &a, &b, "--no-device"], &[]);
    assert_eq!(other.status.code(), Some(1), "{}", text(&other.stdout));
    assert!(text(&other.stdout).contains("DIFFERENT"), "{}", text(&other.stdout));
    // A hash that no constant of the module tells.
    let hash = "(mode * 2654435761u) != 0x12345678u";
    let (c, d) = (copies(&files, "c", "*", hash), copies(&files, "d", "+", hash));
    let unknown = impasto(&["kernel", "diff", &c, &d, "--no-device"], &[]);
    assert_eq!(unknown.status.code(), Some(2), "{}", text(&unknown.stdout));
    let said = text(&unknown.stdout);
    assert!(said.contains("NOT REACHED") && said.contains("0 of 2 stores"), "{said}");
    assert!(text(&unknown.stderr).contains("too little to call the modules equal"), "{}", text(&unknown.stderr));
}

#[test]
fn what_cannot_be_optimised_is_refused_by_name_and_word_and_nothing_is_written() {
    let files = Files::new();
    let vertex = files.shader("v", "vert", "#version 450\nvoid main() { gl_Position = vec4(1.0); }");
    let good = std::fs::read(files.scaled("a", "2.5")).expect("the module");
    let swapped: Vec<u8> = good.chunks_exact(4).flat_map(|w| [w[3], w[2], w[1], w[0]]).collect();
    let with = |at: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    let cases = [
        ("vertex shader", std::fs::read(&vertex).expect("the module"), "the entry point 'main' is a Vertex shader"),
        ("nothing", Vec::new(), "word 0"),
        ("no module", b"#version 450\nvoid main() {}   \n\n".to_vec(), "word 0: this is no SPIR-V"),
        ("the other byte order", swapped, "word 0: the words are in the other byte order"),
        ("a bound of 0", with(3, 0), "word 3: the bound on ids is 0"),
        ("a bound of 2^32-1", with(3, u32::MAX), "word 3: the bound on ids is 4294967295"),
        ("ids above the bound", with(3, 9), "is not below the bound 9"),
        ("half a word", good[..good.len() - 2].to_vec(), "it ends within a word"),
        ("half an instruction", good[..good.len() - 4].to_vec(), "word "),
    ];
    for (name, bytes, says) in cases {
        let from = files.file("in.spv", &bytes);
        let to = files.path("out.spv").display().to_string();
        let out = impasto(&["kernel", "opt", &from, "-o", &to], &[]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{name}: {said}");
        assert!(said.starts_with("error: ") && said.contains("in.spv") && said.contains(says), "{name}: {said}");
        assert!(said.contains("word "), "{name}: {said}");
        assert!(!files.names().contains(&"out.spv".to_owned()), "{name}: nothing is written");
        let diff = impasto(&["kernel", "diff", &from, &from, "--no-device"], &[]);
        assert_eq!(diff.status.code(), Some(1), "{name}: {}", text(&diff.stdout));
    }
    let missing = impasto(&["kernel", "opt", "there-is-no-such.spv", "-o", "-"], &[]);
    assert!(missing.status.code() == Some(1) && text(&missing.stderr).contains("there-is-no-such.spv"));
    let new = impasto(&["kernel", "opt", &vertex, "-o", "-", "--target-env", "vulkan9"], &[]);
    assert!(new.status.code() == Some(2) && text(&new.stderr).contains("vulkan1.0"), "{}", text(&new.stderr));
    let old = files.file("a.spv", &good);
    let old = impasto(&["kernel", "opt", &old, "-o", "-", "--target-env", "vulkan1.0"], &[]);
    let said = text(&old.stderr);
    assert!(old.status.code() == Some(1) && said.contains("SPIR-V 1.3, and vulkan1.0 takes up to 1.0"), "{said}");
}

#[test]
fn a_file_of_500_megabytes_is_refused_without_being_read_to_its_end() {
    let files = Files::new();
    let mut head = vec![];
    for word in [0x0723_0203u32, 0x0001_0300, 0, 100, 0] {
        head.extend(word.to_le_bytes());
    }
    let file = files.file("large.spv", &head);
    // It has no blocks on the disk behind its beginning.
    std::fs::OpenOptions::new().write(true).open(&file).and_then(|f| f.set_len(500 << 20)).expect("a sparse file");
    let out = impasto(&["kernel", "opt", &file, "-o", "-"], &[]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("large.spv") && said.contains("word ") && said.contains("256 MB"), "{said}");
}

#[test]
fn what_is_not_understood_is_passed_through_and_named_or_refused() {
    // A selection without a merge.
    let branch = "%c1 = OpIEqual %bool %a1 %u5
               OpBranchConditional %c1 %l3 %l4
         %l3 = OpLabel
               OpBranch %l5
         %l4 = OpLabel
               OpBranch %l5
         %l5 = OpLabel
         %b1 = OpIAdd";
    let source = TWO
        .replace("%b1 = OpIAdd", branch)
        .replace("%void = OpTypeVoid", "%void = OpTypeVoid\n%bool = OpTypeBool")
        .replace("OpDecorate %id BuiltIn", "OpName %first \"unmerged\"\nOpDecorate %id BuiltIn");
    let files = Files::new();
    let a = assembled(&files, "unmerged", &source);
    let b = files.path("b.spv").display().to_string();
    let out = impasto(&["kernel", "opt", &a, "-o", &b, "--json"], &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let note = text(&out.stderr);
    assert!(note.starts_with("note: the function 'unmerged' is passed through as it is: word "), "{note}");
    let line = json(&text(&out.stdout));
    assert_eq!(line["passed_through"][0]["function"], "unmerged", "{line}");
    let strict = impasto(&["kernel", "opt", &a, "-o", &files.path("c.spv").display().to_string(), "--strict"], &[]);
    let said = text(&strict.stderr);
    assert!(strict.status.code() == Some(1) && said.contains("the function 'unmerged' is not understood"), "{said}");
    assert!(!files.names().contains(&"c.spv".to_owned()));
}
