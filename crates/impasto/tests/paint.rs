//! `impasto generate` as a user meets it: exit codes, files, what is said where, and what is refused. The model inside the program paints.

use crate::world::text;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program in a folder of its own, with a home of its own.
fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).current_dir(folder).env("HOME", folder).env_remove("XDG_CONFIG_HOME").env_remove("IMPASTO_CPU");
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().expect("the program starts")
}

fn code(out: &Output) -> Option<i32> {
    out.status.code()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Two small steps are enough to see that all is wired.
const QUICK: [&str; 6] = ["--steps", "2", "-W", "64", "-H", "64"];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    QUICK.iter().chain(more).copied().collect()
}

fn pixels(path: &Path) -> (u32, u32, Vec<u8>) {
    let image = image::open(path).expect("a picture").into_rgb8();
    (image.width(), image.height(), image.into_raw())
}

#[test]
fn words_alone_make_a_picture_in_any_folder() {
    let folder = folder();
    let out = run(folder.path(), &["a red house under a yellow sun by the sea", "--steps", "4"]);
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "output.png\n", "stdout has the result and nothing else");
    let said = text(&out.stderr);
    for part in ["on cpu", "256x256", "seed 42", "guidance"] {
        assert!(said.contains(part), "{part} is not said: {said}");
    }
    let (width, height, rgb) = pixels(&folder.path().join("output.png"));
    assert_eq!((width, height), (256, 256));
    assert!(rgb.iter().any(|&b| b != rgb[0]));
}

