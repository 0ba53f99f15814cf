//! A run always finishes, and nothing that was finished is lost: how the autoencoder is split, what is kept of a run, and how it goes on. The
//! model inside the program paints. `IMPASTO_KILLS=50` kills more runs.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use impasto::generate::{SavedRun, run_file};

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).args(["--gpu", "disable"]).current_dir(folder).env("HOME", folder);
    command.env_remove("XDG_CONFIG_HOME").env_remove("IMPASTO_CPU");
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    command(folder, args).output().expect("the program starts")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn paint<'a>(steps: &'a str, output: &'a str) -> Vec<&'a str> {
    let size = ["-W", "128", "-H", "128", "--threads", "2"];
    with(&with(&["-p", "a red house", "--steps", steps], &size), &["-o", output])
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    args.iter().chain(more).copied().collect()
}

fn pixels(path: &Path) -> Vec<u8> {
    image::open(path).expect("a picture").into_rgb8().into_raw()
}

/// Bytes beside its weights that the decoder would use whole.
fn planned_arena(folder: &Path) -> u64 {
    let plan = run(folder, &with(&["plan"], &with(&paint("2", "x.png"), &["--json"])));
    let plan: serde_json::Value = serde_json::from_slice(&plan.stdout).expect("a plan");
    let modules = plan["modules"].as_array().expect("modules");
    let decoder = modules.iter().find(|m| m["module"] == "vae").expect("the decoder");
    decoder["arena_bytes"].as_u64().expect("a number")
}

/// The three cases of the report that this comes from (stable-diffusion.cpp #1621), with bands before tiles.
#[test]
fn a_decoder_that_does_not_fit_is_split_or_refused_before_sampling() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    assert!(run(folder.path(), &paint("2", "whole.png")).status.success());

    // By default: in bands, the same picture.
    let arena = planned_arena(folder.path());
    let [small, tiny] = [90, 40].map(|share| format!("max_buffer_size={}", arena * share / 100));
    let small = ["--extra-tiling-args", &small];
    let bands = run(folder.path(), &with(&paint("2", "bands.png"), &small));
    assert!(bands.status.success() && said(&bands).contains("bands of"), "{}", said(&bands));
    assert_eq!(pixels(&at("whole.png")), pixels(&at("bands.png")));

    // The old hard failure: nothing is sampled.
    let hard = with(&small, &["--vae-split", "whole", "--no-vae-tiling-fallback"]);
    let refused = run(folder.path(), &with(&paint("2", "hard.png"), &hard));
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(
        said(&refused).contains("the limit is") && !said(&refused).contains("loading diffusion"),
        "{}",
        said(&refused)
    );
    assert!(!at("hard.png").exists());

    // Tiles where they are asked for, and where nothing else fits; never where they are forbidden.
    let tiny = ["--extra-tiling-args", &tiny];
    for (name, flags) in [("tiles.png", vec!["--vae-tiling"]), ("last.png", tiny.to_vec())] {
        let tiles = run(folder.path(), &with(&paint("2", name), &flags));
        assert!(tiles.status.success() && said(&tiles).contains("tiles of"), "{}", said(&tiles));
        let (whole, tiles) = (pixels(&at("whole.png")), pixels(&at(name)));
        let off: f64 = whole.iter().zip(&tiles).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        let psnr = 10.0 * (255f64.powi(2) / (off / whole.len() as f64)).log10();
        assert!(psnr > 15.0 && whole != tiles, "{name}: {psnr} dB");
    }
    let forbidden = run(folder.path(), &with(&paint("2", "no.png"), &with(&tiny, &["--no-vae-tiling-fallback"])));
    assert_eq!(forbidden.status.code(), Some(1), "{}", said(&forbidden));

    for (flags, says) in [
        (vec!["--vae-tiling", "--vae-split", "bands"], "--vae-tiling asks for tiles"),
        (vec!["--vae-tile-size", "0.5x4"], "whole pixels"),
        (vec!["--extra-tiling-args", "max=3"], "max_buffer_size=BYTES"),
    ] {
        let wrong = run(folder.path(), &with(&paint("2", "wrong.png"), &flags));
        assert!(wrong.status.code() == Some(2) && said(&wrong).contains(says), "{}", said(&wrong));
    }
}

