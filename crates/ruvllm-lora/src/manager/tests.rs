//! Residency: the budget holds at all times, what is used stays, what is replaced harms nobody.

use super::*;
use crate::adapter::{Delta, FactorPair, RowOrder, Values};
use crate::bound::{NoBase, Target};
use crate::format::{ModelFacts, gguf};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_kvcache::PAGE_BYTES;

const K: usize = 4096;

fn facts() -> ModelFacts {
    ModelFacts { arch: "llama".into(), n_heads: vec![1], n_kv_heads: vec![1], n_experts: 0 }
}

/// An adapter of `rank`·16 KiB in 16 bits.
fn adapter(rank: usize, value: f32) -> Adapter {
    let pair = FactorPair {
        a: Values::from_f32(rank, K, &vec![value; rank * K]),
        b: Values::from_f32(K, rank, &vec![0.5; rank * K]),
    };
    let delta = Delta::new("blk.0.attn_v", 1.0, pair, None, RowOrder::Same).expect("a pair");
    Adapter::new("a", vec![delta]).expect("an adapter")
}

fn write(folder: &Path, name: &str, rank: usize, value: f32) -> PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    gguf::write(&adapter(rank, value), &facts(), &path).expect("it can be written");
    path
}

fn manager(n_pages: usize, n_warm_max: usize) -> AdapterManager {
    let layer = Target { tensor: "blk.0.attn_v".into(), rows: 0..K, alias: None, n_in: K };
    let targets = Arc::new(Targets::new(facts(), vec![layer]));
    let budget = MemoryBudget::new(n_pages * PAGE_BYTES, &[]);
    AdapterManager::new(targets, Box::new(NoBase), FactorFormat::F16, budget, n_warm_max)
}

fn states(manager: &AdapterManager) -> String {
    let one = |info: AdapterInfo| format!("{}:{}", info.name, info.residency.as_str());
    manager.list().into_iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_least_recently_used_gives_way_and_what_is_used_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    // 8 MiB, of which each takes 1 MiB and a little.
    let manager = manager(4, 2);
    for i in 0..8 {
        let name = format!("a{i}");
        manager.register(&name, &write(folder.path(), &name, 64, i as f32), 0).expect("a name");
    }
    assert_eq!(states(&manager), "a0:cold a1:cold a2:cold a3:cold a4:cold a5:cold a6:cold a7:cold");
    let held = manager.get("a0", 0).expect("there is room");
    for i in 1..6 {
        drop(manager.get(&format!("a{i}"), 0).expect("there is room"));
    }
    manager.pin("a1", 0, true).expect("it is known");
    assert_eq!(states(&manager), "a0:hot a1:hot a2:hot a3:hot a4:hot a5:hot a6:cold a7:cold");
    drop(manager.get("a2", 0));
    // The seventh crosses 85 %: down to 70 %, without a0, which is used, and a1, which is pinned.
    drop(manager.get("a6", 0).expect("something gives way"));
    assert_eq!(states(&manager), "a0:hot a1:hot a2:hot a3:warm a4:warm a5:hot a6:hot a7:cold");
    assert_eq!(manager.stats().n_evictions, 2);
    assert!(manager.stats().held_bytes <= 4 * PAGE_BYTES * 7 / 10);
    assert_eq!(held.name(), "a0");
    let error = manager.get("b", 0).expect_err("unknown").to_string();
    assert_eq!(error, "there is no adapter 'b'; see the list of adapters");
}

