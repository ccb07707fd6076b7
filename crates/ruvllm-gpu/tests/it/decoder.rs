//! A whole decoder of two layers, in batches over pages: the steps of a model fit together, and only three small buffers
//! and the angles change between passes.

use ruvllm_gpu::{Gpu, GpuBuffer, GpuOptions, PassBuffers, PassInput, PassPlan, ReadBack, Step, WeightMatrix};
use ruvllm_shaders::{
    ActivateParams, AddParams, AttentionParams, EmbedParams, HeadTile, HeadWidth, KV_BLOCK, Kernel, KvAppendParams,
    KvType, LinearParams, NormParams, RopeParams, RowRecord, RowTile, ShaderActivation, TopKParams, flags,
};

use crate::open_all;
use crate::passes::{halves, upload, words};

const N_LAYERS: usize = 2;
const N_EMBD: usize = 64;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const N_FF: usize = 96;
const N_VOCAB: usize = 80;
const N_ROWS_MAX: usize = 24;
const N_BLOCKS: usize = 6;
const EPS: f32 = 1e-5;

/// Count of the pass that is the rows whose logits are wanted; count 0 is all rows.
const OUTPUTS: usize = 1;

/// Weights on the host. Norms have none.
struct Weights {
    embedding: Vec<f32>,
    /// Matrices of each layer: q, k, v, o, gate, up, down.
    layers: Vec<[Vec<f32>; 7]>,
    head: Vec<f32>,
}

/// Rows and columns of the matrices of a layer.
const SHAPES: [(usize, usize); 7] = [
    (N_HEADS * HEAD_DIM, N_EMBD),
    (N_KV_HEADS * HEAD_DIM, N_EMBD),
    (N_KV_HEADS * HEAD_DIM, N_EMBD),
    (N_EMBD, N_HEADS * HEAD_DIM),
    (N_FF, N_EMBD),
    (N_FF, N_EMBD),
    (N_EMBD, N_FF),
];

impl Weights {
    fn new() -> Weights {
        let layer = |l: u32| std::array::from_fn(|i| halves(SHAPES[i].0 * SHAPES[i].1, 10 * l + i as u32));
        Weights {
            embedding: halves(N_VOCAB * N_EMBD, 1000),
            layers: (1..=N_LAYERS as u32).map(layer).collect(),
            head: halves(N_VOCAB * N_EMBD, 2000),
        }
    }
}

/// Logits of every position of a text, in f64.
fn reference(weights: &Weights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let product = |w: &[f32], x: &[f64]| -> Vec<f64> {
        w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    };
    let norm = |x: &[f64]| -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        x.iter().map(|v| v / (squares / x.len() as f64 + f64::from(EPS)).sqrt()).collect()
    };
    let mut rows: Vec<Vec<f64>> = (tokens.iter())
        .map(|token| weights.embedding[*token as usize * N_EMBD..][..N_EMBD].iter().map(|x| f64::from(*x)).collect())
        .collect();
    for [q, k, v, o, gate, up, down] in &weights.layers {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, row) in rows.iter_mut().enumerate() {
            let normed = norm(row);
            let (mut query, mut key) = (product(q, &normed), product(k, &normed));
            rotate(&mut query, position);
            rotate(&mut key, position);
            keys.push(key);
            values.push(product(v, &normed));
            let attended: Vec<f64> = (0..N_HEADS).flat_map(|head| attend(&query, &keys, &values, head)).collect();
            row.iter_mut().zip(product(o, &attended)).for_each(|(x, y)| *x += y);
            let normed = norm(row);
            let (gate, up) = (product(gate, &normed), product(up, &normed));
            let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            row.iter_mut().zip(product(down, &inner)).for_each(|(x, y)| *x += y);
        }
    }
    rows.iter().map(|row| product(&weights.head, &norm(row))).collect()
}

fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>], head: usize) -> Vec<f64> {
    let at = head / (N_HEADS / N_KV_HEADS) * HEAD_DIM;
    let query = &query[head * HEAD_DIM..][..HEAD_DIM];
    let score =
        |key: &Vec<f64>| query.iter().zip(&key[at..]).map(|(q, k)| q * k).sum::<f64>() / (HEAD_DIM as f64).sqrt();
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let weighted = |i: usize| scores.iter().zip(values).map(|(s, v)| (s - most).exp() / total * v[at + i]).sum();
    (0..HEAD_DIM).map(weighted).collect()
}

/// Angle of a pair.
fn angle(position: usize, pair: usize) -> f64 {
    position as f64 * 10_000f64.powf(-2.0 * pair as f64 / HEAD_DIM as f64)
}

