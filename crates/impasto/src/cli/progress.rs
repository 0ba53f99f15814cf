//! One line of progress.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use impasto::generate::Event;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line that says what happens and how long it takes yet; on no terminal, a line for each new thing, and now and then how far it is.
pub struct Progress {
    bar: ProgressBar,
    terminal: bool,
    doing: String,
    /// When something was last said of it.
    said: Instant,
    /// When the first of it was done, and how much that was.
    first: Option<(Instant, u64)>,
}

/// Seconds between two lines where there is no terminal.
const SILENCE: u64 = 10;

impl Progress {
    pub fn new() -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        if !terminal {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Progress { bar, terminal, doing: String::new(), said: Instant::now(), first: None }
    }

    pub fn show(&mut self, event: &Event) {
        match *event {
            Event::Loading { module, done, of } => self.at(&format!("loading {module}"), done, of, bytes_left),
            Event::Compiling { module, done, of } => {
                self.at(&format!("compiling {of} kernels of {module}"), done, of, |done, of, left| {
                    format!("{done} of {of}{}", left.map_or(String::new(), |left| format!(", {} left", time(left))))
                });
            }
            Event::Working(what) => self.at(what, 0, 0, bytes_left),
            Event::Step { picture, done, of } => {
                self.at(&format!("picture {}", picture + 1), done as u64, of as u64, steps_left);
            }
            _ => {}
        }
    }

    /// How many bytes of a file are written.
    pub fn converting(&mut self, done: u64, of: u64) {
        self.at("converting", done, of, bytes_rate);
    }

    /// What is done, how much of it, and how that is told.
    fn at(&mut self, what: &str, done: u64, of: u64, tell: impl Fn(u64, u64, Option<f64>) -> String) {
        if self.doing != what {
            self.doing = what.into();
            (self.said, self.first) = (Instant::now(), None);
            if !self.terminal {
                eprintln!("{what}");
            }
            let style = if of > 0 { "{prefix:<12} [{bar:30}] {msg}" } else { "{prefix} {elapsed}" };
            if let Ok(style) = ProgressStyle::with_template(style) {
                self.bar.set_style(style.progress_chars("=> "));
            }
            self.bar.reset();
            self.bar.set_prefix(what.to_string());
        }
        // The first part takes longer than the others, and is no measure of them once there is another.
        if done > 0 && self.first.is_none() {
            self.first = Some((Instant::now(), done));
        }
        let left = self.first.and_then(|(at, first)| match done.checked_sub(first) {
            Some(since @ 1..) => Some(at.elapsed().as_secs_f64() / since as f64 * of.saturating_sub(done) as f64),
            _ => None,
        });
        if !self.terminal && done > 0 && self.said.elapsed().as_secs() >= SILENCE {
            eprintln!("{what}: {}", tell(done, of, left));
            self.said = Instant::now();
        }
        self.bar.set_length(of.max(1));
        self.bar.set_position(done);
        if of > 0 {
            self.bar.set_message(tell(done, of, left));
        }
        if of == 0 {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            self.bar.disable_steady_tick();
        }
    }

    pub fn clear(&mut self) {
        self.doing.clear();
        self.bar.finish_and_clear();
    }
}

/// `step 7 of 20, 1.1 s a step, 14 s left`: from the second step on, whose time is believable.
fn steps_left(done: u64, of: u64, left: Option<f64>) -> String {
    let rate = left.filter(|_| done < of).map(|left| {
        let step = left / (of - done) as f64;
        format!(", {} a step, {} left", time(step), time(left))
    });
    format!("step {done} of {of}{}", rate.unwrap_or_default())
}

/// `1.2 of 5.1 GB, 3 s left`.
fn bytes_left(done: u64, of: u64, left: Option<f64>) -> String {
    let (unit, name) = if of >= 1_000_000_000 { (1e9, "GB") } else { (1e6, "MB") };
    let left = left.map_or(String::new(), |left| format!(", {} left", time(left)));
    format!("{:.1} of {:.1} {name}{left}", done as f64 / unit, of as f64 / unit)
}

/// `1.2 of 5.1 GB, 420 MB/s, 9 s left`.
fn bytes_rate(done: u64, of: u64, left: Option<f64>) -> String {
    let told = bytes_left(done, of, left);
    match left.filter(|left| done < of && *left > 0.0) {
        Some(left) => told.replacen(", ", &format!(", {:.0} MB/s, ", (of - done) as f64 / left / 1e6), 1),
        None => told,
    }
}

/// Seconds as people read them.
fn time(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{:.0} ms", 1000.0 * seconds),
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_rates_and_times_read_as_people_speak() {
        assert_eq!(steps_left(7, 20, Some(14.3)), "step 7 of 20, 1.1 s a step, 14 s left");
        assert_eq!(steps_left(1, 20, None), "step 1 of 20");
        assert_eq!(steps_left(20, 20, Some(0.0)), "step 20 of 20");
        assert_eq!(bytes_left(1_200_000_000, 5_100_000_000, Some(3.0)), "1.2 of 5.1 GB, 3.0 s left");
        assert_eq!(bytes_rate(1_000_000_000, 5_000_000_000, Some(10.0)), "1.0 of 5.0 GB, 400 MB/s, 10 s left");
        assert_eq!(bytes_rate(5_000_000, 5_000_000, Some(0.0)), "5.0 of 5.0 MB, 0 ms left");
        assert_eq!([0.05, 300.0, 9000.0].map(time), ["50 ms", "5 min", "2.5 h"]);
    }
}
