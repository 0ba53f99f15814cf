//! A CUDA driver in every state that it can be in. What a user would lose: the picture, or a line that says why the card was not used.
#![cfg(target_os = "linux")]

use std::path::Path;

use crate::world::{World, assert_painted, text};
use impasto_testkit::drivers::drivers;

/// The program with a driver that interprets kernels, and its folder of nothing else.
fn interpreted(how: &str) -> World {
    World::new("none", Some(how)).with_cuda(&impasto_testkit::fake_cuda::folder())
}

/// Makes a picture, which must be there, and returns what was said. CUDA is waited for, however busy the machine is.
fn painted(world: &World) -> String {
    let out = world.paint("cuda");
    assert_painted(world, &out);
    text(&out.stderr)
}

#[test]
fn a_device_lost_in_the_middle() {
    let said = painted(&interpreted("lost:40"));
    let lost = "cuda0 is lost: cuGraphLaunch failed with 719 (a kernel failed)";
    assert!(said.contains(lost) && said.contains("going on: diffusion on cpu whole"), "{said}");
}

#[test]
fn a_card_that_has_less_than_it_says() {
    let said = painted(&interpreted("full:300000"));
    assert!(said.contains("cuda0 has no memory left") && said.contains("going on: te on cpu whole"), "{said}");
}

/// Of 8 GiB others have left almost nothing: the plan says so before anything is begun.
#[test]
fn a_card_that_is_full() {
    let world = interpreted("memory:1000000");
    let out = world.paint("cuda");
    assert_painted(&world, &out);
    assert!(text(&out.stderr).contains(" on cpu: "), "{}", text(&out.stderr));
}

#[test]
fn helper_processes_that_die() {
    let mut world = interpreted("helpers-die,lost:40");
    let died = world.path("died");
    world.env.push(("FAKE_DIED", died.clone()));
    let said = painted(&world);
    assert!(Path::new(&died).exists(), "a helper process was there, and died");
    // All kernels were compiled all the same, and the device computed until it was lost.
    assert!(said.contains("cuGraphLaunch failed with 719"), "{said}");
}

/// What a driver refuses is said, and by `--gpu cuda` it is an error: nothing else was to be used.
#[test]
fn a_driver_that_cannot_be_used() {
    let (fake, old) = (drivers().cuda.clone(), drivers().cuda_2017.clone());
    for (how, folder, says) in [
        ("code34", &fake, "this libcuda is a stub, made for linking and not for running"),
        ("old", &fake, "its driver knows CUDA 10.2, and 11.0 is needed: install a newer NVIDIA driver"),
        ("kepler", &fake, "its architecture is 3.0, and this build has kernels from 7.5 (Turing) on"),
        ("", &old, "the driver has no cuGraphCreate, which came with CUDA 10.0: install a newer NVIDIA driver"),
        ("", &fake, "cuda0 does not open: cuda0 cannot be used for this: cuMemHostAlloc failed with 801"),
    ] {
        let world = World::new("none", Some(how)).with_cuda(folder);
        let listed = text(&world.run(&["devices", "--timeout", "60"]).stdout);
        assert!(says.contains("cuda0") || listed.contains(says), "{says} in {listed}");
        let out = world.paint("auto");
        assert_painted(&world, &out);
        let said = text(&out.stderr);
        // A machine that is too busy does not wait.
        assert!(said.contains(says) || said.contains("no answer from the device probe yet"), "{says} in {said}");
    }
    let world = World::new("none", Some("kepler"));
    let only = world.paint("cuda");
    assert_eq!(only.status.code(), Some(1), "{}", text(&only.stderr));
}

#[test]
fn no_driver() {
    let world = World::new("none", None);
    let out = world.paint("auto");
    assert_painted(&world, &out);
    assert!(!text(&out.stderr).contains("cuda"), "{}", text(&out.stderr));
    let only = world.paint("cuda");
    assert_eq!(only.status.code(), Some(1));
    assert!(
        text(&only.stderr).contains("--gpu cuda: no GPU can be computed on through CUDA"),
        "{}",
        text(&only.stderr)
    );
}
