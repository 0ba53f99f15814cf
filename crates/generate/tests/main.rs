//! Pictures, made: prompts, sampling, placement, pipelines.

#[cfg(target_os = "linux")]
mod backends;
mod checks;
mod damage;
mod engine;
mod families;
mod loras;
mod noise;
mod pipelines;
mod placed;
mod placing;
mod prompts;
mod sampling;
mod sequences;
mod third_family;
mod tokens;
mod vulkan;