#[test]
fn the_same_seed_gives_the_same_picture_and_another_seed_another() {
    let folder = folder();
    for (seed, file) in [("5", "a.png"), ("5", "b.png"), ("6", "c.png")] {
        let out = run(folder.path(), &quick(&["-p", "a blue cat", "-s", seed, "-o", file]));
        assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    }
    let [a, b, c] = ["a.png", "b.png", "c.png"].map(|f| pixels(&folder.path().join(f)).2);
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn a_random_seed_is_printed_and_makes_the_picture_again() {
    let folder = folder();
    let out = run(folder.path(), &quick(&["-p", "a cat", "-s", "-1", "--json"]));
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let seed = line["seed"].as_u64().expect("a seed").to_string();
    assert!(text(&out.stderr).contains(&seed));
    assert_eq!(line["file"], "output.png");
    assert_eq!((line["width"].as_u64(), line["height"].as_u64()), (Some(64), Some(64)));
    let again = run(folder.path(), &quick(&["-p", "a cat", "-s", &seed, "-o", "again.png"]));
    assert_eq!(code(&again), Some(0));
    let at = |name: &str| pixels(&folder.path().join(name));
    assert_eq!(at("output.png"), at("again.png"));
}

#[test]
fn a_profile_says_what_took_how_long() {
    let folder = folder();
    let out = run(folder.path(), &quick(&["a red house", "--profile"]));
    let said = text(&out.stderr);
    assert_eq!(code(&out), Some(0), "{said}");
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    for (module, op) in [("te", "linear"), ("diffusion", "attention"), ("vae", "conv2d")] {
        let row = rows.iter().find(|row| row.len() >= 6 && row[..3] == [module, "cpu", op]);
        let row = row.unwrap_or_else(|| panic!("{op} of {module} is not in {said}"));
        assert!(row[4].parse::<f64>().is_ok_and(|seconds| seconds > 0.0), "{row:?}");
    }
    let out = run(folder.path(), &quick(&["a red house", "--profile", "--json", "-o", "b.png"]));
    let profile = text(&out.stdout).lines().last().map(str::to_owned).unwrap_or_default();
    assert!(profile.contains("\"profile\":[{") && profile.contains("\"op\":\"conv2d\""), "{profile}");
}

#[test]
fn files_are_not_overwritten_unless_that_is_asked_for() {
    let folder = folder();
    std::fs::write(folder.path().join("kept.png"), "precious").expect("written");
    let out = run(folder.path(), &quick(&["-p", "a cat", "-o", "kept.png"]));
    assert_eq!(code(&out), Some(1));
    assert!(text(&out.stderr).contains("--force"), "{}", text(&out.stderr));
    assert_eq!(std::fs::read(folder.path().join("kept.png")).expect("there"), b"precious");
    assert_eq!(code(&run(folder.path(), &quick(&["-p", "a cat", "-o", "kept.png", "--force"]))), Some(0));
    assert_eq!(pixels(&folder.path().join("kept.png")).0, 64);

    // Without a name the next free one is taken, and numbers go where they are asked for.
    for _ in 0..2 {
        assert_eq!(code(&run(folder.path(), &quick(&["a cat"]))), Some(0));
    }
    assert!(folder.path().join("output_2.png").exists());
    let out = run(folder.path(), &quick(&["-p", "a cat", "-b", "2", "-o", "n_%03d.png"]));
    assert_eq!(text(&out.stdout), "n_000.png\nn_001.png\n");
    assert_ne!(pixels(&folder.path().join("n_000.png")), pixels(&folder.path().join("n_001.png")));
}

/// The parameters inside a file, by the way of each format that webui knows.
fn parameters(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("there");
    let find = |what: &[u8]| bytes.windows(what.len()).position(|w| w == what);
    if path.extension().is_some_and(|e| e == "png") {
        let decoder = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().expect("a PNG");
        let info = decoder.info();
        let plain = info.uncompressed_latin1_text.iter().find(|t| t.keyword == "parameters").map(|t| t.text.clone());
        let wide = info.utf8_text.iter().find(|t| t.keyword == "parameters").map(|t| t.get_text().expect("UTF-8"));
        return plain.or(wide).expect("it has parameters");
    }
    let start = find(b"UNICODE\0").expect("a user comment") + 8;
    let length =
        find(b"Version: Impasto".iter().flat_map(|&b| [0, b]).collect::<Vec<_>>().as_slice()).expect("its end");
    let units = bytes[start..length + 32].chunks_exact(2).map(|c| u16::from_be_bytes([c[0], c[1]])).collect::<Vec<_>>();
    String::from_utf16_lossy(&units)
}

#[test]
fn every_format_carries_what_made_the_picture() {
    let folder = folder();
    for (file, prompt) in
        [("a.png", "a red cat"), ("b.png", "a red cat 猫"), ("c.jpg", "a red cat 猫"), ("d.webp", "a red cat 猫")]
    {
        let out = run(folder.path(), &quick(&["-p", prompt, "-n", "grey", "-o", file]));
        assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
        let path = folder.path().join(file);
        assert_eq!(pixels(&path).0, 64);
        let inside = parameters(&path);
        assert!(
            inside.starts_with(&format!("{prompt}\nNegative prompt: grey\nSteps: 2, Sampler: ")),
            "{file}: {inside}"
        );
        for part in ["Seed: 42", "Size: 64x64", "CFG scale: ", "Model: "] {
            assert!(inside.contains(part), "{file}: {inside}");
        }
    }
}

#[test]
fn words_that_the_model_never_saw_are_named_and_a_picture_is_made_all_the_same() {
    let folder = folder();
    let out = run(folder.path(), &quick(&["-p", "a zebra, a cat and a rhinoceros"]));
    assert_eq!(code(&out), Some(0));
    let said = text(&out.stderr);
    assert!(said.contains("'zebra', 'rhinoceros'"), "{said}");
    assert!(said.contains("impasto -m MODEL.safetensors -p 'a zebra, a cat and a rhinoceros'"), "{said}");
    let known = run(folder.path(), &quick(&["-p", "a red cat"]));
    assert!(!text(&known.stderr).contains("does not know"), "{}", text(&known.stderr));
}

#[test]
fn bad_arguments_end_with_2_and_say_what_is_wrong() {
    let folder = folder();
    for (args, says) in [
        (&["-p", "x", "--steps", "0"][..], "between 1 and 1000"),
        (&["-p", "x", "--steps", "many"], "no whole number"),
        (&["-p", "x", "--rng", "dice"], "cuda"),
        (&["-p", "x", "--sampling-method", "magic"], "dpm++2m"),
        (&["-p", "x", "--cfg-scale", "nan"], "no number"),
        (&["-p", "x", "--mask", "m.png"], "-i FILE"),
        (&["-p", "x", "--strength", "0.5"], "-i FILE"),
        (&["-p", "x", "--preview", "tae"], "--taesd"),
        (&["-p", "x", "y"], "cannot be used with"),
        (&[], "no prompt"),
        (&["--no-such-flag"], "--no-such-flag"),
        (&["--control-net", "x"], "stable-diffusion.cpp"),
        (&["genrate"], "did you mean `impasto generate`"),
        (&["-M", "vid_gen", "-p", "x"], "img_gen"),
        (&["-p", "x", "-s", "9223372036854775807", "-b", "2"], "9223372036854775807"),
        (&["-p", "x", "--preview", "proj", "--preview-path", "a.png", "-o", "a.png"], "are both a.png"),
    ] {
        let out = run(folder.path(), args);
        assert_eq!(code(&out), Some(2), "{args:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(says), "{args:?}: {}", text(&out.stderr));
        assert!(out.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn what_cannot_be_done_ends_with_1_before_any_work() {
    let folder = folder();
    std::fs::write(folder.path().join("text.safetensors"), "no model at all").expect("written");
    for (args, says) in [
        (&["-p", "x", "-m", "nowhere.safetensors"][..], "nowhere.safetensors"),
        (&["-p", "x", "-m", "text.safetensors"], "text.safetensors"),
        (&["-p", "x", "-o", "a.bmp"], ".png"),
        (&["-p", "x", "-o", "no/folder/a.png"], "no folder"),
        (&["-p", "x", "-i", "nowhere.png"], "nowhere.png"),
        (&["-p", "x", "-i", "text.safetensors"], "text.safetensors"),
    ] {
        let out = run(folder.path(), args);
        assert_eq!(code(&out), Some(1), "{args:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(says), "{args:?}: {}", text(&out.stderr));
    }
}

#[test]
fn settings_come_from_the_file_then_variables_then_flags() {
    let folder = folder();
    let config = folder.path().join(".config/impasto");
    std::fs::create_dir_all(&config).expect("a folder");
    std::fs::write(config.join("config.toml"), "steps = 3\nwidth = 64\nheight = 128\nprompt = 'a cat'")
        .expect("written");
    let mut command = command(folder.path(), &["-H", "64", "--json"]);
    let out = command.env("IMPASTO_STEPS", "2").env("IMPASTO_COLOUR", "red").output().expect("it starts");
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    assert_eq!((line["width"].as_u64(), line["height"].as_u64()), (Some(64), Some(64)));
    assert!(line["parameters"].as_str().is_some_and(|p| p.starts_with("a cat\nSteps: 2,")), "{line}");
    assert!(text(&out.stderr).contains("IMPASTO_COLOUR is no setting"), "{}", text(&out.stderr));

    std::fs::write(config.join("config.toml"), "steps = 'x'").expect("written");
    let out = run(folder.path(), &["-p", "x"]);
    assert_eq!(code(&out), Some(2));
    let says = "config.toml: line 1: steps: 'x'";
    assert!(text(&out.stderr).contains(says), "{}", text(&out.stderr));
}

#[test]
fn no_home_is_a_warning() {
    let folder = folder();
    let out = command(folder.path(), &quick(&["-p", "a cat"])).env_remove("HOME").output().expect("it starts");
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("warning: neither XDG_CONFIG_HOME nor HOME"), "{}", text(&out.stderr));
}

#[test]
fn pictures_begin_with_pictures() {
    let folder = folder();
    assert_eq!(code(&run(folder.path(), &["-p", "a red house", "--steps", "6", "-o", "start.png"])), Some(0));
    let out = run(
        folder.path(),
        &["-p", "a red house", "-i", "start.png", "--strength", "0.3", "--steps", "6", "-o", "near.png"],
    );
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    let (start, near) = (pixels(&folder.path().join("start.png")), pixels(&folder.path().join("near.png")));
    assert_eq!((start.0, start.1), (near.0, near.1));
    let distance =
        |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(&x, &y)| f64::from(x.abs_diff(y))).sum::<f64>() / a.len() as f64;
    assert!(distance(&start.2, &near.2) < 20.0, "a weak change is near the original");
    assert_ne!(start.2, near.2);

    // Where the mask is black nothing is made anew, but for what the autoencoder changes.
    let mask: Vec<u8> = (0..256 * 256).map(|i| if i % 256 < 128 { 0 } else { 255 }).collect();
    image::save_buffer(folder.path().join("mask.png"), &mask, 256, 256, image::ColorType::L8).expect("written");
    let out = run(
        folder.path(),
        &["-p", "a blue cat", "-i", "start.png", "--mask", "mask.png", "--steps", "6", "-o", "half.png"],
    );
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    let half = pixels(&folder.path().join("half.png"));
    let side = |rgb: &[u8], left: bool| -> Vec<u8> {
        rgb.chunks_exact(3)
            .enumerate()
            .filter(|(i, _)| (i % 256 < 104) == left && (left || i % 256 >= 152))
            .flat_map(|(_, p)| p.to_vec())
            .collect()
    };
    let (kept, changed) = (
        distance(&side(&start.2, true), &side(&half.2, true)),
        distance(&side(&start.2, false), &side(&half.2, false)),
    );
    assert!(kept < 6.0 && changed > 2.0 * kept, "kept {kept}, changed {changed}");
}

#[test]
fn previews_show_the_picture_on_the_way() {
    let folder = folder();
    let with_preview =
        |how: &str, path: &str| run(folder.path(), &quick(&["-p", "a cat", "--preview", how, "--preview-path", path]));
    for (how, path, side) in [("proj", "small.png", 8), ("vae", "large.png", 64)] {
        let out = with_preview(how, path);
        assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
        assert_eq!(pixels(&folder.path().join(path)).0, side, "{how}");
    }
    // What cannot be written, or is there, is said before the work.
    for (path, says) in [("no/seen.png", "no folder no"), ("small.png", "is there already")] {
        let out = with_preview("proj", path);
        assert!(code(&out) == Some(1) && text(&out.stderr).contains(says), "{}", text(&out.stderr));
    }
    // Without a name, a file that is there keeps what it has.
    std::fs::write(folder.path().join("preview.png"), "mine").expect("written");
    let out = run(folder.path(), &quick(&["-p", "a cat", "--preview", "proj"]));
    assert!(code(&out) == Some(0) && text(&out.stderr).contains("previews go to preview_2.png"), "{out:?}");
    assert_eq!(std::fs::read(folder.path().join("preview.png")).expect("it is there"), b"mine");
    assert_eq!(pixels(&folder.path().join("preview_2.png")).0, 8);
}

/// What people type who have never read the manual, or know another program's.
#[test]
fn strangers_are_understood() {
    let folder = folder();
    for (args, says) in [
        (&["a", "red", "house", "by", "the", "sea"][..], ""),
        (&["--fa", "--diffusion-fa", "--mmap", "--color", "-M", "img_gen", "-p", "a cat"], "--mmap is not needed"),
        (&["--scheduler", "normal", "--rng", "std_default", "-s", "-5", "-p", "a cat"], "std_default"),
        (&["-p", "a cat <lora:fur:0.8>"], "<lora:fur:0.8> is not applied"),
    ] {
        let out = run(folder.path(), &quick(args));
        assert_eq!(code(&out), Some(0), "{args:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(says), "{args:?}: {}", text(&out.stderr));
    }
    let out = run(folder.path(), &quick(&["a", "red", "house", "--json"]));
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one JSON object");
    let parameters = line["parameters"].as_str().expect("parameters");
    assert!(parameters.starts_with("a red house\n") && parameters.contains("Sampler: Euler a,"), "{parameters}");
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_when_its_file_is_overwritten() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("album")).expect("a folder");
    std::fs::write(at("album/real.png"), "old").expect("written");
    std::os::unix::fs::symlink("album/real.png", at("link.png")).expect("linked");
    let out = run(folder.path(), &quick(&["-p", "a cat", "-o", "link.png", "--force"]));
    assert_eq!(code(&out), Some(0), "{}", text(&out.stderr));
    assert!(at("link.png").is_symlink());
    assert_eq!(pixels(&at("album/real.png")).0, 64);
}

/// Where files may not grow, the picture fails with words.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    let folder = folder();
    let program = env!("CARGO_BIN_EXE_impasto");
    let line = format!("ulimit -f 1; exec {program} -p 'a cat' -W 64 -H 64 --steps 2 --gpu disable -o x.png");
    let out = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).env("HOME", folder.path()).output();
    let out = out.expect("a shell starts");
    assert!(
        code(&out) == Some(1) && text(&out.stderr).contains("cannot write"),
        "{:?}: {}",
        out.status,
        text(&out.stderr)
    );
}

/// Where there are too few addresses to begin with, that is said, and nothing panics or hangs.
#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_addresses_is_an_error_and_no_panic() {
    let folder = folder();
    for kilobytes in [50_000, 200_000, 500_000] {
        let program = env!("CARGO_BIN_EXE_impasto");
        let line = format!("ulimit -v {kilobytes}; exec {program} -p 'a cat' -W 64 -H 64 --steps 2 -o x.png");
        let out = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).env("HOME", folder.path()).output();
        let (out, words) = out.map(|out| (code(&out), text(&out.stderr))).expect("a shell starts");
        assert!(out == Some(1) && words.starts_with("error: ") && !words.contains("panic"), "{out:?}: {words}");
    }
}

