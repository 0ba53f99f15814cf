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
    /// When this was begun, and when something was last said of it.
    begun: Instant,
    said: Instant,
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
        Progress { bar, terminal, doing: String::new(), begun: Instant::now(), said: Instant::now() }
    }

    pub fn show(&mut self, event: &Event) {
        match *event {
            Event::Loading { module, done, of } => self.at(&format!("loading {module}"), done, of),
            Event::Compiling { module, done, of } => {
                self.at(&format!("compiling {of} kernels of {module}"), done, of);
            }
            Event::Working(what) => self.at(what, 0, 0),
            Event::Step { picture, done, of } => self.at(&format!("picture {}", picture + 1), done as u64, of as u64),
            _ => {}
        }
    }

    fn at(&mut self, what: &str, done: u64, of: u64) {
        if self.doing != what {
            self.doing = what.into();
            (self.begun, self.said) = (Instant::now(), Instant::now());
            if !self.terminal {
                eprintln!("{what}");
            }
            let style = if of > 0 { "{msg:<24} [{bar:30}] {percent:>3} %, {eta} left" } else { "{msg:<24} {elapsed}" };
            if let Ok(style) = ProgressStyle::with_template(style) {
                self.bar.set_style(style.progress_chars("=> "));
            }
            self.bar.reset();
            self.bar.set_message(what.to_string());
        }
        if !self.terminal && done > 0 && self.said.elapsed().as_secs() >= SILENCE {
            let left = self.begun.elapsed().as_secs_f64() / done as f64 * of.saturating_sub(done) as f64;
            eprintln!("{what}: {} %, {left:.0} s left", 100 * done / of.max(1));
            self.said = Instant::now();
        }
        self.bar.set_length(of.max(1));
        self.bar.set_position(done);
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
