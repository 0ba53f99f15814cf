//! What there is to say besides a result.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages for the user. One that comes again is kept once, with its count.
///
/// ```
/// let messages = impasto_kernel::Messages::default();
/// messages.say("the folder is full");
/// messages.say("the folder is full");
/// messages.say("the device is old");
/// assert_eq!(messages.to_string(), "the folder is full (2 times)\nthe device is old\n");
/// ```
#[derive(Debug, Default)]
pub struct Messages(Mutex<MessageCounts>);

#[derive(Debug, Default)]
struct MessageCounts {
    /// In the order in which they came first.
    list: Vec<(String, u64)>,
    places: HashMap<String, usize>,
}

impl Messages {
    fn counted(&self) -> MutexGuard<'_, MessageCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message.
    pub fn say(&self, text: impl Into<String>) {
        let (text, mut counted) = (text.into(), self.counted());
        let counted = &mut *counted;
        match counted.places.get(&text) {
            Some(&i) => counted.list[i].1 += 1,
            None => {
                counted.places.insert(text.clone(), counted.list.len());
                counted.list.push((text, 1));
            }
        }
    }

    /// Takes all messages, each with its count, in the order in which they came first.
    pub fn take(&self) -> Vec<(String, u64)> {
        std::mem::take(&mut *self.counted()).list
    }
}

impl fmt::Display for Messages {
    /// One line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, count) in &self.counted().list {
            match count {
                1 => writeln!(f, "{text}")?,
                _ => writeln!(f, "{text} ({count} times)")?,
            }
        }
        Ok(())
    }
}
