//! How long a worker is waited for, and how much memory it may take.

use std::time::{Duration, Instant};

/// How long a worker may take without having done a piece of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Patience {
    /// Whatever is estimated.
    pub least: Duration,
    /// How long a piece should take.
    pub estimate: Duration,
}

impl Patience {
    /// Estimates are coarse, and machines do other things beside.
    const TIMES: u32 = 10;

    pub fn allows(self) -> Duration {
        self.least.saturating_add(self.estimate.saturating_mul(Patience::TIMES))
    }
}

/// Counts the time in which nothing was done. A moment in which this process itself did not run, since it was stopped or the machine slept, is
/// no fault of the worker: no look at the clock counts for much more than the time between two looks.
pub(crate) struct Watchdog {
    beats: u64,
    heard: u64,
    /// Since the last piece of work, and since the last word.
    still: Duration,
    silent: Duration,
    looked: Instant,
    /// What its processors had done for it when half of the patience was over.
    half: Option<Duration>,
}

/// What is wrong with a worker that goes on.
#[derive(Debug, PartialEq)]
pub(crate) enum Wrong {
    /// It lives and does nothing.
    Hangs(Duration),
    /// It says nothing any more.
    Silent(Duration),
}

impl Watchdog {
    /// So many times as long as others may those stand still whom processors work for: a driver that compiles, on a machine that does much else.
    const BUSY: u32 = 8;

    pub fn new(beats: u64, heard: u64) -> Watchdog {
        Watchdog { beats, heard, still: Duration::ZERO, silent: Duration::ZERO, looked: Instant::now(), half: None }
    }

    /// Looks at how many pieces of work were done and how many words heard; `tick` is the time between two looks, `worked` how long processors
    /// have worked for the worker, where that is known.
    pub fn look(
        &mut self,
        beats: u64,
        heard: u64,
        tick: Duration,
        patience: Patience,
        worked: impl Fn() -> Option<Duration>,
    ) -> Option<Wrong> {
        let passed = self.looked.elapsed().min(2 * tick);
        self.looked = Instant::now();
        self.still = if beats == self.beats { self.still + passed } else { Duration::ZERO };
        self.silent = if heard == self.heard { self.silent + passed } else { Duration::ZERO };
        (self.beats, self.heard) = (beats, heard);
        let allowed = patience.allows();
        if self.silent > patience.least {
            return Some(Wrong::Silent(patience.least));
        }
        if self.still <= allowed / 2 {
            self.half = None;
        } else if self.half.is_none() {
            self.half = worked();
        }
        // Who waits for a device that will never answer uses nothing: saying that one lives takes a thousandth of a processor.
        let since = self.still.saturating_sub(allowed / 2);
        let is_busy = || self.half.zip(worked()).is_some_and(|(half, now)| now.saturating_sub(half) > since / 100);
        let hangs = self.still > allowed && (self.still > Watchdog::BUSY * allowed || !is_busy());
        hangs.then_some(Wrong::Hangs(self.still))
    }
}

/// How long processors have worked for a process.
#[cfg(target_os = "linux")]
pub(crate) fn worked(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // After the name, which may contain anything: the state, ten others, and then the ticks of a hundredth of a second.
    let mut ticks = stat.rsplit(')').next()?.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(Duration::from_millis(10 * (ticks.next()?? + ticks.next()??)))
}

/// Unknown here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn worked(_: u32) -> Option<Duration> {
    None
}

/// Bytes of memory of its own that a process has, files that it maps not counted.
#[cfg(target_os = "linux")]
pub(crate) fn own_memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kilobytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().trim_end_matches("kB").trim().parse().ok()
    };
    Some((kilobytes("RssAnon")? + kilobytes("RssShmem").unwrap_or(0)) << 10)
}

/// Unknown here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn own_memory(_: u32) -> Option<u64> {
    None
}

/// Memory that a worker may take beyond what is planned: drivers and compilers need some.
pub(crate) fn slack() -> u64 {
    const MOST: u64 = 4 << 30;
    impasto_device::cpu::memory().map_or(MOST, |memory| (memory.limit / 4).min(MOST))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const PATIENCE: Patience = Patience { least: Duration::from_millis(500), estimate: Duration::from_millis(50) };

    /// Looks as if they were made a tick apart.
    fn after(
        dog: &mut Watchdog,
        ticks: u32,
        mut beats: impl FnMut(u32) -> u64,
        mut heard: impl FnMut(u32) -> u64,
        worked: impl Fn(u32) -> Option<Duration>,
    ) -> Option<Wrong> {
        (0..ticks).find_map(|i| {
            dog.looked -= TICK;
            dog.look(beats(i), heard(i), TICK, PATIENCE, || worked(i))
        })
    }

    #[test]
    fn work_is_never_too_long_silence_and_standing_still_are() {
        let mut dog = Watchdog::new(0, 0);
        let unknown = |_| None;
        assert_eq!(after(&mut dog, 1000, |i| u64::from(i / 5), u64::from, unknown), None);
        assert!(matches!(after(&mut dog, 15, |_| 7, u64::from, unknown), Some(Wrong::Hangs(_))));
        let mut dog = Watchdog::new(0, 0);
        assert!(matches!(after(&mut dog, 10, u64::from, |_| 7, unknown), Some(Wrong::Silent(_))));
    }

    /// A driver that compiles for minutes is not killed, one that waits for nothing is, and one that runs in circles in the end.
    #[test]
    fn who_is_busy_may_take_longer() {
        let standing = |ticks, share: f64| {
            let mut dog = Watchdog::new(0, 0);
            after(&mut dog, ticks, |_| 0, u64::from, |i| Some(TICK.mul_f64(f64::from(i) * share)))
        };
        assert!(matches!(standing(15, 0.001), Some(Wrong::Hangs(_))));
        assert_eq!(standing(70, 0.05), None);
        assert!(matches!(standing(100, 2.0), Some(Wrong::Hangs(_))));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn work_is_seen() {
        let of = || worked(std::process::id()).expect("this process lives");
        let (before, begun) = (of(), Instant::now());
        while of() < before + Duration::from_millis(50) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{before:?} and then {:?}", of());
        }
    }

    #[test]
    fn a_pause_of_our_own_is_not_the_workers() {
        let mut dog = Watchdog::new(0, 0);
        dog.looked -= Duration::from_secs(3600);
        assert_eq!(dog.look(0, 0, TICK, PATIENCE, || None), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_taken_is_seen() {
        let before = own_memory(std::process::id()).expect("this process lives");
        let taken = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = own_memory(std::process::id()).expect("this process lives");
        assert!(after >= before + (48 << 20), "{before} {after} {}", taken.len());
    }
}
