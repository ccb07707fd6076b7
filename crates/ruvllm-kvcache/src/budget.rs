//! Memory that the KV cache and adapters share, and what to do when it runs short.

use crate::error::{KvError, KvErrorKind};
use std::collections::HashMap;

/// Unit of a budget: a huge page of x86-64 and AArch64.
pub const PAGE_BYTES: usize = 2 << 20;

/// From this share on a budget is [`Level::Elevated`], and relief goes down to it.
const ELEVATED: f64 = 0.70;
/// From this share on a budget is [`Level::High`], until it is below [`ELEVATED`] again.
const HIGH: f64 = 0.85;

/// Who holds memory of a budget. In order of priority: what comes later is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// Blocks that sequences use.
    Sequences,
    /// Blocks that only the prefix cache holds.
    Cache,
    /// Adapters that are loaded.
    Adapters,
}

/// Level of a budget's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Below 70 %.
    #[default]
    Low,
    /// From 70 % on, if it was not high before.
    Elevated,
    /// From 85 % on, until it is below 70 % again.
    High,
}

/// Measures when memory runs short, the mildest first. A budget only says which; its owner does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relief {
    /// Keep old blocks in fewer bits.
    Quantise,
    /// Give up what only the cache holds.
    Evict,
    /// Move blocks to disk.
    Spill,
    /// Take no new requests.
    Reject,
}

/// Advice of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Level of its use.
    pub level: Level,
    /// Bytes above 70 %: what relief should bring.
    pub excess_bytes: usize,
    /// Measure to take; none at [`Level::Low`].
    pub relief: Option<Relief>,
}

/// Bytes in whole pages, who holds them, and quotas of tenants. Never more is granted than there is.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    total_bytes: usize,
    /// By [`Owner`].
    held: [usize; 3],
    /// What somebody else has of it.
    lent_bytes: usize,
    level: Level,
    /// What the caller can do, the mildest first.
    reliefs: Vec<Relief>,
    is_quantisable: bool,
    quotas: HashMap<u64, usize>,
}

impl MemoryBudget {
    /// Makes a budget of as many whole pages as `bytes` hold, whose owner can do `reliefs`.
    pub fn new(bytes: usize, reliefs: &[Relief]) -> MemoryBudget {
        let mut reliefs = reliefs.to_vec();
        reliefs.sort_unstable();
        let total_bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        MemoryBudget {
            total_bytes,
            held: [0; 3],
            lent_bytes: 0,
            level: Level::Low,
            reliefs,
            is_quantisable: true,
            quotas: HashMap::new(),
        }
    }

    /// Returns its bytes: whole pages.
    pub fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Returns the bytes that are held.
    pub fn held_bytes(&self) -> usize {
        self.held.iter().sum()
    }

    /// Tells how much somebody else has of it now: levels are shares of the rest. To be followed by
    /// [`MemoryBudget::set_held`].
    pub fn set_lent(&mut self, bytes: usize) {
        self.lent_bytes = bytes;
    }

    /// Returns the bytes that are not lent.
    fn own_bytes(&self) -> usize {
        self.total_bytes.saturating_sub(self.lent_bytes)
    }

    /// Tells how much each owner holds now; those not named hold what they held.
    ///
    /// # Panics
    /// If that is more than there is: the owners size what they hand out by [`MemoryBudget::total_bytes`].
    pub fn set_held(&mut self, owners: &[(Owner, usize)]) {
        owners.iter().for_each(|&(owner, bytes)| self.held[owner as usize] = bytes);
        let (held, total) = (self.held_bytes(), self.own_bytes());
        assert!(held <= total, "{held} bytes held of a budget of {total}");
        let share = held as f64 / total.max(1) as f64;
        self.level = match self.level {
            _ if share >= HIGH => Level::High,
            _ if share < ELEVATED => Level::Low,
            Level::Low => Level::Elevated,
            level => level,
        };
    }

    /// Tells whether there is anything left to keep in fewer bits.
    pub fn set_quantisable(&mut self, is_left: bool) {
        self.is_quantisable = is_left;
    }

    /// Returns how full it is and what to do about it: the mildest the caller can do. Only quantising does not wait for
    /// [`Level::High`]; evicting helps while the cache holds something.
    pub fn pressure(&self) -> Pressure {
        let excess_bytes = self.held_bytes().saturating_sub((self.own_bytes() as f64 * ELEVATED) as usize);
        let fits = |relief: &Relief| match relief {
            Relief::Evict => self.level == Level::High && self.held[Owner::Cache as usize] > 0,
            Relief::Quantise => self.level >= Level::Elevated && self.is_quantisable,
            Relief::Spill | Relief::Reject => self.level == Level::High,
        };
        Pressure { level: self.level, excess_bytes, relief: self.reliefs.iter().copied().find(fits) }
    }

