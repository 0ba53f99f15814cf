//! Modules on either device with weights in each home: all of them paint the same picture.

use impasto_generate::place::{Home, Place, Placement};

use super::{cpu, job, open, paint, placement, psnr, vulkan};
use impasto_testkit::model::Small;

/// Where a module can be: two devices, three homes.
const PLACES: usize = 6;

impasto_testkit::trial! {
    long fn placements_paint_the_same_picture() {
        // All 216 of each model, or some of them that together have every module everywhere.
        let all = std::env::var_os("IMPASTO_ALL_PLACEMENTS").is_some();
        let (cpu, vulkan) = (cpu(), vulkan());
        let place = |n: usize| Place::on([&cpu, &vulkan][n / 3], [Home::Runtime, Home::Host, Home::Disk][n % 3]);
        let mut least = f64::INFINITY;
        for (m, (name, small)) in
            [("sd1", Small::sd1()), ("sd2", Small::sd2_v()), ("sdxl", Small::sdxl())].into_iter().enumerate()
        {
            let (_folder, model) = open(&small);
            let job = job(&model);
            let want = paint(&job, &Placement::on(&cpu)).expect("it is painted");
            let mut seen = vec![];
            for n in 0..PLACES.pow(3) {
                let [te, diffusion, vae] = [n % PLACES, n / PLACES % PLACES, n / PLACES / PLACES];
                // One of each line, column and layer of the cube, another for each model, and two more.
                let chosen = (te + diffusion + m) % PLACES == vae && (te + 2 * diffusion) % PLACES == m || n % 72 == 30 + m;
                if !all && !chosen {
                    continue;
                }
                let places = placement(&place(te), &place(diffusion), &place(vae));
                let made = paint(&job, &places).unwrap_or_else(|e| panic!("{name} {te} {diffusion} {vae}: {e}"));
                let found = psnr(&want, &made);
                assert!(found >= 45.0, "{name} {te} {diffusion} {vae}: {found:.1} dB");
                least = least.min(found);
                seen.push([te, diffusion, vae]);
            }
            println!("{name}: {} placements, at least {least:.1} dB", seen.len());
            assert!(seen.len() >= 8, "{}", seen.len());
        }
    }
}

#[test]
fn plans_without_the_driver_are_those_of_the_open_device() {
    use impasto_backend::{DeviceOptions, Precision};
    use impasto_device::DeviceInfo;
    let found = super::found();
    for precision in [Precision::F32, Precision::Auto] {
        let options =
            DeviceOptions { precision, memory: Some(1 << 30), max_buffer: Some(100 << 20), ..DeviceOptions::default() };
        let opened = impasto_backend::open(&found, &options).expect("it opens").profile();
        // As a survey keeps it.
        let kept = serde_json::to_string(&found).expect("plain data");
        let told: DeviceInfo = serde_json::from_str(&kept).expect("it comes back");
        let known = impasto_backend::profile(&told, &options).expect("a profile");
        assert_eq!((known.name(), known.about()), (opened.name(), opened.about()));
        assert_eq!((known.limits(), known.alignment()), (opened.limits(), opened.alignment()));
        assert_eq!((known.fixed_bytes(), known.host_memory()), (opened.fixed_bytes(), opened.host_memory()));
        assert_eq!(known.activations(), opened.activations());
    }
}
