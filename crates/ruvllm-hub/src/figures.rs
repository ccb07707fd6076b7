//! Numbers and times as people read them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns a number of bytes for people: `98.4 MB`.
pub fn bytes(n: u64) -> String {
    let (value, unit) = scaled(n as f64, &["B", "kB", "MB", "GB", "TB"]);
    if unit == "B" { format!("{n} B") } else { format!("{value:.1} {unit}") }
}

/// Returns a count for people: `134.5 M`.
pub fn count(n: u64) -> String {
    let (value, unit) = scaled(n as f64, &["", "k", "M", "G", "T"]);
    if unit.is_empty() { n.to_string() } else { format!("{value:.1} {unit}") }
}

fn scaled(value: f64, units: &[&'static str]) -> (f64, &'static str) {
    let idx = (0..units.len()).rev().find(|idx| value >= 1000f64.powi(*idx as i32)).unwrap_or(0);
    (value / 1000f64.powi(idx as i32), units[idx])
}

/// Returns seconds since 1970 as `YYYY-MM-DDTHH:MM:SSZ` (Hinnant, "chrono-compatible low-level date algorithms").
pub fn timestamp(unix_s: u64) -> String {
    let (days, rest) = (unix_s / 86_400, unix_s % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns the seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(98_362_432), "98.4 MB");
        assert_eq!(count(134_515_008), "134.5 M");
        assert_eq!(count(0), "0");
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_795_219_200), "2026-11-21T00:00:00Z");
    }
}