fn rotate(row: &mut [f64], position: usize) {
    for head in row.chunks_exact_mut(HEAD_DIM) {
        for pair in 0..HEAD_DIM / 2 {
            let (sin, cos) = angle(position, pair).sin_cos();
            let (a, b) = (head[pair], head[pair + HEAD_DIM / 2]);
            (head[pair], head[pair + HEAD_DIM / 2]) = (a * cos - b * sin, a * sin + b * cos);
        }
    }
}

/// The decoder on a device.
struct Decoder {
    plan: PassPlan,
    pass: PassBuffers,
    angles: GpuBuffer,
    logits: ReadBack,
    ids: ReadBack,
}

/// Buffers that the steps share.
struct Activations {
    x: GpuBuffer,
    normed: GpuBuffer,
    q: GpuBuffer,
    k: GpuBuffer,
    v: GpuBuffer,
    attended: GpuBuffer,
    gate: GpuBuffer,
    up: GpuBuffer,
    inner: GpuBuffer,
    outputs: GpuBuffer,
    logits: GpuBuffer,
    ids: GpuBuffer,
    values: GpuBuffer,
    angles: GpuBuffer,
    none: GpuBuffer,
}

impl Activations {
    fn new(gpu: &Gpu) -> Activations {
        let rows = |n: usize| gpu.buffer("activations", N_ROWS_MAX * n).expect("it fits");
        Activations {
            x: rows(N_EMBD),
            normed: rows(N_EMBD),
            q: rows(N_HEADS * HEAD_DIM),
            k: rows(N_KV_HEADS * HEAD_DIM),
            v: rows(N_KV_HEADS * HEAD_DIM),
            attended: rows(N_HEADS * HEAD_DIM),
            gate: rows(N_FF),
            up: rows(N_FF),
            inner: rows(N_FF),
            outputs: rows(N_EMBD),
            logits: rows(N_VOCAB),
            ids: rows(1),
            values: rows(1),
            angles: rows(HEAD_DIM),
            none: rows(1),
        }
    }
}

impl Decoder {
    fn new(gpu: &Gpu, weights: &Weights) -> Decoder {
        let on_device = |w: &[f32], k: usize| upload(gpu, k, 1, w);
        let embedding = on_device(&weights.embedding, N_EMBD);
        let head = on_device(&weights.head, N_EMBD);
        let layers: Vec<Vec<WeightMatrix>> = (weights.layers.iter())
            .map(|layer| layer.iter().zip(SHAPES).map(|(w, (_, k))| on_device(w, k)).collect())
            .collect();
        let cache = || gpu.buffer("KV cache", N_BLOCKS * KV_BLOCK as usize * N_KV_HEADS * HEAD_DIM).expect("it fits");
        let caches: Vec<(GpuBuffer, GpuBuffer)> = (0..N_LAYERS).map(|_| (cache(), cache())).collect();
        let on = Activations::new(gpu);
        let mut steps = vec![embed(&embedding, &on)];
        for (w, (keys, values)) in layers.iter().zip(&caches) {
            steps.push(norm(gpu, &on.x, &on.normed, &on, 0));
            steps.push(linear(gpu, &w[0], &on.normed, &on.q, &on, 0, 0));
            steps.push(linear(gpu, &w[1], &on.normed, &on.k, &on, 0, 0));
            steps.push(linear(gpu, &w[2], &on.normed, &on.v, &on, 0, 0));
            steps.push(rope(&on.q, N_HEADS, &on));
            steps.push(rope(&on.k, N_KV_HEADS, &on));
            steps.push(append(keys, values, &on));
            steps.push(attention(gpu, keys, values, &on));
            steps.push(linear(gpu, &w[3], &on.attended, &on.x, &on, 0, flags::ACCUMULATE));
            steps.push(norm(gpu, &on.x, &on.normed, &on, 0));
            steps.push(linear(gpu, &w[4], &on.normed, &on.gate, &on, 0, 0));
            steps.push(linear(gpu, &w[5], &on.normed, &on.up, &on, 0, 0));
            steps.push(activate(&on));
            steps.push(linear(gpu, &w[6], &on.inner, &on.x, &on, 0, flags::ACCUMULATE));
        }
        steps.push(gather(&on));
        steps.push(norm(gpu, &on.outputs, &on.normed, &on, OUTPUTS));
        steps.push(linear(gpu, &head, &on.normed, &on.logits, &on, OUTPUTS, 0));
        steps.push(most_likely(gpu, &on));
        let plan = gpu.plan(&steps).expect("it is valid");
        let pass = gpu.pass_buffers(N_ROWS_MAX, N_BLOCKS).expect("they fit");
        let read = |buffer| gpu.read_back(buffer).expect("it fits");
        let (logits, ids) = (read(&on.logits), read(&on.ids));
        Decoder { plan, pass, logits, ids, angles: on.angles }
    }
}

