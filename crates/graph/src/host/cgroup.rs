//! The limits that Linux control groups, version 1 and 2, set on this process.
//!
//! A limit may sit on the group of the process or on any group above it, so each question walks up. Everything here works
//! on a `read` function, not on the file system, so that any machine can be described in a test.

use std::path::{Path, PathBuf};

/// Gives the text of a file, or `None` where there is none.
type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A control group that contains this process, as a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    folder: PathBuf,
}

/// The number of cores that the tightest quota amounts to, rounded up.
pub(crate) fn cpu_quota(read: Read) -> Option<usize> {
    groups("cpu", read)
        .iter()
        .filter_map(|group| match group.version {
            Version::One => {
                let quota = read(&group.folder.join("cpu.cfs_quota_us"))?;
                let period = read(&group.folder.join("cpu.cfs_period_us"))?;
                cores(&quota, &period)
            }
            Version::Two => {
                let text = read(&group.folder.join("cpu.max"))?;
                let (quota, period) = text.trim().split_once(' ')?;
                cores(quota, period)
            }
        })
        .min()
}

/// The smallest memory limit, in bytes.
pub(crate) fn memory_limit(read: Read) -> Option<u64> {
    groups("memory", read).iter().filter_map(|group| group_limit(group, read)).min()
}

/// The bytes that can still be taken before the first group reaches its limit.
pub(crate) fn memory_room(read: Read) -> Option<u64> {
    groups("memory", read)
        .iter()
        .filter_map(|group| Some(group_limit(group, read)?.saturating_sub(group_held(group, read))))
        .min()
}

/// `None` where there is no limit. Past `memory.high` a group is slowed down to a crawl, so for us it is a limit too.
fn group_limit(group: &Group, read: Read) -> Option<u64> {
    let files: &[&str] = match group.version {
        Version::One => &["memory.limit_in_bytes"],
        Version::Two => &["memory.max", "memory.high"],
    };
    files.iter().filter_map(|file| read(&group.folder.join(file))?.trim().parse().ok()).min()
}

/// Bytes that the group holds and the kernel cannot take back: cached files are dropped when memory is asked for.
fn group_held(group: &Group, read: Read) -> u64 {
    let (usage, cached) = match group.version {
        Version::One => ("memory.usage_in_bytes", ["total_active_file", "total_inactive_file"]),
        Version::Two => ("memory.current", ["active_file", "inactive_file"]),
    };
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    let usage = read(&group.folder.join(usage)).map_or(0, |text| number(&text));
    let stat = read(&group.folder.join("memory.stat")).unwrap_or_default();
    stat.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(key, _)| cached.contains(key))
        .fold(usage, |held, (_, bytes)| held.saturating_sub(number(bytes)))
}

/// Quota over period, rounded up; `None` for "no quota" (`max` or -1) and for nonsense.
fn cores(quota: &str, period: &str) -> Option<usize> {
    let quota = quota.trim().parse::<u64>().ok()?;
    let period = period.trim().parse::<u64>().ok().filter(|&period| period > 0)?;
    usize::try_from(quota.div_ceil(period).max(1)).ok()
}

/// The groups that contain this process for one controller, from its own upwards, in each hierarchy that is mounted.
fn groups(controller: &str, read: Read) -> Vec<Group> {
    let cgroups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    [Version::One, Version::Two]
        .into_iter()
        .filter_map(|version| Some((version, own_path(version, controller, &cgroups)?)))
        .flat_map(|(version, path)| {
            folders(&path, &mount_points(version, controller, &mounts))
                .into_iter()
                .map(move |folder| Group { version, folder })
        })
        .collect()
}

/// The group of this process as `/proc/self/cgroup` names it. Lines are `id:controllers:path`; version 2 names no controller.
fn own_path(version: Version, controller: &str, cgroups: &str) -> Option<PathBuf> {
    cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::One => controllers.split(',').any(|name| name == controller),
            Version::Two => id == "0" && controllers.is_empty(),
        };
        found.then(|| PathBuf::from(path))
    })
}

/// Where a hierarchy can be seen: `root` is the group whose folder `point` is.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: PathBuf,
    point: PathBuf,
}

/// The mounts of a hierarchy. Lines are `id parent device root point options [tags] - type source super-options`.
fn mount_points(version: Version, controller: &str, mounts: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let found = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|name| name == controller),
            Version::Two => kind == "cgroup2",
        };
        found.then(|| Mount { root: unescape(root).into(), point: unescape(point).into() })
    };
    mounts.lines().filter_map(mount).collect()
}

/// The folders from the group at `path` up to the mount point.
///
/// In a container the mount often shows only a part of the hierarchy, and with a group namespace `path` may even lead out of
/// it (`/../..`). If no mount contains `path`, the mount point itself is the nearest thing to our own group.
fn folders(path: &Path, mounts: &[Mount]) -> Vec<PathBuf> {
    let below = |mount: &Mount| {
        let rest = path.strip_prefix(&mount.root).ok()?;
        let plain = rest.components().all(|part| part.as_os_str() != "..");
        plain.then(|| {
            let own = mount.point.join(rest);
            let depth = rest.components().count() + 1;
            own.ancestors().take(depth).map(Path::to_path_buf).collect::<Vec<_>>()
        })
    };
    let found: Vec<_> = mounts.iter().filter_map(below).flatten().collect();
    if found.is_empty() { mounts.iter().map(|mount| mount.point.clone()).collect() } else { found }
}

