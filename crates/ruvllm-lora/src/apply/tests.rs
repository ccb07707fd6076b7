//! Application against plain loops in f64, and rows that do not know of each other.

use super::*;
use crate::adapter::{Adapter, Delta, FactorPair, RowOrder, Values};
use ruvllm_model::TensorRows;

use crate::bound::{BaseWeights, FactorFormat, Target};
use crate::format::ModelFacts;
use ruvllm_kernels::{Isa, lowrank};

const K: usize = 40;
const N_OUT: [usize; 3] = [24, 8, 50];

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 101) as f32 * 0.613).sin() * 0.5).collect()
}

fn targets() -> Arc<Targets> {
    let facts = ModelFacts { arch: "llama".into(), n_heads: vec![1], n_kv_heads: vec![1], n_experts: 0 };
    let layer = |(i, &n): (usize, &usize)| Target { tensor: format!("blk.0.l{i}"), rows: 0..n, alias: None, n_in: K };
    Arc::new(Targets::new(facts, N_OUT.iter().enumerate().map(layer).collect()))
}

/// The base weights of a layer: `[n_out, K]`.
fn base(layer: usize) -> Vec<f32> {
    noise(N_OUT[layer] * K, 90 + layer)
}

struct Base;

impl BaseWeights for Base {
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) -> Result<(), LoraError> {
        let layer: usize = tensor.strip_prefix("blk.0.l").and_then(|n| n.parse().ok()).expect("a layer");
        out.copy_from_slice(&base(layer)[row * K..(row + 1) * K]);
        Ok(())
    }

    fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, LoraError> {
        let mut values = vec![0.0; rows.n_values()];
        let tensor = rows.tensor.trim_end_matches(".weight");
        let each = rows.rows.clone().zip(values.chunks_exact_mut(rows.n_cols));
        each.into_iter().try_for_each(|(row, out)| self.row(tensor, row, out))?;
        Ok(values)
    }
}

fn adapter(seed: usize, rank: usize, layers: &[usize], is_dora: bool) -> Adapter {
    let delta = |&layer: &usize| {
        let n_out = N_OUT[layer];
        let a = Values::from_f32(rank, K, &noise(rank * K, seed + layer));
        let b = Values::from_f32(n_out, rank, &noise(n_out * rank, 7 * seed + layer));
        let m: Vec<f32> = (0..n_out).map(|j| 1.0 + (j % 3) as f32).collect();
        let magnitude = is_dora.then(|| Values::from_f32(n_out, 1, &m));
        Delta::new(format!("blk.0.l{layer}"), 0.75, FactorPair { a, b }, magnitude, RowOrder::Same).expect("a pair")
    };
    Adapter::new(format!("a{seed}"), layers.iter().map(delta).collect()).expect("an adapter")
}

/// The weights of a layer with an adapter's change, in f64.
fn changed(layer: usize, adapter: &Adapter) -> Vec<f64> {
    let mut w: Vec<f64> = base(layer).iter().map(|&w| f64::from(w)).collect();
    let Some(delta) = adapter.delta(&format!("blk.0.l{layer}")) else { return w };
    let (a, b, rank) = (delta.a().expect("finite"), delta.b().expect("finite"), delta.rank());
    for (j, row) in w.chunks_exact_mut(K).enumerate() {
        for (c, w) in row.iter_mut().enumerate() {
            *w += (0..rank).map(|i| 0.75 * f64::from(b[j * rank + i]) * f64::from(a[i * K + c])).sum::<f64>();
        }
        if let Some(m) = delta.magnitude().expect("finite") {
            let norm = row.iter().map(|w| w * w).sum::<f64>().sqrt();
            row.iter_mut().for_each(|w| *w *= f64::from(m[j]) / norm);
        }
    }
    w
}

