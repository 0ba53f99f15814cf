//! Flags of stable-diffusion.cpp's sd-cli that Impasto does not have: who types one is told so, and what there is instead.

/// The flag, and what to do instead.
const FLAGS: &[(&str, &str)] = &[
    ("--mode", "Impasto makes pictures (img_gen); it has no modes"),
    ("-M", "Impasto makes pictures (img_gen); it has no modes"),
    ("--convert-name", "models are read as they are"),
    ("--output-begin-idx", "numbers in names go on after the files that are there"),
    ("--canny", ""),
    ("--color", "colours are used on a terminal, unless NO_COLOR is set"),
    ("--taesd-preview-only", ""),
    ("--preview-noisy", ""),
    ("--clip_vision", ""),
    ("--t5xxl", "models with T5 are not supported yet"),
    ("--llm", "models with a language model are not supported yet"),
    ("--llm_vision", "models with a language model are not supported yet"),
    ("--qwen2vl", "models with a language model are not supported yet"),
    ("--qwen2vl_vision", "models with a language model are not supported yet"),
    ("--high-noise-diffusion-model", "video is not supported"),
    ("--tae", "write --taesd FILE"),
    ("--control-net", ""),
    ("--control-net-cpu", ""),
    ("--auto-fit", "modules are placed where they fit and are done soonest; --explain says why"),
    ("--control-image", ""),
    ("--control-video", ""),
    ("--control-strength", ""),
    ("--embd-dir", ""),
    ("--lora-model-dir", ""),
    ("--lora-apply-mode", ""),
    ("--tensor-type-rules", "quantised weights are not supported yet"),
    ("--photo-maker", ""),
    ("--pm-id-images-dir", ""),
    ("--pm-id-embed-path", ""),
    ("--pm-style-strength", ""),
    ("--upscale-model", ""),
    ("--upscale-repeats", ""),
    ("--upscale-tile-size", ""),
    ("--force-sdxl-vae-conv-scale", "the decoder computes in a type that does not overflow"),
    ("--mmap", "model files are read straight to where they are computed with"),
    ("--fa", "attention never stores its scores here"),
    ("--diffusion-fa", "attention never stores its scores here"),
    ("--diffusion-conv-direct", "convolutions are always direct here"),
    ("--vae-conv-direct", "convolutions are always direct here"),
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
    ("--guidance", "this is for Flux, which is not supported yet; guidance of Stable Diffusion is --cfg-scale"),
    ("--slg-scale", "this is for SD3, which is not supported yet"),
    ("--skip-layers", "this is for SD3, which is not supported yet"),
    ("--skip-layer-start", "this is for SD3, which is not supported yet"),
    ("--skip-layer-end", "this is for SD3, which is not supported yet"),
    ("--flow-shift", "this is for SD3, which is not supported yet"),
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
}