/// Undoes the `\040` style in which mountinfo writes spaces and backslashes.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// A machine described by its files.
    fn machine<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        move |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some(found.1.to_owned())
        }
    }

    const V2_MOUNT: &str = "24 30 0:22 / /sys rw - sysfs sysfs rw\n35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn a_limit_on_a_parent_group_counts() {
        let read = machine(&[
            ("/proc/self/cgroup", "0::/user.slice/app.scope\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n"),
            ("/sys/fs/cgroup/user.slice/app.scope/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1073741824\n"),
        ]);
        assert_eq!(cpu_quota(&read), Some(3));
        assert_eq!(memory_limit(&read), Some(1024 * MIB));
    }

    #[test]
    fn cached_files_do_not_count_as_held() {
        let read = machine(&[
            ("/proc/self/cgroup", "0::/box\n"),
            ("/proc/self/mountinfo", V2_MOUNT),
            ("/sys/fs/cgroup/box/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/box/memory.high", "536870912\n"),
            ("/sys/fs/cgroup/box/memory.current", "419430400\n"),
            ("/sys/fs/cgroup/box/memory.stat", "anon 1\ninactive_file 209715200\nactive_file 104857600\n"),
        ]);
        assert_eq!(memory_limit(&read), Some(512 * MIB));
        assert_eq!(memory_room(&read), Some(412 * MIB));
    }

    #[test]
    fn version_1_in_a_container_that_sees_only_its_own_group() {
        let read = machine(&[
            ("/proc/self/cgroup", "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab/inner\n1:name=systemd:/\n"),
            (
                "/proc/self/mountinfo",
                "40 35 0:31 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
                 41 35 0:32 /docker/ab /sys/fs/cgroup/memory ro master:3 - cgroup cgroup rw,memory\n",
            ),
            ("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 2147483648\n"),
        ]);
        assert_eq!(cpu_quota(&read), Some(1));
        assert_eq!(memory_limit(&read), Some(2048 * MIB));
        assert_eq!(memory_room(&read), Some(1024 * MIB));
    }

    #[test]
    fn a_group_outside_of_the_namespace_falls_back_to_the_mount() {
        for path in ["0::/../other\n", "0::/\n"] {
            let files = [
                ("/proc/self/cgroup", path),
                ("/proc/self/mountinfo", V2_MOUNT),
                ("/sys/fs/cgroup/memory.max", "1048576\n"),
                ("/sys/fs/memory.max", "1\n"),
            ];
            let read = machine(&files);
            assert_eq!(memory_limit(&read), Some(MIB), "{path}");
        }
    }

    #[test]
    fn a_foreign_mount_is_not_ours_when_our_own_is_there() {
        let mounts = [
            Mount { root: "/docker/other".into(), point: "/elsewhere".into() },
            Mount { root: "/".into(), point: "/sys/fs/cgroup".into() },
        ];
        let own = folders(Path::new("/a/b"), &mounts);
        let expected = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"];
        assert_eq!(own, expected.map(PathBuf::from));
    }

    #[test]
    fn no_groups_no_limits() {
        let read = machine(&[]);
        assert_eq!(cpu_quota(&read), None);
        assert_eq!(memory_limit(&read), None);
        assert_eq!(memory_room(&read), None);
    }

    #[test]
    fn spaces_in_mount_points() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
        assert_eq!(unescape("/a\\9\\"), "/a\\9\\");
    }

    proptest! {
        #[test]
        fn a_quota_is_rounded_up_and_never_zero(quota in 0_u64..10_000_000, period in 1_u64..1_000_000) {
            let cores = cores(&quota.to_string(), &format!("{period}\n")).unwrap() as u64;
            prop_assert!(cores >= 1);
            prop_assert!(cores * period >= quota);
            prop_assert!((cores - 1) * period < quota.max(1));
        }

        #[test]
        fn no_file_makes_it_panic(
            cgroups in "([0-9]{0,2}:?(cpu|memory|,|)?:?[/.a-zé\\\\]{0,9}\n){0,4}",
            mounts in "([0-9]{1,2} 1 0:1 /[a.é/\\\\0-9]{0,5} /[a/\\\\0-9]{0,5} rw( x)? - cgroup2? c (rw|cpu|memory)\n){0,4}",
            value in "\\PC{0,20}|[0-9]{1,25} [0-9]{1,25}|max 0",
        ) {
            let read = |path: &Path| Some(match path.to_str() {
                Some("/proc/self/cgroup") => cgroups.clone(),
                Some("/proc/self/mountinfo") => mounts.clone(),
                _ => value.clone(),
            });
            prop_assert!(cpu_quota(&read) != Some(0));
            memory_limit(&read);
            memory_room(&read);
        }
    }
}