/// The results of all layers for `sets.len()` rows in one call.
fn run(isa: Isa, n_threads: usize, sets: &[AdapterSet], x: &[f32]) -> [Vec<f32>; 3] {
    let n = sets.len();
    let mut outs = [0, 1, 2].map(|layer| {
        let w = base(layer);
        let row =
            |x: &[f32]| -> Vec<f32> { w.chunks_exact(K).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect() };
        x.chunks_exact(K).flat_map(row).collect::<Vec<f32>>()
    });
    let mut rows = AdaptedRows::new(n, n);
    sets.iter().for_each(|set| rows.push(1, set));
    let [q, k, v] = &mut outs;
    let threads = ThreadPool::new(n_threads);
    rows.apply(
        LowRank { table: lowrank::pick(isa), threads: &threads },
        InputRows { x, n },
        None,
        [(0, &mut q[..]), (1, &mut k[..]), (2, &mut v[..])],
    );
    outs
}

#[test]
fn rows_get_what_their_weights_would_give() {
    let targets = targets();
    for (format, tolerance) in [(FactorFormat::F32, 1e-5), (FactorFormat::F16, 4e-3), (FactorFormat::Q8, 6e-2)] {
        let adapters = [adapter(1, 4, &[0, 2], false), adapter(2, 33, &[0, 1, 2], false), adapter(3, 8, &[1, 2], true)];
        let bound = adapters.each_ref().map(|a| Arc::new(targets.bind(a, format, &Base).expect("it fits")));
        let set = |members: &[(usize, f32)]| {
            AdapterSet::new(members.iter().map(|&(i, s)| (Arc::clone(&bound[i]), s)).collect()).expect("a set")
        };
        let members: [&[(usize, f32)]; 6] =
            [&[], &[(0, 1.0)], &[(1, -0.5)], &[(2, 1.0)], &[(0, 0.5), (2, 0.25), (1, 2.0)], &[(0, 0.0)]];
        let sets = members.map(set);
        assert!(sets[0].is_empty() && sets[5].is_empty());
        let x = noise(6 * K, 5);
        for isa in Isa::available() {
            let outs = run(isa, 2, &sets, &x);
            for (layer, out) in outs.iter().enumerate() {
                for (row, members) in members.iter().enumerate() {
                    let mut w: Vec<f64> = base(layer).iter().map(|&w| f64::from(w)).collect();
                    let own = w.clone();
                    for &(i, scale) in *members {
                        let change = changed(layer, &adapters[i]);
                        w.iter_mut()
                            .zip(change.iter().zip(&own))
                            .for_each(|(w, (c, o))| *w += f64::from(scale) * (c - o));
                    }
                    for (j, w) in w.chunks_exact(K).enumerate() {
                        let terms = || w.iter().zip(&x[row * K..]).map(|(w, &x)| w * f64::from(x));
                        let size = 1.0 + terms().map(f64::abs).sum::<f64>();
                        let error = (terms().sum::<f64>() - f64::from(out[row * N_OUT[layer] + j])).abs();
                        assert!(error < tolerance * size, "{isa} {format:?} layer {layer} row {row}: {error:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let targets = targets();
    let bind = |seed, rank| {
        let adapter = adapter(seed, rank, &[0, 1, 2], seed == 4);
        let bound = targets.bind(&adapter, FactorFormat::F16, &Base).expect("it fits");
        AdapterSet::new(vec![(Arc::new(bound), 1.0)]).expect("a set")
    };
    let kinds = [AdapterSet::default(), bind(1, 8), bind(2, 5), bind(4, 16)];
    let sets: Vec<AdapterSet> = (0..40).map(|i| kinds[(i / 11 + i / 23) % 4].clone()).collect();
    let x = noise(40 * K, 3);
    for isa in Isa::available() {
        let together = run(isa, 3, &sets, &x);
        for row in [0, 10, 11, 24, 39] {
            let alone = run(isa, 1, &sets[row..row + 1], &x[row * K..(row + 1) * K]);
            for layer in 0..3 {
                let n = N_OUT[layer];
                assert_eq!(alone[layer], together[layer][row * n..(row + 1) * n], "{isa} row {row} layer {layer}");
            }
        }
        // Picked rows are those of the batch, in any order.
        let mut rows = AdaptedRows::new(40, 4);
        sets.iter().for_each(|set| rows.push(1, set));
        let picked = [30u32, 2, 12];
        let px: Vec<f32> = picked.iter().flat_map(|&r| x[r as usize * K..][..K].to_vec()).collect();
        let none = vec![AdapterSet::default(); 3];
        let [_, mut y, _] = run(isa, 1, &none, &px);
        let threads = ThreadPool::new(2);
        let how = LowRank { table: lowrank::pick(isa), threads: &threads };
        rows.apply(how, InputRows { x: &px, n: 3 }, Some(&picked), [(1, &mut y[..])]);
        for (i, &row) in picked.iter().enumerate() {
            assert_eq!(y[i * 8..(i + 1) * 8], together[1][row as usize * 8..(row as usize + 1) * 8]);
        }
    }
}

#[test]
fn factors_are_told_as_they_are_multiplied() {
    let targets = targets();
    for (format, tolerance) in [(FactorFormat::F32, 1e-6), (FactorFormat::F16, 1e-3), (FactorFormat::Q8, 8e-3)] {
        let adapter = adapter(3, 8, &[1, 2], true);
        let bound = targets.bind(&adapter, format, &Base).expect("it fits");
        assert!(bound.layer_sizes(0).is_none() && bound.layer_factors(0).is_none());
        for layer in [1, 2] {
            let (sizes, factors) =
                (bound.layer_sizes(layer).expect("it is"), bound.layer_factors(layer).expect("it is"));
            assert_eq!((sizes.rank, sizes.n_in, sizes.n_out, sizes.has_gain), (8, K, N_OUT[layer], true));
            let gain = factors.gain.expect("it is a DoRA");
            let change = changed(layer, &adapter);
            for (j, (row, own)) in change.chunks_exact(K).zip(base(layer).chunks_exact(K)).enumerate() {
                for (c, (expected, own)) in row.iter().zip(own).enumerate() {
                    let term =
                        |i: usize| factors.multipliers[i] * factors.a[i * K + c] * factors.b[i * N_OUT[layer] + j];
                    let found = own * (1.0 + gain[j]) + (0..8).map(term).sum::<f32>();
                    let error = (f64::from(found) - expected).abs();
                    assert!(
                        error <= tolerance * 8.0,
                        "{format:?} layer {layer} value {j}, {c}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn sets_differ_by_what_they_do() {
    let (targets, others) = (targets(), targets());
    let bind = |targets: &Arc<Targets>, seed| {
        Arc::new(targets.bind(&adapter(seed, 2, &[0], false), FactorFormat::F16, &Base).expect("it fits"))
    };
    let (a, b, c) = (bind(&targets, 1), bind(&targets, 2), bind(&others, 1));
    let set = |members: &[(&Arc<BoundAdapter>, f32)]| {
        AdapterSet::new(members.iter().map(|(m, s)| (Arc::clone(m), *s)).collect())
    };
    let all = [
        set(&[(&a, 1.0)]),
        set(&[(&a, 0.5)]),
        set(&[(&b, 1.0)]),
        set(&[(&a, 1.0), (&b, 1.0)]),
        set(&[(&b, 1.0), (&a, 1.0)]),
        set(&[]),
    ]
    .map(|set| set.expect("a set"));
    for (i, one) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|other| other != one));
    }
    assert_eq!(set(&[(&a, 1.0), (&b, 0.0)]).expect("a set"), all[0]);
    assert!(all[3].fits(&targets) && !all[3].fits(&others) && all[5].fits(&others));
    assert!(set(&[(&a, 1.0), (&c, 1.0)]).is_err() && set(&[(&a, f32::NAN)]).is_err());
    assert_eq!(set(&[(&a, 1.0); 9]).expect_err("too many").to_string(), "9 adapters at once, at most 8 can be");
}

#[test]
fn a_gated_row_is_one_whose_scales_are_what_its_gate_says() {
    use crate::gate::{Gate, GateShape};
    let targets = targets();
    let adapters = [adapter(1, 4, &[0, 2], false), adapter(2, 33, &[0, 1, 2], false), adapter(3, 8, &[1, 2], true)];
    let bound = adapters.each_ref().map(|a| Arc::new(targets.bind(a, FactorFormat::F16, &Base).expect("it fits")));
    let scales = [1.0f32, -0.5, 0.75];
    let members = |weights: &[f32]| -> Vec<(Arc<BoundAdapter>, f32)> {
        bound.iter().zip(scales).zip(weights).map(|((a, s), w)| (Arc::clone(a), s * w)).collect()
    };
    let sizes = GateShape { n_embd: 4, n_hidden: 2, n_adapters: 3, window: 4, temperature: 1.0 };
    let gate = |seed| Arc::new(Gate::seeded(sizes, seed).expect("a gate"));
    let set = AdapterSet::gated(members(&[1.0; 3]), gate(1)).expect("a set");
    // 30 rows: the base's, gated ones, one with an adapter without a gate, gated ones again.
    let plain = AdapterSet::new(members(&[1.0, 0.0, 0.0])).expect("a set");
    let weights: Vec<f32> = noise(27 * 3, 11).iter().map(|x| x.abs()).collect();
    let x = noise(30 * K, 5);
    let mut rows = AdaptedRows::new(30, 4);
    rows.push(2, &AdapterSet::default());
    rows.push_gated(17, &set, &weights[..17 * 3]);
    rows.push(1, &plain);
    rows.push_gated(10, &set, &weights[17 * 3..]);
    let mut alone = vec![AdapterSet::default(); 2];
    let of_row = |weights: &[f32]| AdapterSet::new(members(weights)).expect("a set");
    alone.extend(weights[..17 * 3].chunks(3).map(of_row));
    alone.push(plain);
    alone.extend(weights[17 * 3..].chunks(3).map(of_row));
    for isa in Isa::available() {
        let mut outs = run(isa, 2, &vec![AdapterSet::default(); 30], &x);
        let base = outs.clone();
        let [q, k, v] = &mut outs;
        let threads = ThreadPool::new(2);
        let how = LowRank { table: lowrank::pick(isa), threads: &threads };
        rows.apply(how, InputRows { x: &x, n: 30 }, None, [(0, &mut q[..]), (1, &mut k[..]), (2, &mut v[..])]);
        assert_eq!(outs, run(isa, 1, &alone, &x), "{isa}");
        let picked = [25u32, 1, 3, 19];
        let px: Vec<f32> = picked.iter().flat_map(|&r| x[r as usize * K..][..K].to_vec()).collect();
        let mut y: Vec<f32> = picked.iter().flat_map(|&r| base[1][r as usize * 8..][..8].to_vec()).collect();
        rows.apply(how, InputRows { x: &px, n: 4 }, Some(&picked), [(1, &mut y[..])]);
        for (i, &row) in picked.iter().enumerate() {
            assert_eq!(y[i * 8..(i + 1) * 8], outs[1][row as usize * 8..(row as usize + 1) * 8], "{isa} row {row}");
        }
    }
    // What a set does depends on its gate as well.
    let zero = AdapterSet::gated(members(&[1.0; 3]), gate(2)).expect("a set");
    let ungated = AdapterSet::new(members(&[1.0; 3])).expect("a set");
    assert!(zero != set && set != ungated && zero != ungated);
    let error = AdapterSet::gated(members(&[1.0; 3])[..2].to_vec(), gate(1)).expect_err("two of three");
    assert_eq!(error.to_string(), "the gate weighs 3 adapters, there are 2");
}
