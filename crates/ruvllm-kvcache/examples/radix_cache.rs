//! A radix prefix cache: what one prompt computed is there for the next that starts alike.
//!
//! `cargo run -p ruvllm-kvcache --example radix_cache`

use ruvllm_kvcache::{BlockPool, KvError, KvFormat, KvLayout, LayerKv, NamespaceBuilder, PrefixCache};

fn main() -> Result<(), KvError> {
    let layer = LayerKv { n_kv_heads: 2, k_dim: 64, v_dim: 64 };
    let mut pool = BlockPool::new(&KvLayout { layers: vec![layer; 4] }, KvFormat::F16, 256);
    let mut cache = PrefixCache::new(&pool, pool.n_bytes());
    // Cached blocks are good for one model and one tenant.
    let namespace = NamespaceBuilder::new("example").part("model", b"a").part("tenant", b"1").finish();
    let system: Vec<u32> = (0..100).collect();
    for (i, question) in [[200, 201, 202], [300, 301, 302], [200, 201, 999]].into_iter().enumerate() {
        let prompt = [&system[..], &question].concat();
        let mut sequence = cache.lookup(namespace, &prompt, 1024);
        let n_cached = sequence.len();
        // A model would compute the rest here and write its rows; see the crate's first page.
        cache.reserve(&mut pool, &mut sequence, prompt.len() - n_cached)?;
        sequence.advance(prompt.len() - n_cached);
        cache.insert(namespace, &prompt, &sequence);
        println!("prompt {i}: {n_cached} of {} tokens were cached", prompt.len());
        assert_eq!(n_cached > 0, i > 0);
    }
    let usage = cache.usage(&pool);
    println!("{usage:?}");
    assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total);
    Ok(())
}
