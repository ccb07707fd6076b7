//! What people see: answers on standard output, progress and notes on standard error, and how numbers are written.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ruvllm_hub::{Progress, Task};
pub use ruvllm_hub::{bytes, count, timestamp};

use crate::error::{Error, Result};
use crate::work::WorkProgress;

/// Where this process writes to, and whether colours and progress bars are welcome there.
#[derive(Clone, Copy, Debug)]
pub struct Ui {
    /// Whether standard output is a terminal that takes colours.
    pub has_color_out: bool,
    /// Whether standard error is a terminal.
    pub has_terminal_err: bool,
    /// Whether standard error takes colours.
    has_color_err: bool,
    /// Whether lines belong in the log of a server.
    has_log: bool,
}

impl Ui {
    /// Asks the streams; `no_color` is the person's wish.
    pub fn new(no_color: bool) -> Ui {
        let has_terminal_err = io::stderr().is_terminal();
        let has_color_out = io::stdout().is_terminal() && !no_color;
        Ui { has_color_out, has_terminal_err, has_color_err: has_terminal_err && !no_color, has_log: false }
    }

    /// Returns one whose lines go to the log of a server, once that is started.
    pub fn in_log(self) -> Ui {
        Ui { has_log: true, ..self }
    }

    /// Begins work that is followed by a bar over bytes, or by lines where standard error is no terminal.
    pub fn bytes_bar(&self, what: &str, n_bytes: u64) -> WorkProgress {
        let style = "{msg:>12} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        self.bar(ProgressBar::new(n_bytes), style, what)
    }

    /// Begins work of `n` steps, as [`Ui::bytes_bar`].
    pub fn steps_bar(&self, what: &str, n: u64) -> WorkProgress {
        self.bar(ProgressBar::new(n), "{msg:>12} {wide_bar} {pos}/{len} {eta}", what)
    }

    /// Begins work of unknown length, as [`Ui::bytes_bar`].
    pub fn spinner(&self, what: &str) -> WorkProgress {
        let spinner = self.bar(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}", what);
        if self.has_terminal_err {
            spinner.enable_steady_tick(Duration::from_millis(120));
        }
        spinner
    }

    fn bar(&self, bar: ProgressBar, style: &str, what: &str) -> WorkProgress {
        if !self.has_terminal_err {
            bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
            let tell = if self.has_log { |line: &str| tracing::info!("{line}") } else { |line: &str| note(line) };
            return WorkProgress::told(bar, what, tell);
        }
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        WorkProgress::shown(bar)
    }

    /// Warns of something that is done all the same: a line on standard error, or in the log of a server.
    pub fn warn(&self, text: &str) {
        match self.has_log {
            true => tracing::warn!("{text}"),
            false => drop(writeln!(io::stderr(), "warning: {text}")),
        }
    }

    /// Writes a dim note to standard error, if that is a terminal.
    pub fn note(&self, text: &str) {
        if self.has_terminal_err {
            let (dim, plain) = if self.has_color_err { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
            eprintln!("{dim}{text}{plain}");
        }
    }

    /// Returns `text` in the colour of answers, where standard output takes colours.
    pub fn answer(&self, text: &str) -> String {
        if self.has_color_out { format!("\x1b[36m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Progress for Ui {
    fn begin(&self, what: &str, n_bytes: Option<u64>) -> Box<dyn Task> {
        Box::new(Shown(match n_bytes {
            Some(n_bytes) => self.bytes_bar(what, n_bytes),
            None => self.spinner(what),
        }))
    }

    fn note(&self, line: &str) {
        Ui::note(self, line);
    }

    fn warn(&self, line: &str) {
        Ui::warn(self, line);
    }
}

/// Work of the hub under way. Its bar goes with it.
struct Shown(WorkProgress);

impl Task for Shown {
    fn set(&self, n_bytes: u64) {
        self.0.set_position(n_bytes);
    }

    fn add(&self, n_bytes: u64) {
        self.0.inc(n_bytes);
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Writes a line about what is being done to standard error; that nobody reads it is no reason to stop.
fn note(line: &str) {
    drop(writeln!(io::stderr(), "note: {line}"));
}

/// Writes text to standard output at once.
///
/// # Errors
/// [`Error::BrokenPipe`] if the reader has gone, else a failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::BrokenPipe,
        _ => Error::failure(format_args!("cannot write to standard output: {}", crate::error::io_reason(&error))),
    })
}

/// Writes a line to standard output at once.
///
/// # Errors
/// As [`print()`].
pub fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n"))
}

/// Writes one JSON object on one line to standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<()> {
    print_line(&value.to_string())
}

/// Lays rows out in columns two spaces apart; the columns named in `right` are aligned right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<_> = (0..n_columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned() {
        let rows = [vec!["name".to_owned(), "size".to_owned()], vec!["a".to_owned(), "1".to_owned()]];
        assert_eq!(table(&rows, &[1]), "name  size\na        1\n");
    }
}
