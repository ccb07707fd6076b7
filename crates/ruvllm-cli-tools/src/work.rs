//! Progress of long work: a bar where standard error is a terminal, elsewhere a line once the work takes long.

use std::ops::Deref;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::ProgressBar;

/// Time that work may take without a line.
const QUIET: Duration = Duration::from_secs(2);
/// Time between two lines after that.
const BETWEEN: Duration = Duration::from_secs(30);

/// Work under way: the progress bar it is followed with. It is over when this is finished or dropped.
#[derive(Debug)]
pub struct WorkProgress {
    bar: ProgressBar,
    /// Name of what the work is done with, such as a file.
    detail: Arc<OnceLock<String>>,
    notice: Mutex<Option<Notice>>,
}

/// The thread that writes lines where no bar is seen.
#[derive(Debug)]
struct Notice {
    /// Dropped, it ends the thread.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl WorkProgress {
    /// Begins work that a bar shows.
    pub fn shown(bar: ProgressBar) -> WorkProgress {
        WorkProgress { bar, detail: Arc::default(), notice: Mutex::default() }
    }

    /// Begins work whose bar nobody sees: `tell` is given a line after two seconds, and one every half a minute after that.
    pub fn told(bar: ProgressBar, what: &str, tell: fn(&str)) -> WorkProgress {
        let detail: Arc<OnceLock<String>> = Arc::default();
        let (over, is_over) = mpsc::channel();
        let (of_bar, of_detail, what) = (bar.clone(), Arc::clone(&detail), what.to_owned());
        let watch = move || {
            let mut wait = QUIET;
            while is_over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                tell(&line(&what, of_detail.get(), &of_bar));
                wait = BETWEEN;
            }
        };
        // Without a thread there is no word, and the work is done all the same.
        let thread = thread::Builder::new().name("notice".to_owned()).spawn(watch).ok();
        WorkProgress { bar, detail, notice: Mutex::new(Some(Notice { over: Some(over), thread })) }
    }

    /// Says what the work is done with.
    pub fn of(self, detail: impl Into<String>) -> WorkProgress {
        // It is said once.
        let _ = self.detail.set(detail.into());
        self
    }

    /// Ends the work: the bar goes, and no line comes after this.
    pub fn finish_and_clear(&self) {
        drop(self.notice.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.bar.finish_and_clear();
    }
}

/// Returns the line about work under way.
fn line(what: &str, detail: Option<&String>, bar: &ProgressBar) -> String {
    let detail = detail.map_or_else(String::new, |detail| format!(" {detail}"));
    match (bar.position(), bar.length()) {
        (done @ 1.., Some(all)) if all >= done => format!("{what}{detail}: {} %", 100 * done / all),
        _ => format!("{what}{detail} ..."),
    }
}

impl Deref for WorkProgress {
    type Target = ProgressBar;

    fn deref(&self) -> &ProgressBar {
        &self.bar
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // It panics no more than the standard error stream does.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn tell(line: &str) {
        TOLD.lock().expect("nobody panics with it").push(line.to_owned());
    }

    #[test]
    fn long_work_is_told_and_short_work_is_not() {
        drop(WorkProgress::told(ProgressBar::hidden(), "short", tell));
        let work = WorkProgress::told(ProgressBar::hidden(), "loading", tell).of("m.gguf");
        thread::sleep(QUIET + Duration::from_millis(500));
        drop(work);
        assert_eq!(*TOLD.lock().expect("nobody panics with it"), ["loading m.gguf ..."]);
    }

    #[test]
    fn lines_say_how_far_it_is() {
        let bar = ProgressBar::hidden();
        bar.set_length(200);
        bar.set_position(50);
        assert_eq!(line("calibrating", None, &bar), "calibrating: 25 %");
        bar.set_length(0);
        assert_eq!(line("asking", Some(&"the hub".to_owned()), &bar), "asking the hub ...");
    }
}
