//! Writes the models of the tests as diffusers folders, for programs that compare or measure: `sd1`, `sd2` and `xl`, small, with weights made
//! from their names, or `sd15` and `sdxl` in their true sizes, in f16.
//!
//!     cargo run --release -p impasto-generate --example test_models -- FOLDER NAME...

use std::path::Path;

use impasto_testkit::model::Small;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("usage: test_models FOLDER NAME...");
    for name in arguments {
        let folder = Path::new(&folder).join(&name);
        match name.as_str() {
            "sd1" => Small::sd1().write_folder(&folder),
            "sd2" => Small::sd2_v().write_folder(&folder),
            "xl" => Small::sdxl().write_folder(&folder),
            "sd15" => Small::true_sd15().write_large_folder(&folder, true),
            "sdxl" => Small::true_sdxl().write_large_folder(&folder, true),
            other => panic!("{other}: sd1, sd2, xl, sd15 and sdxl are known"),
        }
        println!("{}", folder.display());
    }
}
