//! Processes of tests that are killed while they write.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore as _;

/// Runs `test` of this program, which finds `path` in the environment variable `variable`, and kills it somewhere in its first
/// acknowledgements, wherever that is: opening, writing, syncing. `read` tells an acknowledgement from other
/// lines. Returns the last one, also of those that the process had written before it was killed.
///
/// # Panics
/// If the process cannot be started or killed.
pub fn run<T>(
    (test, variable, path): (&str, &str, &Path),
    rng: &mut ChaCha8Rng,
    read: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(variable, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let mut acknowledged = lines.filter_map(|line| read(&line));
    let mut last = None;
    for _ in 0..rng.next_u32() % 3 {
        last = acknowledged.next().or(last);
    }
    std::thread::sleep(Duration::from_micros(u64::from(rng.next_u32() % 6000)));
    child.kill().expect("to be killed");
    child.wait().expect("its end");
    acknowledged.last().or(last)
}
