//! Flags of stable-diffusion.cpp's sd-cli that Impasto does not have: those that change nothing here are accepted, who types another is told
//! so, and what there is instead.

use std::ffi::OsString;

/// Flags that ask for what is done anyway.
const NOT_NEEDED: &[(&str, &str)] = &[
    ("--fa", "attention never stores its scores here"),
    ("--diffusion-fa", "attention never stores its scores here"),
    ("--mmap", "model files are read straight to where they are computed with"),
    ("--color", "colours are used on a terminal, unless NO_COLOR is set"),
    ("--diffusion-conv-direct", "convolutions are always direct here"),
    ("--vae-conv-direct", "convolutions are always direct here"),
];

/// The arguments in our words, and what to say of those that were understood and are not needed.
pub fn accepted(args: impl IntoIterator<Item = OsString>) -> Result<(Vec<OsString>, Vec<String>), String> {
    let (mut ours, mut notes): (Vec<OsString>, Vec<String>) = (vec![], vec![]);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let (name, given) = match arg.to_str().map(|text| text.split_once('=')) {
            Some(Some((name, value))) => (name.to_owned(), Some(OsString::from(value))),
            _ => (arg.to_string_lossy().into_owned(), None),
        };
        // What follows these is text, and not ours to read.
        if ["-p", "--prompt", "-n", "--negative-prompt"].contains(&&*name) && given.is_none() {
            ours.push(arg);
            ours.extend(args.next());
            continue;
        }
        let mut value = || given.clone().or_else(|| args.next()).ok_or_else(|| format!("{name} needs a value"));
        match &*name {
            "--" => {
                ours.push(arg);
                ours.extend(args.by_ref());
            }
            "-M" | "--mode" => match value()?.to_str() {
                Some("img_gen" | "txt2img" | "img2img") => {
                    notes.push(format!("{name} is not needed: pictures are made here"))
                }
                Some("convert") => {
                    return Err(format!("{name} convert: write `impasto convert -m IN -o OUT.gguf --type q8_0`"));
                }
                other => return Err(format!("{name} {}: Impasto makes pictures (img_gen) only", other.unwrap_or("?"))),
            },
            "--scheduler" | "--rng" => {
                let value = value()?;
                let ours_is = match (&*name, value.to_str()) {
                    ("--scheduler", Some("normal")) => "discrete".into(),
                    ("--rng", Some("std_default")) => {
                        notes.push("--rng std_default: the noise of C++'s library is not made here, cuda's is".into());
                        "cuda".into()
                    }
                    _ => value,
                };
                ours.extend([name.into(), ours_is]);
            }
            "--qwen2vl" => ours.extend(["--llm".into(), value()?]),
            "--prompt-file" => {
                let file = value()?;
                let text = std::fs::read_to_string(&file)
                    .map_err(|e| format!("--prompt-file {}: {e}", file.to_string_lossy()))?;
                ours.extend(["--prompt".into(), text.trim_end().into()]);
            }
            _ => match NOT_NEEDED.iter().find(|(flag, _)| *flag == name) {
                Some((_, why)) => notes.push(format!("{name} is not needed: {why}")),
                None => ours.push(arg),
            },
        }
    }
    Ok((ours, notes))
}