fn step<'a>(kernel: Kernel, params: [u32; 16], buffers: Vec<&'a GpuBuffer>, n: usize, count: usize) -> Step<'a> {
    Step { kernel, params, buffers, n: n as u32, slots: 1, count }
}

fn embed<'a>(w: &'a WeightMatrix, on: &'a Activations) -> Step<'a> {
    let params = EmbedParams {
        n_units: w.format.n_units(w.k) as u32,
        n_quads: w.k as u32 / 4,
        row_words: w.format.row_words(w.k) as u32,
        n_out: w.n_rows as u32,
        y_stride: w.k as u32,
        scale: 1.0,
        ..EmbedParams::default()
    };
    step(Kernel::Embed { format: w.format }, params.words(), vec![&w.parts[0].buffer, &on.x], w.k, 0)
}

fn norm<'a>(gpu: &Gpu, x: &'a GpuBuffer, y: &'a GpuBuffer, on: &'a Activations, count: usize) -> Step<'a> {
    let (n, count_word) = (N_EMBD as u32, count as u32);
    let params = NormParams { n, x_stride: n, y_stride: n, eps: EPS, count: count_word, ..NormParams::default() };
    let kernel = Kernel::Norm { is_centred: false, reduction: gpu.reduction() };
    step(kernel, params.words(), vec![x, &on.none, &on.none, y], 1, count)
}

fn linear<'a>(
    gpu: &Gpu,
    w: &'a WeightMatrix,
    x: &'a GpuBuffer,
    y: &'a GpuBuffer,
    on: &'a Activations,
    count: usize,
    flags: u32,
) -> Step<'a> {
    let params = LinearParams {
        n_units: w.format.n_units(w.k) as u32,
        n_quads: w.k as u32 / 4,
        row_words: w.format.row_words(w.k) as u32,
        n_out: w.n_rows as u32,
        x_stride: w.k as u32,
        y_stride: w.n_rows as u32,
        count: count as u32,
        flags,
        ..LinearParams::default()
    };
    let kernel = Kernel::MatVec { format: w.format, rows: RowTile::Four, reduction: gpu.reduction() };
    step(kernel, params.words(), vec![&w.parts[0].buffer, x, &on.none, y], w.n_rows, count)
}

fn rope<'a>(x: &'a GpuBuffer, n_heads: usize, on: &'a Activations) -> Step<'a> {
    let n_pairs = HEAD_DIM / 2;
    let params = RopeParams {
        n_heads: n_heads as u32,
        head_dim: HEAD_DIM as u32,
        n_pairs: n_pairs as u32,
        x_stride: (n_heads * HEAD_DIM) as u32,
        angle_stride: n_pairs as u32,
        ..RopeParams::default()
    };
    step(Kernel::Rope { is_neox: true }, params.words(), vec![&on.angles, x], n_heads * n_pairs, 0)
}

fn append<'a>(keys: &'a GpuBuffer, values: &'a GpuBuffer, on: &'a Activations) -> Step<'a> {
    let params = KvAppendParams {
        n_kv_heads: N_KV_HEADS as u32,
        k_dim: HEAD_DIM as u32,
        v_dim: HEAD_DIM as u32,
        k_stride: (N_KV_HEADS * HEAD_DIM) as u32,
        v_stride: (N_KV_HEADS * HEAD_DIM) as u32,
        ..KvAppendParams::default()
    };
    let n = Kernel::kv_words(KvType::F32, &params) as usize;
    step(Kernel::KvAppend { kv: KvType::F32 }, params.words(), vec![&on.k, &on.v, keys, values], n, 0)
}

fn attention<'a>(gpu: &Gpu, keys: &'a GpuBuffer, values: &'a GpuBuffer, on: &'a Activations) -> Step<'a> {
    let params = AttentionParams {
        n_heads: N_HEADS as u32,
        n_kv_heads: N_KV_HEADS as u32,
        k_dim: HEAD_DIM as u32,
        v_dim: HEAD_DIM as u32,
        q_stride: (N_HEADS * HEAD_DIM) as u32,
        y_stride: (N_HEADS * HEAD_DIM) as u32,
        scale: 1.0 / (HEAD_DIM as f32).sqrt(),
        ..AttentionParams::default()
    };
    let heads = HeadTile::Four;
    let n = Kernel::attention_tiles(heads, &params) as usize;
    let kernel = Kernel::Attention {
        kv: KvType::F32,
        heads,
        is_split: false,
        width: HeadWidth::Normal,
        reduction: gpu.reduction(),
    };
    step(kernel, params.words(), vec![&on.q, keys, values, &on.none, &on.attended], n, 0)
}

