//! The default model: does it show what was asked for, and does the check that says so know?

mod check;
mod follows;
mod truth;

use std::sync::Arc;

use impasto::backend::Backend;
use impasto::backend::cpu::{Cpu, CpuOptions};
use impasto::generate::picture::Picture;
use impasto::generate::place::Placement;
use impasto::generate::settings::Settings;
use impasto::generate::{Event, Job, run};
use impasto::model::{Model, ModelPaths};

/// The model inside the program, or the one under test.
fn model() -> Arc<Model> {
    let model = match std::env::var_os("IMPASTO_TEST_MODEL") {
        Some(path) => Model::open(&ModelPaths { model: Some(path.into()), ..ModelPaths::default() }),
        None => impasto::default_model(),
    };
    Arc::new(model.unwrap_or_else(|e| panic!("{e}")))
}

/// A picture as the command makes it, with the program's defaults.
fn paint(model: &Arc<Model>, prompt: &str, seed: u64) -> Picture {
    let mut settings = Settings::default();
    let mut set = |name: &str, text: &str| settings.set(name, text).unwrap_or_else(|e| panic!("{e}"));
    set("prompt", prompt);
    set("seed", &seed.to_string());
    for pair in std::env::var("IMPASTO_TEST_SETTINGS").unwrap_or_default().split_whitespace() {
        let (name, text) = pair.split_once('=').unwrap_or_else(|| panic!("{pair} is no name=value"));
        set(name, text);
    }
    let job = Job::new(&settings, model).unwrap_or_else(|e| panic!("{e}"));
    let cpu: Arc<dyn Backend> = Arc::new(Cpu::new(&CpuOptions::default()).expect("there is a CPU"));
    let mut made = None;
    run(&job, &Placement::on(&cpu), None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })
    .unwrap_or_else(|e| panic!("{e}"));
    made.expect("a picture is ready")
}
