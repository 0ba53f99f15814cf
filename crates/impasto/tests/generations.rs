//! Many generations in one process. What a user would lose: a program that runs all night, and the machine's memory by the morning.
#![cfg(target_os = "linux")]

use impasto::backend::DeviceOptions;
use impasto::backend::vulkan::untried;
use impasto::device::{DeviceInfo, DeviceKind};
use impasto::generate::place::Placement;
use impasto::generate::settings::Settings;
use impasto::generate::{Event, Job, run};

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
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let is_it = |device: &DeviceInfo| match &wanted {
        Some(label) => device.label.contains(label),
        None => device.kind == DeviceKind::Software,
    };
    let found = untried().expect(needs).into_iter().find(is_it).expect(needs);
    let backend = impasto::backend::open(&found, &DeviceOptions::default()).expect("it opens");
    let model = std::sync::Arc::new(impasto::default_model().expect("the model inside"));
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
        let job = Job::new(&settings, &model).expect("a job");
        run(&job, &Placement::on(&backend), None, &mut |event| {
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