/// A picture that begins with another one is encoded in every split mode too.
#[test]
fn the_encoder_is_split_as_the_decoder_is() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    assert!(run(folder.path(), &paint("2", "first.png")).status.success());
    let from = ["-i", "first.png", "--strength", "0.6"];
    for (name, flags) in [
        ("whole.png", vec![]),
        ("bands.png", vec!["--vae-split", "bands"]),
        ("tiles.png", vec!["--vae-tiling", "--vae-tile-size", "8x8"]),
    ] {
        let made = run(folder.path(), &with(&with(&paint("3", name), &from), &flags));
        assert!(made.status.success(), "{}", said(&made));
    }
    assert_eq!(pixels(&at("whole.png")), pixels(&at("bands.png")));
    assert_ne!(pixels(&at("whole.png")), pixels(&at("tiles.png")));
}

/// Killed at some moment: a whole picture, or a run that goes on to the same picture, or nothing was begun. Never half of anything.
#[test]
fn a_killed_run_goes_on_to_the_same_picture() {
    let kills = std::env::var("IMPASTO_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let begin = |output: &str| {
        let args = with(&paint("16", output), &["--force"]);
        let mut child =
            command(folder.path(), &args).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        // Until there is something to lose.
        let state = run_file(&at(output));
        while !state.exists() && child.try_wait().expect("it can be asked").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        (child, Instant::now())
    };
    // How long it takes from there to the end.
    let (mut child, begun) = begin("whole.png");
    assert!(child.wait().expect("it ends").success() && !at("whole.latent.safetensors").exists());
    let sampling = begun.elapsed();
    let seed = RandomState::new().hash_one(std::process::id());
    println!("seed {seed}, {sampling:?} to go when the state appears");
    let mut went_on = 0;
    for kill in 0..kills {
        let (mut child, _) = begin("run.png");
        let share = (seed ^ kill).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        std::thread::sleep(sampling.mul_f64(0.6 * share as f64 / (1u64 << 24) as f64));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        if at("run.latent.safetensors").exists() {
            let resumed = run(folder.path(), &["resume", "run.latent.safetensors", "--force"]);
            assert!(resumed.status.success(), "{}", said(&resumed));
            assert_eq!(pixels(&at("whole.png")), pixels(&at("run.png")), "kill {kill}");
            assert!(!at("run.latent.safetensors").exists() && !at(".new-run.latent.safetensors").exists());
            went_on += 1;
        }
    }
    println!("{went_on} of {kills} went on");
    assert!(went_on > 0, "no run was killed in the middle: the test tests nothing");
}

#[test]
fn a_kept_run_is_decoded_and_a_picture_is_made_again() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let made = run(folder.path(), &with(&paint("2", "first.png"), &["--keep-latent", "-s", "7"]));
    assert!(made.status.success(), "{}", said(&made));
    let decoded = run(folder.path(), &["decode", "first.latent.safetensors", "-o", "decoded.png"]);
    assert!(decoded.status.success(), "{}", said(&decoded));
    let again = run(folder.path(), &["again", "first.png", "-o", "again.png", "--threads", "2"]);
    assert!(again.status.success(), "{}", said(&again));
    for name in ["decoded.png", "again.png"] {
        assert_eq!(pixels(&at("first.png")), pixels(&at(name)), "{name}");
    }
    // Files that keep what they say of themselves in EXIF are made again too.
    for name in ["kept.jpg", "kept.webp"] {
        assert!(run(folder.path(), &with(&paint("2", name), &["-s", "7"])).status.success());
        let again = format!("{name}.png");
        let made = run(folder.path(), &["again", name, "-o", &again, "--threads", "2"]);
        assert!(made.status.success(), "{}", said(&made));
        assert_eq!(pixels(&at("first.png")), pixels(&at(&again)), "{name}");
    }

    // Damaged and foreign files are refused.
    let bytes = std::fs::read(at("first.latent.safetensors")).expect("it is there");
    for cut in [0, 7, 100, bytes.len() / 4] {
        std::fs::write(at("cut.latent.safetensors"), &bytes[..cut]).expect("written");
        let refused = run(folder.path(), &["resume", "cut.latent.safetensors"]);
        assert!(refused.status.code() == Some(1) && said(&refused).contains("holds no run"), "{}", said(&refused));
    }
    let text = String::from_utf8_lossy(&bytes).replace("\\\"fingerprint\\\":\\\"", "\\\"fingerprint\\\":\\\"0");
    std::fs::write(at("other.latent.safetensors"), text).expect("written");
    let other = run(folder.path(), &["resume", "other.latent.safetensors"]);
    assert!(!other.status.success(), "{}", said(&other));
}