/// Results that nobody gets are no success.
#[cfg(target_os = "linux")]
#[test]
fn a_full_standard_output_is_an_error() {
    let folder = folder();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let out = command(folder.path(), &quick(&["-p", "a cat", "--json"])).stdout(full).output().expect("it starts");
    assert!(code(&out) == Some(1) && text(&out.stderr).contains("standard output"), "{}", text(&out.stderr));
}

#[test]
fn help_completions_and_the_manual_are_made_from_one_table() {
    let folder = folder();
    let help = text(&run(folder.path(), &["--help"]).stdout);
    let man = text(&run(folder.path(), &["man"]).stdout);
    let bash = text(&run(folder.path(), &["completions", "bash"]).stdout);
    for setting in impasto::generate::settings::TABLE {
        let flag = format!("--{}", setting.flag());
        assert!(help.contains(&flag), "{flag} in --help");
        assert!(man.contains(&flag.replace('-', "\\-")), "{flag} in the manual");
        assert!(bash.contains(&flag), "{flag} in completions");
    }
    assert!(help.contains("130"), "exit codes are in --help");
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        assert!(!run(folder.path(), &["completions", shell]).stdout.is_empty(), "{shell}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_soon_with_130_and_leaves_no_picture() {
    let folder = folder();
    let mut command = command(folder.path(), &["-p", "a cat", "-W", "1024", "-H", "1024", "--steps", "500"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    // Steps have begun when their line appears.
    let mut said = std::io::BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("picture 1") {
        line.clear();
        assert_ne!(
            std::io::BufRead::read_line(&mut said, &mut line).expect("readable"),
            0,
            "it ended before its first step"
        );
    }
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill is there");
    assert!(interrupted.success());
    let since = Instant::now();
    let status = loop {
        match child.try_wait().expect("it can be waited for") {
            Some(status) => break status,
            None if since.elapsed() > Duration::from_secs(20) => {
                drop(child.kill());
                panic!("it goes on after Ctrl-C");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    println!("ended {:?} after Ctrl-C", since.elapsed());
    assert_eq!(status.code(), Some(130));
    // What is remembered of drivers lies in the hidden cache folder.
    let left =
        std::fs::read_dir(folder.path()).expect("readable").filter_map(|f| f.ok()?.file_name().into_string().ok());
    // The run can go on.
    let left: Vec<String> = left.filter(|name| !name.starts_with('.')).collect();
    assert_eq!(left, ["output.latent.safetensors"], "no picture is left");
}