fn activate(on: &Activations) -> Step<'_> {
    let n = N_FF as u32;
    let params = ActivateParams { n, a_stride: n, b_stride: n, y_stride: n, ..ActivateParams::default() };
    let kernel = Kernel::Activate { function: ShaderActivation::Silu, is_gated: true };
    step(kernel, params.words(), vec![&on.gate, &on.up, &on.inner], N_FF, 0)
}

fn gather(on: &Activations) -> Step<'_> {
    let n = N_EMBD as u32;
    let params = AddParams { n, x_stride: n, y_stride: n, count: OUTPUTS as u32, ..AddParams::default() };
    step(Kernel::Gather, params.words(), vec![&on.x, &on.outputs], N_EMBD, OUTPUTS)
}

fn most_likely<'a>(gpu: &Gpu, on: &'a Activations) -> Step<'a> {
    let n = N_VOCAB as u32;
    let params = TopKParams { n, k: 1, x_stride: n, count: OUTPUTS as u32, ..TopKParams::default() };
    let kernel = Kernel::TopK { reduction: gpu.reduction() };
    step(kernel, params.words(), vec![&on.logits, &on.ids, &on.values], 1, OUTPUTS)
}

/// A text with its blocks in the cache.
struct Text {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
}

/// Positions of the texts that a pass computes, and the results that are wanted: one for each text.
fn run(gpu: &Gpu, decoder: &Decoder, texts: &[Text], parts: &[std::ops::Range<usize>]) -> Vec<Vec<u32>> {
    let (mut rows, mut tables, mut angles, mut sources) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (text, part) in texts.iter().zip(parts) {
        for position in part.clone() {
            let block = text.blocks[position / KV_BLOCK as usize];
            rows.push(RowRecord {
                token: text.tokens[position],
                slot: block * KV_BLOCK + position as u32 % KV_BLOCK,
                table: tables.len() as u32,
                n_keys: position as u32 + 1,
                ..RowRecord::default()
            });
            angles.extend((0..HEAD_DIM / 2).flat_map(|pair| {
                let (sin, cos) = angle(position, pair).sin_cos();
                [cos as f32, sin as f32]
            }));
        }
        tables.extend(&text.blocks);
        sources.extend((!part.is_empty()).then(|| rows.len() as u32 - 1));
    }
    rows.iter_mut().zip(&sources).for_each(|(row, source)| row.source = *source);
    gpu.write(&decoder.angles, 0, &words(&angles)).expect("they fit");
    let counts = [rows.len() as u32, sources.len() as u32, 0, 0];
    let input = PassInput { counts, rows: &rows, tables: &tables };
    gpu.run(&decoder.plan, &decoder.pass, input, &[&decoder.logits, &decoder.ids]).expect("it runs")
}

#[test]
fn two_texts_in_batches_are_what_they_are_alone() {
    let weights = Weights::new();
    // One text crosses a block; the blocks lie apart.
    let texts = [
        Text { tokens: (0..20).map(|i| (7 * i + 3) % N_VOCAB as u32).collect(), blocks: vec![4, 1] },
        Text { tokens: (0..6).map(|i| (11 * i + 5) % N_VOCAB as u32).collect(), blocks: vec![2] },
    ];
    let expected = texts.each_ref().map(|text| reference(&weights, &text.tokens));
    for gpu in open_all(&GpuOptions::default()) {
        let decoder = Decoder::new(&gpu, &weights);
        let before = gpu.stats();
        let passes = [[0..15, 0..4], [15..16, 4..5], [16..17, 5..6], [17..20, 6..6]];
        for parts in &passes {
            let got = run(&gpu, &decoder, &texts, parts);
            let ends = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
            for (output, (text, part)) in ends.enumerate() {
                let expected = &expected[text][part.end - 1];
                let logits: Vec<f32> =
                    got[0][output * N_VOCAB..][..N_VOCAB].iter().map(|x| f32::from_bits(*x)).collect();
                let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                for (got, expected) in logits.iter().zip(expected) {
                    let error = (f64::from(*got) - expected).abs() / largest;
                    assert!(
                        error <= 1e-4,
                        "{}, text {text} to {}: {got} instead of {expected}",
                        gpu.info().name,
                        part.end
                    );
                }
                let best = (0..N_VOCAB).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("there are some");
                assert_eq!(got[1][output] as usize, best);
            }
        }
        let after = gpu.stats();
        assert_eq!(after.n_command_buffers - before.n_command_buffers, passes.len() as u64);
        let n_steps = 1 + 14 * N_LAYERS + 4;
        assert_eq!(after.n_dispatches - before.n_dispatches, (passes.len() * n_steps) as u64);
        assert_eq!((after.n_buffers, after.n_bind_groups), (before.n_buffers, before.n_bind_groups));
    }
}