/// The state of a run that was kept, with settings that would let it write elsewhere.
fn kept_run(folder: &Path, output: &str) -> (std::path::PathBuf, SavedRun) {
    let made = run(folder, &with(&paint("2", output), &["--keep-latent"]));
    assert!(made.status.success(), "{}", said(&made));
    let state = run_file(&folder.join(output));
    let saved = SavedRun::read(&state).expect("a run");
    (state, saved)
}

/// What a user would lose: a picture that goes on from other numbers than those it stopped at, without a word.
#[test]
fn a_changed_state_is_refused() {
    let folder = folder();
    let (state, saved) = kept_run(folder.path(), "first.png");
    let bytes = std::fs::read(&state).expect("it is there");
    let seed = RandomState::new().hash_one(std::process::id());
    println!("seed {seed}");
    for i in 0..200u64 {
        let random = (seed ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let mut changed = bytes.clone();
        let at = random as usize % bytes.len();
        changed[at] ^= 1 << (random >> 40 & 7);
        std::fs::write(&state, changed).expect("written");
        assert!(SavedRun::read(&state).is_err(), "byte {at} of {} was changed", bytes.len());
    }
    // A picture that the run does not have, in a state that is whole.
    let mut beyond = saved.clone();
    beyond.run.picture = 1;
    std::fs::write(&state, beyond.to_bytes()).expect("written");
    let refused = run(folder.path(), &["resume", "first.latent.safetensors", "-o", "other.png"]);
    assert!(!refused.status.success() && said(&refused).contains("picture 2 of 1"), "{}", said(&refused));
    // The tensors of a run are tensors.
    let names = ["latent", "run.sampler.latent", "run.sampler.sigmas"];
    let header =
        String::from_utf8_lossy(&bytes[8..8 + u64::from_le_bytes(*bytes.first_chunk().expect("bytes")) as usize]);
    let header: serde_json::Value = serde_json::from_str(&header).expect("a header");
    names.iter().for_each(|name| assert_eq!(header[name]["dtype"], "F32", "{name}"));
}

/// What a user would lose: hours of sampling, or a file that has nothing to do with the run.
#[test]
fn nothing_but_the_recorded_picture_is_written() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let (state, mut saved) = kept_run(folder.path(), "first.png");
    for (name, text) in [("force", "true"), ("preview", "proj"), ("preview-path", "victim.png")] {
        saved.settings.insert(name.into(), text.into());
    }
    std::fs::write(&state, saved.to_bytes()).expect("written");
    std::fs::write(at("victim.png"), "mine").expect("written");
    // The picture is there: nothing says that it may be overwritten.
    let there = run(folder.path(), &["resume", "first.latent.safetensors"]);
    assert!(!there.status.success() && said(&there).contains("is there already"), "{}", said(&there));
    std::fs::remove_file(at("first.png")).expect("removed");

    // Another run of that name asks; without a name it takes another.
    let asked = run(folder.path(), &paint("2", "first.png"));
    assert!(!asked.status.success() && said(&asked).contains("impasto resume"), "{}", said(&asked));
    assert_eq!(std::fs::read(&state).expect("it is there"), saved.to_bytes(), "the state is as it was");

    let resumed = run(folder.path(), &["resume", "first.latent.safetensors"]);
    assert!(resumed.status.success() && at("first.png").exists(), "{}", said(&resumed));
    assert_eq!(std::fs::read(at("victim.png")).expect("it is there"), b"mine");
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").map(|e| e.expect("an entry")).collect();
    names.retain(|entry| entry.path().extension().is_some_and(|end| end == "png"));
    assert_eq!(names.len(), 2, "the picture, and the file that was there");
}

#[test]
fn two_processes_with_one_output_make_two_pictures() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let begin = |force: &[&str]| {
        let mut command = command(folder.path(), &with(&paint("8", "one.png"), force));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let both = [begin(&[]), begin(&[])].map(|child| child.wait_with_output().expect("it ends"));
    both.iter().for_each(|out| assert!(out.status.success(), "{}", said(out)));
    assert_eq!(pixels(&at("one.png")), pixels(&at("one_2.png")));

    // One that comes when the other has kept a step takes another name, too.
    let first = command(folder.path(), &paint("200", "late.png")).stderr(Stdio::null()).spawn();
    let mut first = first.expect("it starts");
    let begun = Instant::now();
    while !at("late.latent.safetensors").exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let late = run(folder.path(), &paint("2", "late.png"));
    assert!(late.status.success() && at("late_2.png").exists(), "{}", said(&late));
    first.kill().and_then(|()| first.wait()).expect("it is ours");
    let refused = run(folder.path(), &paint("2", "late.png"));
    assert!(said(&refused).contains("was begun and not finished"), "{}", said(&refused));

    // Asked to overwrite, both mean the same file: one of them makes it, or one after the other.
    let both = [begin(&["--force"]), begin(&["--force"])].map(|child| child.wait_with_output().expect("it ends"));
    assert!(both.iter().any(|out| out.status.success()));
    let refused = both.iter().filter(|out| !out.status.success());
    refused.into_iter().for_each(|out| assert!(said(out).contains("being made by another process"), "{}", said(out)));
    assert_eq!(pixels(&at("one.png")), pixels(&at("one_2.png")));
    assert!(!at("one.latent.safetensors").exists() && !at("one_2.latent.safetensors").exists());
}

