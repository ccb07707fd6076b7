//! Progress of long work, told to whoever shows it.

/// Listener to long work. A program shows it as bars or lines; [`Silent`] shows nothing.
pub trait Progress: Sync {
    /// Begins work of `n_bytes`, or of unknown length. The work is over when the task is dropped.
    fn begin(&self, what: &str, n_bytes: Option<u64>) -> Box<dyn Task>;

    /// Tells something that is no part of the answer.
    fn note(&self, line: &str);

    /// Tells something that changes the answer.
    fn warn(&self, line: &str) {
        self.note(line);
    }
}

/// Work under way.
pub trait Task {
    /// Sets how many bytes are done.
    fn set(&self, n_bytes: u64);

    /// Adds bytes that are done.
    fn add(&self, n_bytes: u64);
}

/// Progress that nobody looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _n_bytes: Option<u64>) -> Box<dyn Task> {
        Box::new(Silent)
    }

    fn note(&self, _line: &str) {}
}

impl Task for Silent {
    fn set(&self, _n_bytes: u64) {}

    fn add(&self, _n_bytes: u64) {}
}
