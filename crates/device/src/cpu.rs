//! The CPU as a device: the cores and the memory that this process may use, which in a container are fewer than the machine has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::available_parallelism;

use crate::{cgroup, sys};

/// The memory of the machine and the part of it that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of memory in the machine.
    pub total: u64,
    /// Bytes that this process may use: the smallest control-group limit above it, or `total` where there is none.
    pub limit: u64,
}

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
    let quota = cgroup::cpu_quota(&read_text);
    allowed.unwrap_or(1).min(quota.unwrap_or(usize::MAX)).max(1)
}

/// How many caches of the second level the cores of the calling thread have, or `None` where the system does not tell. Cores that are two
/// threads of one processor share theirs.
///
/// ```
/// assert!(impasto_device::cpu::second_caches().is_none_or(|caches| caches >= 1));
/// ```
pub fn second_caches() -> Option<usize> {
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

/// The memory of the machine and the limit for this process, or `None` where the system does not tell.
///
/// ```
/// if let Some(memory) = impasto_device::cpu::memory() {
///     assert!(memory.limit <= memory.total);
/// }
/// ```
pub fn memory() -> Option<Memory> {
    let total = meminfo(&read_text(Path::new("/proc/meminfo"))?, "MemTotal")?;
    let limit = cgroup::memory_limit(&read_text).unwrap_or(total).min(total);
    Some(Memory { total, limit })
}

/// Bytes that can be allocated now without swapping and without reaching a limit, or `None` where the system does not tell.
///
/// Other processes change it at any time: ask when you need it and do not keep the answer.
///
/// ```
/// use impasto_device::cpu;
///
/// if let (Some(available), Some(memory)) = (cpu::available_memory(), cpu::memory()) {
///     assert!(available <= memory.limit);
/// }
/// ```
pub fn available_memory() -> Option<u64> {
    let available = meminfo(&read_text(Path::new("/proc/meminfo"))?, "MemAvailable")?;
    let room = cgroup::memory_room(&read_text).unwrap_or(available);
    Some(available.min(room))
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

/// One line of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kibibytes.checked_mul(1024)
}

/// The text of a small system file; bytes that are not UTF-8 (a folder may have such a name) must not hide the rest.
fn read_text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMINFO: &str = "MemTotal:       24684100 kB\nMemFree:        20000000 kB\nMemAvailable:   24320944 kB\nHugePages_Total:       0\n";

    #[test]
    fn meminfo_is_in_bytes() {
        assert_eq!(meminfo(MEMINFO, "MemTotal"), Some(24_684_100 * 1024));
        assert_eq!(meminfo(MEMINFO, "MemAvailable"), Some(24_320_944 * 1024));
    }

    #[test]
    fn meminfo_without_the_line_or_with_nonsense_is_unknown() {
        assert_eq!(meminfo(MEMINFO, "Mem"), None);
        assert_eq!(meminfo(MEMINFO, "HugePages_Total"), None);
        assert_eq!(meminfo("MemTotal: 18446744073709551615 kB", "MemTotal"), None);
        assert_eq!(meminfo("MemTotal: -1 kB", "MemTotal"), None);
        assert_eq!(meminfo("", "MemTotal"), None);
    }

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
        let memory = memory().expect("/proc/meminfo is readable");
        assert!(0 < memory.limit && memory.limit <= memory.total);
        assert!(available_memory().expect("/proc/meminfo is readable") <= memory.limit);
        let machine = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cores = machine.lines().filter(|l| l.starts_with("processor")).count();
        assert!(cores == 0 || usable_cores() <= cores);
        assert!(cores == 0 || second_caches().is_none_or(|caches| (1..=cores).contains(&caches)));
    }

    proptest! {
        #[test]
        fn no_text_makes_meminfo_panic(text in "\\PC*", number in "MemTotal: *[0-9]{0,30} *(kB)?\n") {
            meminfo(&text, "MemTotal");
            meminfo(&number, "MemTotal");
        }
    }
}
