//! The CPU as a device: the cores and the memory that this process may use, which in a container are fewer than the machine has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use impasto_graph::host::{self, read_text};

pub use impasto_graph::host::{HostMemory, address_space, available_memory, memory, own_memory};

use crate::sys;

/// The number of cores that this process may keep busy, at least 1.
///
/// It is the smaller of the affinity mask of the calling thread and the processor quota of each control group that contains
/// the process. A quota is rounded up: with 1.5 cores, two threads get more done than one.
///
/// ```
/// assert!(impasto_device::cpu::usable_cores() >= 1);
/// ```
pub fn usable_cores() -> usize {
    let allowed = sys::affinity().map(|cores| cores.len()).or_else(|| available_parallelism().ok().map(usize::from));
    let quota = host::cpu_quota();
    allowed.unwrap_or(1).min(quota.unwrap_or(usize::MAX)).max(1)
}

/// How many L2 caches the cores of the calling thread have, or `None` where the system does not tell. Cores that are two
/// threads of one processor share theirs.
///
/// ```
/// assert!(impasto_device::cpu::l2_caches().is_none_or(|caches| caches >= 1));
/// ```
pub fn l2_caches() -> Option<usize> {
    caches(&sys::affinity()?, "2", &read_text)
}

/// The different caches of a level that some cores have.
fn caches(cores: &[usize], level: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<usize> {
    let at = |core: usize, index: usize, name: &str| {
        read(Path::new(&format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}/{name}")))
    };
    // The same on all cores, and seldom more than four.
    let first = *cores.first()?;
    let index = (0..16).find(|&i| at(first, i, "level").is_some_and(|l| l.trim() == level))?;
    let sharers: Option<BTreeSet<String>> = cores.iter().map(|&core| at(core, index, "shared_cpu_list")).collect();
    sharers.map(|sharers| sharers.len())
}

/// What the maker calls the processor, or what it is made for.
///
/// ```
/// assert!(!impasto_device::cpu::label().is_empty());
/// ```
pub fn label() -> String {
    let text = first_of_cpuinfo();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    match named.map(|(_, name)| name.trim()).filter(|name| !name.is_empty()) {
        Some(name) => name.chars().filter(|c| !c.is_control()).collect(),
        None => format!("{} processor", std::env::consts::ARCH),
    }
}

/// What the system says of the first core. Not all of the file is read: with hundreds of cores that takes a while.
pub(crate) fn first_of_cpuinfo() -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    let file = fs::File::open("/proc/cpuinfo");
    let _ = file.and_then(|file| file.take(16 << 10).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    text.split("\n\n").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_share_a_cache() {
        // Four cores of two threads each, as Linux shows them: the second half of the numbers are second threads.
        let machine = |path: &Path| {
            let path = path.to_str()?.strip_prefix("/sys/devices/system/cpu/cpu")?;
            let (core, file) = path.split_once("/cache/index")?;
            let core: usize = core.parse().ok().filter(|&core| core < 8)?;
            match file {
                "0/level" | "1/level" => Some("1\n".into()),
                "2/level" => Some("2\n".into()),
                "2/shared_cpu_list" => Some(format!("{},{}\n", core % 4, core % 4 + 4)),
                _ => None,
            }
        };
        let of = |cores: &[usize]| caches(cores, "2", &machine);
        assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6, 7]), Some(4));
        assert_eq!(of(&[0, 4]), Some(1));
        assert_eq!(of(&[1, 3]), Some(2));
        assert_eq!(of(&[7]), Some(1));
        assert_eq!(of(&[0, 8]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(caches(&[0], "3", &machine), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_answers() {
        let machine = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cores = machine.lines().filter(|l| l.starts_with("processor")).count();
        assert!(cores == 0 || usable_cores() <= cores);
        assert!(cores == 0 || l2_caches().is_none_or(|caches| (1..=cores).contains(&caches)));
    }
}
