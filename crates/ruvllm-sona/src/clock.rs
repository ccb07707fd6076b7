//! The clock that records are stamped by.

use web_time::{SystemTime, UNIX_EPOCH};

/// Returns the time of now in Unix milliseconds; 0 where the clock stands before 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