#[test]
fn a_replaced_adapter_lives_as_long_as_it_is_used_and_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = manager(1, 8);
    assert_eq!(manager.add("x", &write(folder.path(), "x1", 64, 1.0), 0).expect("sound"), 1);
    let old = manager.get("x", 0).expect("there is room");
    assert_eq!(manager.add("x", &write(folder.path(), "x2", 70, 2.0), 0).expect("sound"), 2);
    // 2 MiB hold not both, as long as the old one is used.
    let error = manager.get("x", 0).expect_err("no room");
    assert_eq!(error.kind(), LoraErrorKind::Budget);
    let content = old.content();
    drop(old);
    assert_ne!(manager.get("x", 0).expect("there is room now").content(), content);
    manager.remove("x", 0).expect("it is known");
    assert_eq!((manager.list().len(), manager.stats().held_bytes), (0, 0));
    assert_eq!(manager.add("x", &folder.path().join("x1.gguf"), 0).expect("sound"), 3);
    // What cannot be read leaves what is there.
    std::fs::write(folder.path().join("bad.gguf"), b"GGUF").expect("a file");
    assert!(manager.add("x", &folder.path().join("bad.gguf"), 0).is_err());
    let path = write(folder.path(), "y", 2, 1.0);
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes.last_chunk_mut::<4>().expect("a value").copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).expect("a file");
    assert_eq!(manager.add("y", &path, 0).expect_err("no number").kind(), LoraErrorKind::Value);
    assert_eq!(states(&manager), "x:warm");
    for name in ["", "..", "../x", "a/b", ".x", "a\0", "é", &"x".repeat(129)] {
        assert_eq!(manager.register(name, folder.path(), 0).expect_err("no name").kind(), LoraErrorKind::Name);
    }
}

#[test]
fn a_tenant_keeps_to_its_quota() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = manager(8, 8);
    manager.set_quota(7, Some(5 << 19));
    for (name, tenant) in [("a", 7), ("b", 7), ("c", 7), ("d", 0)] {
        manager.register(name, &write(folder.path(), name, 64, 1.0), tenant).expect("a name");
    }
    let a = manager.get("a", 7).expect("room");
    drop((manager.get("d", 7), manager.get("b", 7)));
    let c = manager.get("c", 7).expect("b gives way");
    assert_eq!(states(&manager), "a:hot b:warm c:hot d:hot");
    let error = manager.get("b", 7).expect_err("a and c are used").to_string();
    assert!(error.starts_with("adapter 'b' needs ") && error.contains("of 2621440 in use"), "{error}");
    drop((a, c));
    assert!(manager.get("b", 7).is_ok());
}

#[test]
fn a_tenant_sees_its_own_and_everybodys() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = manager(4, 8);
    let paths = [(0, 1.0), (7, 2.0), (8, 3.0)]
        .map(|(tenant, value)| (tenant, write(folder.path(), &format!("of{tenant}"), 2, value)));
    for (tenant, path) in &paths {
        manager.register("x", path, *tenant).expect("a name");
    }
    manager.register("y", &paths[1].1, 7).expect("a name");
    let content = |tenant| manager.get("x", tenant).expect("it is known").content();
    assert!(content(0) != content(7) && content(7) != content(8) && content(9) == content(0));
    assert_eq!(manager.find("x", 7).map(|info| (info.tenant, info.rank)), Some((7, Some(2))));
    for tenant in [0, 8] {
        assert_eq!(manager.get("y", tenant).expect_err("it is another's").kind(), LoraErrorKind::Name);
    }
    assert_eq!(manager.remove("x", 9).expect_err("everybody's").kind(), LoraErrorKind::Denied);
    assert_eq!(manager.pin("x", 9, true).expect_err("everybody's").kind(), LoraErrorKind::Denied);
    manager.remove("x", 7).expect("its own");
    assert_eq!(content(7), content(0));

    // Another manager goes on with the names, generations and pins.
    assert_eq!(manager.register("x", &paths[1].1, 7).expect("a name"), 2);
    manager.pin("x", 7, true).expect("its own");
    let other = super::tests::manager(4, 8);
    other.adopt(&manager.list());
    let facts = |manager: &AdapterManager| {
        manager
            .list()
            .into_iter()
            .map(|info| (info.name, info.tenant, info.generation, info.is_pinned))
            .collect::<Vec<_>>()
    };
    assert_eq!(facts(&other), facts(&manager));
    assert_eq!(other.register("x", &paths[1].1, 7).expect("a name"), 3);
    assert!(other.find("x", 7).expect("it is known").is_pinned, "what takes its place stays pinned");
    // One that fits no empty memory is not waited for.
    let large = write(folder.path(), "large", 600, 1.0);
    other.register("large", &large, 0).expect("a name");
    assert_eq!(other.get("large", 0).expect_err("too large").kind(), LoraErrorKind::Limit);
    let stats = other.stats();
    assert_eq!((stats.n_hot + stats.n_warm + stats.n_cold, stats.total_bytes), (5, 4 * PAGE_BYTES));
}

