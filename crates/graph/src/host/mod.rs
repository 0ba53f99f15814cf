//! What this process may use of the machine that it runs on, which in a container is less than the machine has.

use std::fs;
use std::path::Path;

mod cgroup;

/// The memory of the machine and the part of it that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes of memory in the machine.
    pub total: u64,
    /// Bytes that this process may use: the smallest control-group limit above it, or `total` where there is none.
    pub limit: u64,
}

/// The number of cores that the processor quotas of this process amount to, rounded up, or `None` where there is no quota.
///
/// ```
/// assert!(impasto_graph::host::cpu_quota().is_none_or(|cores| cores >= 1));
/// ```
pub fn cpu_quota() -> Option<usize> {
    cgroup::cpu_quota(&read_text)
}

/// The memory of the machine and the limit for this process, or `None` where the system does not tell.
///
/// ```
/// if let Some(memory) = impasto_graph::host::memory() {
///     assert!(memory.limit <= memory.total);
/// }
/// ```
pub fn memory() -> Option<HostMemory> {
    let total = meminfo(&read_text(Path::new("/proc/meminfo"))?, "MemTotal")?;
    let limits = [cgroup::memory_limit(&read_text), address_space()];
    let limit = limits.into_iter().flatten().fold(total, u64::min);
    Some(HostMemory { total, limit })
}

/// Bytes that can be allocated now without swapping and without reaching a limit, or `None` where the system does not tell.
///
/// Other processes change it at any time: ask when you need it and do not keep the answer.
///
/// ```
/// use impasto_graph::host;
///
/// if let (Some(available), Some(memory)) = (host::available_memory(), host::memory()) {
///     assert!(available <= memory.limit);
/// }
/// ```
pub fn available_memory() -> Option<u64> {
    let available = meminfo(&read_text(Path::new("/proc/meminfo"))?, "MemAvailable")?;
    let addresses = address_space().zip(own("VmSize")).map(|(limit, taken)| limit.saturating_sub(taken));
    let rooms = [cgroup::memory_room(&read_text), addresses];
    Some(rooms.into_iter().flatten().fold(available, u64::min))
}

/// Bytes of addresses that this process may have (`ulimit -v`), or `None` where that is unlimited or not known.
pub fn address_space() -> Option<u64> {
    address_limit(&read_text(Path::new("/proc/self/limits"))?)
}

fn address_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of memory that this process holds and that are not those of files, or `None` where the system does not tell.
///
/// ```
/// assert!(impasto_graph::host::own_memory().is_none_or(|bytes| bytes > 0));
/// ```
pub fn own_memory() -> Option<u64> {
    own("RssAnon")
}

fn own(key: &str) -> Option<u64> {
    meminfo(&read_text(Path::new("/proc/self/status"))?, key)
}

/// One line of `/proc/meminfo`, or of another file of that form, in bytes.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kibibytes.checked_mul(1024)
}

/// The text of a small system file, if it can be read; bytes that are not UTF-8 (a folder may have such a name) must not hide the rest.
///
/// ```
/// assert_eq!(impasto_graph::host::read_text("/no/such/file".as_ref()), None);
/// ```
pub fn read_text(path: &Path) -> Option<String> {
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
    fn a_limit_of_addresses_is_in_bytes() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \nMax stack size            8388608              unlimited            bytes     \n";
        let line =
            |soft: &str| format!("{limits}Max address space         {soft}             unlimited            bytes\n");
        assert_eq!(address_limit(&line("51200000")), Some(51_200_000));
        assert_eq!(address_limit(&line("unlimited")), None);
        assert_eq!(address_limit(limits), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_answers() {
        let memory = memory().expect("/proc/meminfo is readable");
        assert!(0 < memory.limit && memory.limit <= memory.total);
        assert!(available_memory().expect("/proc/meminfo is readable") <= memory.limit);
    }

    proptest! {
        #[test]
        fn no_text_makes_meminfo_panic(text in "\\PC*", number in "MemTotal: *[0-9]{0,30} *(kB)?\n") {
            meminfo(&text, "MemTotal");
            meminfo(&number, "MemTotal");
        }
    }
}