#[test]
fn a_name_as_long_as_a_file_system_takes_is_taken() {
    let folder = folder();
    let name = format!("{}.png", "n".repeat(251));
    let made = run(folder.path(), &paint("1", &name));
    assert!(made.status.success() && folder.path().join(name).exists(), "{}", said(&made));
}

/// A disk that is truly full, where this machine lets us have one: the right picture, or what is done is kept whole, or nothing was begun.
#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_the_state_whole_or_absent() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    assert!(run(folder.path(), &paint("2", "whole.png")).status.success());
    let (disk, out) = (at("disk"), at("out"));
    std::fs::create_dir(&disk).expect("a folder");
    let mut ended = [0, 0, 0];
    for kilobytes in [4, 16, 28, 40, 56, 72, 96, 256] {
        std::fs::create_dir_all(&out).expect("a folder");
        // A mount of its own, which ends with the shell.
        let script = format!(
            "mount -t tmpfs -o size={kilobytes}k none disk || exit 77; \"$@\" -o disk/run.png; code=$?; cp disk/* out 2>/dev/null; exit $code"
        );
        let mut shell = Command::new("unshare");
        shell.args(["-rm", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_impasto"), "--gpu", "disable"]);
        let args = paint("2", "unused");
        shell.args(&args[..args.len() - 2]).current_dir(folder.path()).env("HOME", folder.path());
        let Ok(made) = shell.output() else { return println!("there is no unshare here: not tested") };
        let text = said(&made);
        match made.status.code() {
            Some(0) => {
                assert_eq!(pixels(&out.join("run.png")), pixels(&at("whole.png")), "{kilobytes} kB: {text}");
                ended[0] += 1;
            }
            Some(1) if text.contains("cannot write") => {
                assert!(!out.join("run.png").exists(), "{kilobytes} kB: {text}");
                if out.join("run.latent.safetensors").exists() {
                    let resumed = run(&out, &["resume", "run.latent.safetensors", "-o", "resumed.png"]);
                    assert!(resumed.status.success(), "{kilobytes} kB: {}", said(&resumed));
                    assert_eq!(pixels(&out.join("resumed.png")), pixels(&at("whole.png")), "{kilobytes} kB");
                    ended[1] += 1;
                } else {
                    assert!(!text.contains("picture 1"), "{kilobytes} kB: steps were taken and lost: {text}");
                    ended[2] += 1;
                }
            }
            _ if !text.contains("a red house") && (text.contains("unshare") || text.contains("mount")) => {
                return println!("nothing can be mounted here: not tested ({})", text.trim());
            }
            other => panic!("{kilobytes} kB: ended with {other:?}: {text}"),
        }
        std::fs::remove_dir_all(&out).expect("it goes");
    }
    println!("{ended:?}: with the picture, with what is done, before the first step");
    assert!(ended[0] > 0 && ended[2] > 0, "{ended:?}");
}

/// A folder in which nothing can be written is refused before the work.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_is_refused_before_sampling() {
    let folder = folder();
    // Not even root writes there.
    let refused = run(folder.path(), &paint("2", "/proc/self/run.png"));
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    assert!(said(&refused).contains("/proc/self") && !said(&refused).contains("picture 1"), "{}", said(&refused));
}

/// Words about a picture are worth less than the picture: `impasto ... 2>&1 | head -1`, a terminal that is closed.
#[test]
fn nobody_who_reads_what_is_said_costs_no_picture() {
    let folder = folder();
    let mut running = command(folder.path(), &paint("2", "unheard.png"));
    let mut running = running.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop((running.stdout.take(), running.stderr.take()));
    assert!(running.wait().expect("it ends").success());
    assert!(folder.path().join("unheard.png").exists());
}