/// The flag, and what to do instead.
const FLAGS: &[(&str, &str)] = &[
    ("--convert-name", "models are read as they are"),
    ("--output-begin-idx", "numbers in names go on after the files that are there"),
    ("--canny", ""),
    ("--taesd-preview-only", ""),
    ("--preview-noisy", ""),
    ("--clip_vision", ""),
    ("--llm_vision", "models that read pictures beside the text are not supported yet"),
    ("--qwen2vl_vision", "models that read pictures beside the text are not supported yet"),
    ("--high-noise-diffusion-model", "video is not supported"),
    ("--tae", "write --taesd FILE"),
    ("--control-net", ""),
    ("--control-net-cpu", ""),
    ("--auto-fit", "modules are placed where they fit and are done soonest; --explain says why"),
    ("--control-image", ""),
    ("--control-video", ""),
    ("--control-strength", ""),
    ("--embd-dir", ""),
    ("--photo-maker", ""),
    ("--pm-id-images-dir", ""),
    ("--pm-id-embed-path", ""),
    ("--pm-style-strength", ""),
    ("--upscale-model", ""),
    ("--upscale-repeats", ""),
    ("--upscale-tile-size", ""),
    ("--force-sdxl-vae-conv-scale", "the decoder computes in a type that does not overflow"),
    ("--circular", ""),
    ("--circularx", ""),
    ("--circulary", ""),
    ("--chroma-disable-dit-mask", "Chroma is not supported yet"),
    ("--chroma-enable-t5-mask", "Chroma is not supported yet"),
    ("--chroma-t5-mask-pad", "Chroma is not supported yet"),
    ("--sampler-rng", "--rng is for all noise"),
    ("--end-img", "video is not supported"),
    ("--video-frames", "video is not supported"),
    ("--fps", "video is not supported"),
    ("--moe-boundary", "video is not supported"),
    ("--vace-strength", "video is not supported"),
    ("--high-noise-steps", "video is not supported"),
    ("--timestep-shift", ""),
    ("--img-cfg-scale", ""),
    ("--slg-scale", "skip-layer guidance is not supported yet"),
    ("--skip-layers", "skip-layer guidance is not supported yet"),
    ("--skip-layer-start", "skip-layer guidance is not supported yet"),
    ("--skip-layer-end", "skip-layer guidance is not supported yet"),
    ("--sigmas", "choose a --scheduler"),
    ("--ref-image", "Flux Kontext is not supported yet"),
    ("-r", "Flux Kontext is not supported yet"),
    ("--increase-ref-index", "Flux Kontext is not supported yet"),
    ("--disable-auto-resize-ref-image", "Flux Kontext is not supported yet"),
    ("--cache-mode", ""),
    ("--cache-option", ""),
    ("--cache-preset", ""),
    ("--scm-mask", ""),
    ("--scm-policy", ""),
];

/// What to say of a flag that sd-cli has and Impasto lacks.
pub fn lacks(flag: &str) -> Option<String> {
    let name = flag.split('=').next().unwrap_or(flag);
    let (_, instead) = FLAGS.iter().find(|(known, _)| *known == name)?;
    let instead = if instead.is_empty() { String::new() } else { format!(": {instead}") };
    Some(format!("{name} is a flag of stable-diffusion.cpp that Impasto does not have{instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_that_we_have_is_said_to_be_lacking() {
        let ours = |flag: &str| impasto::generate::settings::Setting::named(flag.trim_start_matches('-')).is_some();
        for (flag, _) in FLAGS {
            assert!(!ours(flag), "{flag}");
            assert!(lacks(flag).is_some_and(|text| text.contains(flag)));
        }
        assert_eq!(lacks("--no-such-flag"), None);
    }
    #[test]
    fn what_changes_nothing_is_accepted_and_prompts_are_left_alone() {
        let read = |line: &str| accepted(line.split(' ').map(OsString::from));
        let (args, notes) = read("impasto --fa -p --fa --mmap -M img_gen --mode=img_gen -- --color").expect("accepted");
        assert_eq!(args, ["impasto", "-p", "--fa", "--", "--color"]);
        assert_eq!(notes.len(), 4);
        let (args, notes) = read("impasto --scheduler normal --rng=std_default --rng cpu").expect("accepted");
        assert_eq!(args, ["impasto", "--scheduler", "discrete", "--rng", "cuda", "--rng", "cpu"]);
        assert_eq!(notes.len(), 1);
        assert!(read("impasto -M vid_gen").is_err() && read("impasto -M").is_err());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "a red\nhouse\n").expect("written");
        let (args, _) = read(&format!("impasto --prompt-file {}", file.path().display())).expect("accepted");
        assert_eq!(args, ["impasto", "--prompt", "a red\nhouse"]);
        assert!(read("impasto --prompt-file no-such-file").is_err_and(|text| text.contains("no-such-file")));
    }
}