    /// Limits what the sequences of a tenant hold together; `None` lifts the limit.
    pub fn set_quota(&mut self, tenant: u64, bytes: Option<usize>) {
        match bytes {
            Some(bytes) => drop(self.quotas.insert(tenant, bytes)),
            None => drop(self.quotas.remove(&tenant)),
        }
    }

    /// Checks that a tenant may hold `needed` bytes.
    ///
    /// # Errors
    /// [`KvErrorKind::QuotaFull`] if its quota is less.
    pub fn check_quota(&self, tenant: u64, needed: usize) -> Result<(), KvError> {
        match self.quotas.get(&tenant) {
            Some(&quota) if needed > quota => Err(KvError::new(KvErrorKind::QuotaFull { needed, quota })),
            _ => Ok(()),
        }
    }

    /// Returns whether any tenant has a quota.
    pub fn has_quotas(&self) -> bool {
        !self.quotas.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(budget: &mut MemoryBudget, percent: [usize; 2]) -> (Level, Option<Relief>) {
        let page = budget.total_bytes() / 100;
        budget.set_held(&[(Owner::Sequences, percent[0] * page), (Owner::Cache, percent[1] * page)]);
        (budget.pressure().level, budget.pressure().relief)
    }

    #[test]
    fn levels_have_hysteresis_and_the_mildest_relief_comes_first() {
        let mut budget = MemoryBudget::new(100 * PAGE_BYTES + 5, &[Relief::Reject, Relief::Evict]);
        assert_eq!(budget.total_bytes(), 100 * PAGE_BYTES);
        assert_eq!(at(&mut budget, [30, 39]), (Level::Low, None));
        assert_eq!(at(&mut budget, [30, 41]), (Level::Elevated, None));
        assert_eq!(at(&mut budget, [30, 56]), (Level::High, Some(Relief::Evict)));
        assert_eq!(budget.pressure().excess_bytes, 16 * PAGE_BYTES);
        budget.set_held(&[(Owner::Cache, 45 * PAGE_BYTES)]);
        assert_eq!(budget.pressure().level, Level::High);
        budget.set_held(&[(Owner::Cache, 39 * PAGE_BYTES)]);
        assert_eq!(budget.pressure(), Pressure { level: Level::Low, excess_bytes: 0, relief: None });
        assert_eq!(at(&mut budget, [90, 0]), (Level::High, Some(Relief::Reject)));

        let mut budget = MemoryBudget::new(100 * PAGE_BYTES, &[Relief::Spill, Relief::Quantise]);
        assert_eq!(at(&mut budget, [71, 0]), (Level::Elevated, Some(Relief::Quantise)));
        let mut budget = MemoryBudget::new(100 * PAGE_BYTES, &[Relief::Evict, Relief::Quantise]);
        assert_eq!(at(&mut budget, [30, 56]), (Level::High, Some(Relief::Quantise)));
        budget.set_quantisable(false);
        assert_eq!(at(&mut budget, [30, 56]), (Level::High, Some(Relief::Evict)));
        let mut budget = MemoryBudget::new(100 * PAGE_BYTES, &[Relief::Spill, Relief::Reject]);
        assert_eq!(at(&mut budget, [71, 0]), (Level::Elevated, None));
        assert_eq!(at(&mut budget, [86, 0]), (Level::High, Some(Relief::Spill)));
    }

    #[test]
    fn levels_are_shares_of_what_is_not_lent() {
        let mut budget = MemoryBudget::new(100 * PAGE_BYTES, &[Relief::Evict]);
        assert_eq!(at(&mut budget, [10, 30]), (Level::Low, None));
        budget.set_lent(60 * PAGE_BYTES);
        assert_eq!(at(&mut budget, [10, 30]), (Level::High, Some(Relief::Evict)));
        assert_eq!(budget.pressure().excess_bytes, 12 * PAGE_BYTES);
        budget.set_lent(0);
        assert_eq!(at(&mut budget, [10, 30]), (Level::Low, None));
    }

    #[test]
    fn quotas_say_the_numbers() {
        let mut budget = MemoryBudget::new(PAGE_BYTES, &[]);
        budget.set_quota(7, Some(1000));
        assert_eq!((budget.check_quota(7, 1000), budget.check_quota(8, 1 << 40)), (Ok(()), Ok(())));
        let error = budget.check_quota(7, 1001).expect_err("one too many");
        assert_eq!(
            error.to_string(),
            "the tenant's quota is full: 1001 bytes of kv cache needed, 1000 granted; end one of its sequences or raise the quota"
        );
        budget.set_quota(7, None);
        assert!(budget.check_quota(7, 1001).is_ok() && !budget.has_quotas());
    }

    #[test]
    #[should_panic(expected = "2097153 bytes held of a budget of 2097152")]
    fn nothing_is_held_above_the_whole() {
        MemoryBudget::new(PAGE_BYTES, &[]).set_held(&[(Owner::Cache, PAGE_BYTES + 1)]);
    }
}
