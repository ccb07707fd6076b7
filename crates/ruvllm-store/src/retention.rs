//! What a table may keep: how long, how many, how much.

/// Limits of a table. Nothing is removed before somebody asks with `Store::retain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Milliseconds after which a record goes.
    pub age_ms_max: Option<u64>,
    /// Number of records that stay: the newest.
    pub n_records_max: Option<usize>,
    /// Number of bytes of keys and values that stay: the newest.
    pub bytes_max: Option<u64>,
}

/// Result of retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Records.
    pub n_records: usize,
    /// Their keys and values.
    pub n_bytes: u64,
}

impl Retention {
    /// Returns how many of `records` (time and bytes, oldest first) have to go.
    pub fn n_surplus(&self, records: &[(u64, u64)], now_ms: u64) -> usize {
        let oldest_ms = self.age_ms_max.map_or(0, |age_ms| now_ms.saturating_sub(age_ms));
        let by_age = records.partition_point(|&(time_ms, _)| time_ms < oldest_ms);
        let by_count = records.len().saturating_sub(self.n_records_max.unwrap_or(usize::MAX));
        let mut bytes = 0u64;
        let room = self.bytes_max.unwrap_or(u64::MAX);
        let n_kept = records.iter().rev().take_while(|record| {
            bytes = bytes.saturating_add(record.1);
            bytes <= room
        });
        by_age.max(by_count).max(records.len() - n_kept.count())
    }
}
