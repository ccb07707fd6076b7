//! Policies in a store: what counts, what ends, what hostile bytes cost; and a bandit on constructed costs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;
use tempfile::TempDir;

use super::*;
use crate::store::{Durability, MasterKey, OpenOptions, Store, Table, open};
use ruvllm_testkit::killed;

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sona.redb");
    (folder, path)
}

fn store(path: &Path) -> Arc<dyn Store> {
    open(path, &OpenOptions::default()).expect("a store")
}

fn policies(path: &Path, limits: PolicyLimits) -> StoredPolicies {
    StoredPolicies::open(store(path), limits).expect("policies")
}

fn new(context: &str, value: u32) -> NewPolicy {
    NewPolicy::new(PolicyKind::Speculation, context, &value).expect("a number")
}

/// The value that counts for a context and a tenant at a time.
fn best(policies: &StoredPolicies, context: &str, tenant: &str, now_ms: u64) -> Option<u32> {
    let wanted = Wanted { tenant: Some(tenant), confidence_min: 0.5, ..Wanted::new(PolicyKind::Speculation, context) };
    policies.best(&wanted, now_ms).map(|policy| policy.read().expect("a number"))
}

#[test]
fn the_operator_overrules_what_was_learned_and_that_a_default() {
    let (_folder, path) = file();
    let policies = policies(&path, PolicyLimits::default());
    let put = |policy: NewPolicy| policies.put(policy, 0).expect("room");
    assert_eq!(best(&policies, "long", "ann", 0), None);
    put(new("", 1));
    assert_eq!(best(&policies, "long", "ann", 0), Some(1));
    put(new("long", 2));
    assert_eq!(best(&policies, "long", "ann", 0), Some(2));
    put(new("", 3).of_tenant("ann"));
    assert_eq!(best(&policies, "long", "ann", 0), Some(3), "one's own comes before the context's");
    put(new("", 4).learned(0.9));
    assert_eq!(best(&policies, "long", "ann", 0), Some(4));
    put(new("long", 5).learned(0.4));
    assert_eq!(best(&policies, "long", "ann", 0), Some(4), "it is not sure enough");
    put(new("long", 6).learned(0.6));
    assert_eq!(best(&policies, "long", "ann", 0), Some(6));
    let version = put(new("", 7).by_operator());
    assert_eq!(best(&policies, "long", "ann", 0), Some(7));
    put(new("long", 8).by_operator().of_tenant("ann"));
    assert_eq!(
        [("long", "ann"), ("long", "bob"), ("", "bob")].map(|(context, tenant)| best(&policies, context, tenant, 0)),
        [8, 7, 7].map(Some)
    );
    // Taken back, what was before counts again.
    assert!(policies.retire(version).expect("writable") && !policies.retire(version).expect("writable"));
    assert_eq!(
        [("long", "bob"), ("", "bob")].map(|(context, tenant)| best(&policies, context, tenant, 0)),
        [6, 4].map(Some)
    );
    // Other kinds have nothing to do with it.
    assert_eq!(policies.best(&Wanted::new(PolicyKind::Kv, "long"), 0), None);
    assert_eq!(policies.forget_tenant("ann").expect("writable"), 2);
    assert_eq!(best(&policies, "long", "ann", 0), Some(6));
}

#[test]
fn a_newer_version_counts_and_those_before_are_kept_for_a_while() {
    let (_folder, path) = file();
    let limits = PolicyLimits { n_versions_max: 3, ..PolicyLimits::default() };
    let policies = policies(&path, limits);
    let versions: Vec<u64> = (0..5).map(|i| policies.put(new("c", i).learned(0.9), 0).expect("room")).collect();
    assert!(versions.is_sorted_by(|a, b| a < b));
    assert_eq!(policies.list().iter().map(|policy| policy.version).collect::<Vec<_>>(), versions[2..]);
    for i in (2..5).rev() {
        assert_eq!(best(&policies, "c", "t", 0), Some(i as u32));
        assert!(policies.retire(versions[i]).expect("writable"));
    }
    assert_eq!(best(&policies, "c", "t", 0), None);
}

#[test]
fn what_has_expired_does_not_count_and_goes_when_asked() {
    let (_folder, path) = file();
    let policies = policies(&path, PolicyLimits::default());
    policies.put(new("c", 1).learned(0.9), 0).expect("room");
    policies.put(new("c", 2).learned(0.9).until(100), 0).expect("room");
    policies.put(new("c", 3).by_operator().until(50), 0).expect("room");
    assert_eq!([0, 49, 50, 99, 100, u64::MAX].map(|at| best(&policies, "c", "t", at)), [3, 3, 2, 2, 1, 1].map(Some));
    assert_eq!(policies.expire(50).expect("writable"), 1);
    assert_eq!(policies.expire(u64::MAX).expect("writable"), 1);
    assert_eq!(policies.list().len(), 1);
}