/// Pages that somebody else has as well.
struct Pages(Arc<Mutex<usize>>);

impl SharedMemory for Pages {
    fn take(&self, n_pages: usize) -> bool {
        let mut left = self.0.lock().expect("no panic");
        let is_room = n_pages <= *left;
        *left -= if is_room { n_pages } else { 0 };
        is_room
    }

    fn give(&self, n_pages: usize) {
        *self.0.lock().expect("no panic") += n_pages;
    }
}

#[test]
fn shared_memory_is_taken_and_given_back_in_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    // 8 MiB of its own, of which the other leaves 3 pages; each takes 1 MiB and a little.
    let (manager, left) = (manager(4, 8), Arc::new(Mutex::new(3)));
    manager.share(Box::new(Pages(Arc::clone(&left))), 100);
    for i in 0..6 {
        let name = format!("a{i}");
        manager.register(&name, &write(folder.path(), &name, 64, i as f32), 0).expect("a name");
    }
    let left = || *left.lock().expect("no panic");
    let first = manager.get("a0", 0).expect("there is room");
    assert_eq!((left(), manager.stats().shared_bytes), (2, PAGE_BYTES));
    drop(manager.get("a1", 0).expect("there is room"));
    assert_eq!(left(), 1);
    for i in 2..6 {
        drop(manager.get(&format!("a{i}"), 0).expect("idle ones give way"));
        assert!(manager.stats().held_bytes <= 3 * PAGE_BYTES);
    }
    assert_eq!((left(), manager.idle_pages()), (0, 2), "{}", states(&manager));
    // The other asks for more than is idle.
    assert_eq!(manager.evict(9), 2);
    assert_eq!((left(), manager.idle_pages(), manager.stats().n_hot), (2, 0, 1));
    // Nobody uses it any more.
    drop(first);
    assert_eq!((manager.idle_pages(), manager.evict(1), left()), (1, 1, 3));
    // The other has it all.
    assert_eq!(left(), 3);
    manager.share(Box::new(Pages(Arc::default())), 1);
    let held: Vec<_> = (0..2).map(|i| manager.get(&format!("a{i}"), 0)).collect();
    assert_eq!(held[1].as_ref().expect_err("one page holds one").kind(), LoraErrorKind::Budget);
}

#[test]
fn many_threads_and_a_small_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = manager(2, 4);
    for i in 0..24 {
        let name = format!("a{i}");
        manager.register(&name, &write(folder.path(), &name, 32, i as f32), 0).expect("a name");
    }
    let (total, manager) = (2 * PAGE_BYTES, &manager);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let folder = folder.path();
            scope.spawn(move || {
                let mut rng = ChaCha8Rng::seed_from_u64(thread);
                for step in 0..300 {
                    let i = (rng.next_u32() % 24).min(rng.next_u32() % 24);
                    let adapter = manager.get(&format!("a{i}"), 0).expect("there is room for those in use");
                    assert!(manager.stats().held_bytes <= total);
                    if step % 50 == 0 {
                        manager.register(&format!("a{i}"), &folder.join(format!("a{i}.gguf")), 0).expect("a name");
                    }
                    drop(adapter);
                }
            });
        }
    });
    let stats = manager.stats();
    assert!(stats.n_hits > 0 && stats.n_evictions > 0 && stats.n_hits + stats.n_loads == 1200, "{stats:?}");
    assert!(manager.list().iter().filter(|info| info.residency == Residency::Warm).count() <= 4);
}
