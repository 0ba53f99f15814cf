//! Many generations in one process. What a user would lose: a program that runs all night, and the machine's memory by the morning.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use impasto::backend::Backend;
use impasto::backend::vulkan::{Vulkan, VulkanOptions};
use impasto::generate::place::Placement;
use impasto::generate::settings::Settings;
use impasto::generate::{Event, Job, generate};
use impasto_vulkan::{Kind, Loader};

/// Bytes of this process that no file backs, and the files that it has open.
fn held() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it tells that");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse().expect("a number");
    (1024 * kilobytes, std::fs::read_dir("/proc/self/fd").expect("a folder").count())
}

/// By hand, on a GPU: `IMPASTO_TEST_DEVICE=NVIDIA cargo test --release -p impasto --test generations -- --ignored --nocapture`. In CI the
/// small models of `crates/generate/tests/vulkan.rs` stand for it.
#[test]
#[ignore = "takes minutes on a software device"]
fn the_last_generation_holds_no_more_than_the_first() {
    let needs = "a Vulkan device is needed: tools/test.sh installs one on Debian";
    let devices = Loader::open().expect(needs).create_instance().expect(needs).enumerate().expect(needs);
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let found = devices.iter().find(|physical| match &wanted {
        Some(label) => physical.describe().label.contains(label),
        None => physical.describe().kind == Kind::Software,
    });
    let opened = Vulkan::open("vulkan0", found.expect(needs), &VulkanOptions::default()).expect("it opens");
    let backend: Arc<dyn Backend> = Arc::new(opened);
    let model = impasto::default_model().expect("the model inside");
    let count = std::env::var("IMPASTO_GENERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let (mut first, mut pictures) = (None, 0);
    for i in 0..count {
        let mut settings = Settings::default();
        let seed = i.to_string();
        for (name, text) in
            [("prompt", "a red circle"), ("steps", "2"), ("width", "64"), ("height", "64"), ("seed", &seed)]
        {
            settings.set(name, text).expect("a setting");
        }
        let job = Job::new(&settings, &model, 0).expect("a job");
        generate(&job, &model, &Placement::on(&backend), &mut |event| {
            pictures += usize::from(matches!(event, Event::Picture { .. }));
            Ok(true)
        })
        .unwrap_or_else(|e| panic!("generation {i}: {e}"));
        let (memory, files) = held();
        let device = backend.meter().now();
        // The first two fill what is kept from then on: kernels, pools of the allocator and of the driver.
        match first {
            None if i < 2 => {}
            None => first = Some((memory, files, device)),
            Some((before, open, on_device)) => {
                assert_eq!((files, device), (open, on_device), "generation {i}: open files, bytes on the device");
                let more = memory.saturating_sub(before);
                assert!(more < 24 << 20, "generation {i}: {more} bytes more than after the third");
            }
        }
    }
    println!("{pictures} pictures: {:?} bytes, files and device bytes after the third, now {:?}", first, held());
    assert_eq!(pictures, count);
}