#[test]
fn policies_are_bounded() {
    let (_folder, path) = file();
    let policies = policies(&path, PolicyLimits { n_max: 4, n_versions_max: 2, n_bytes_max: 64 });
    let kind = |result: Result<u64, SonaError>| result.expect_err("it is refused").kind();
    for i in 0..4 {
        policies.put(new(&i.to_string(), i), 0).expect("room");
    }
    assert_eq!(kind(policies.put(new("4", 4), 0)), SonaErrorKind::Limit);
    policies.retire(1).expect("writable");
    policies.put(new("4", 4), 0).expect("room again");
    assert_eq!(kind(policies.put(new("4", 4).because("x".repeat(64)), 0)), SonaErrorKind::Limit);
    assert_eq!(kind(policies.put(new("4", 4).learned(1.5), 0)), SonaErrorKind::Value);
    assert_eq!(kind(policies.put(new("4", 4).learned(f32::NAN), 0)), SonaErrorKind::Value);
    assert_eq!(kind(policies.put(new("4", 4).of_tenant(""), 0)), SonaErrorKind::Limit);
    assert_eq!(policies.list().len(), 4);
}

#[test]
fn policies_are_there_again_also_from_an_encrypted_store() {
    let (_folder, path) = file();
    let key = MasterKey::new([3; 32]);
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let before = {
        let store = open(&path, &options).expect("a store");
        let policies = StoredPolicies::open(store, PolicyLimits::default()).expect("policies");
        let policy = new("a long document", 1).learned(0.7).of_tenant("ann").until(9).because("a remarkable reason");
        policies.put(policy, 5).expect("room");
        policies.put(NewPolicy::new(PolicyKind::Kv, "", &"tiered").expect("a text").by_operator(), 6).expect("room");
        policies.list()
    };
    let store = open(&path, &options).expect("a store");
    let policies = StoredPolicies::open(store, PolicyLimits::default()).expect("policies");
    assert_eq!(policies.list(), before);
    assert_eq!(policies.put(new("", 3), 7).expect("room"), 3);
    let raw = std::fs::read(&path).expect("a file");
    let has = |text: &str| raw.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!has("remarkable") && !has("long document") && !has("ann"));
}

#[test]
fn bytes_that_are_no_policy_are_refused() {
    const POLICIES: Table = Table::new("policies");
    let policy = Policy { version: 1, created_ms: 2, put: new("context", 7).learned(0.5).because("so") };
    let bytes = policy.to_bytes();
    assert_eq!(Policy::from_bytes(&bytes, 1, None).expect("a policy"), policy);
    for n in 0..bytes.len() {
        assert!(Policy::from_bytes(&bytes[..n], 1, None).is_err(), "cut off at {n}");
    }
    for (at, byte) in [(0, 9), (1, 99), (2, 9)] {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        assert!(Policy::from_bytes(&bytes, 1, None).is_err(), "byte {at}");
    }
    let (_folder, path) = file();
    for (key, value) in [(&[0u8; 8][..], &b"nonsense"[..]), (&[0; 3], &bytes)] {
        let store = store(&path);
        let mut change = store.begin(Durability::Durable).expect("a transaction");
        change.remove_scope(POLICIES, b"").expect("writable");
        change.put(POLICIES, b"", key, value).expect("room");
        change.commit().expect("a commit");
        assert!(StoredPolicies::open(store, PolicyLimits::default()).is_err());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_policy_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Policy::from_bytes(&bytes, 1, None);
    }
}

/// Says to a process that it is one of those that are killed.
const CHILD: &str = "RUVLLM_SONA_POLICY_TEST_CHILD";

/// The process that writes: versions of one policy, each acknowledged when it is kept.
#[test]
fn puts_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let policies = policies(path.as_ref(), PolicyLimits::default());
    let mut n = best(&policies, "c", "t", 0).map_or(0, |n| n + 1);
    loop {
        policies.put(new("c", n).learned(0.9), 0).expect("room");
        println!("\nacknowledged {n}");
        n += 1;
    }
}

#[test]
fn what_was_acknowledged_counts_after_a_kill() {
    let (_folder, path) = file();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut acknowledged: Option<u32> = None;
    for _ in 0..20 {
        let read = |line: &str| line.strip_prefix("acknowledged ")?.parse().ok();
        let test = "policy::tests::puts_until_it_is_killed";
        acknowledged = killed::run((test, CHILD, &path), &mut rng, read).or(acknowledged);
    }
    let acknowledged = acknowledged.expect("some of twenty came to write");
    let policies = policies(&path, PolicyLimits::default());
    let found = best(&policies, "c", "t", 0).expect("it was acknowledged");
    assert!(found == acknowledged || found == acknowledged + 1, "{found} after {acknowledged}");
    let values: Vec<u32> = policies.list().iter().map(|policy| policy.read().expect("a number")).collect();
    assert_eq!(values, (found + 1 - values.len() as u32..=found).collect::<Vec<_>>(), "each version once");
}
