//! Sentences on standard error, where a status cannot say enough: each once in a process.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Writes a sentence, unless it has been written before.
#[allow(clippy::print_stderr, reason = "the only place where a program without an interface of its own can be told")]
pub(crate) fn once(sentence: &str) {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(sentence.to_owned()) {
        eprintln!("libcuda (simulated): {sentence}");
    }
}
