//! Attention over a paged KV cache: flash tiles for prefill, paged reads for decode, one definition for both.
//!
//! # Layout
//! The cache is cut in blocks of [`BLOCK_TOKENS`] = 16 positions; a layer's part of one, elements `f16` or `f32`, is
//! ```text
//! K [n_kv_heads][k_dim][16]        tokens run fastest: the scores of 16 tokens are one vector, no horizontal sums
//! V [n_kv_heads][16][v_stride]     v_stride = v_dim rounded up to 16: a token's value row is whole vectors
//! ```
//! Older blocks may be smaller ([`KvFormat`], made by [`AttentionKernels::quantize`]). Keys share scales along the positions of a
//! channel, values along the columns of a token; 4 codes of packed formats lie in one lane, of 16 or 8 bits:
//! ```text
//! Q8 unit = 1 block    K [n_kv_heads]{ scale [k_dim'], code [k_dim][16] }            k_dim' = k_dim rounded up to 16
//!                      V [n_kv_heads]{ scale [groups][16], code [16][v_stride] }     a group is 64 columns
//! Q4, Q2 = 4 blocks    K [n_kv_heads]{ scale [k_dim'], min [k_dim'], lane [k_dim][16] }        code b: position 16 b + t
//!                      V [n_kv_heads]{ [groups]{ scale [64], min [64] }, lane [64][groups][16] }   code j: column 16 j + c
//! ```
//! Their scores are `Σ (q·scale)·code + Σ q·min`, their values `Σ (p·scale)·code + Σ p·min`: the last sum of each is taken
//! once per unit or span, the products in front once per 16 columns or positions. One table may hold blocks of all formats.
//!
//! A sequence is a table of [`KvBlock`]s; position `p` lies in slot `p % 16` of block `table[p / 16]`. Where a block's
//! bytes are, [`KvLayer`] says.
//!
//! # Definition
//! Positions are cut in absolute *spans* of [`SPAN_TOKENS`] = 256. For one query at position `p` and one head:
//! ```text
//! q' = scale·q                                                       visible: lo ≤ j < hi
//! for each span that holds a visible j, in order:
//!     s[j] = Σ_d q'[d]·K[d][j]          d ascending, one accumulator per j
//!     s[j] = cap·tanh(s[j]/cap)         with a soft cap
//!     s[j] = s[j] - slope·|p - j|       with ALiBi
//!     m = max s;  e[j] = exp(s[j] - m);  l = Σ e;  o[c] = Σ_j e[j]·V[j][c]      j ascending, one accumulator per c
//!     (M, L, O) = the first span's (m, l, o), later: both sides rescaled to the larger maximum and added
//! with a sink logit: L and O rescaled to max(M, sink), L += exp(sink - M)
//! out = O / L
//! ```
//! `lo` and `hi` depend on the query alone (causal: `hi = p + 1`; window `w`: `lo = p + 1 - w`), so these float
//! operations and their order do too. Results are therefore bit-identical for decode, for prefill in any chunking, for
//! any batch and any number of threads within one instruction set. Masked positions are dropped before the maximum and
//! never touch V, so whatever stale bits lie in unused slots cannot leak.
//!
//! # Tricks
//! - A task is a *tile*: up to 24 (query, head) rows, so each K/V line is read from memory once per tile and once per GQA
//!   group in decode. Prompts' tiles share one KV head; a single query's take neighbouring ones, which lie side by side.
//! - Rows go through the register kernels in chunks of up to 8 (AVX-512) or 6; a chunk reads only the blocks it can see.
//! - A group of blocks is read for each of a tile's heads before the next. While one is worked on, the next is prefetched at
//!   the same pace: keys, after the last keys the values, after the last values the keys of the task that will be claimed
//!   next. A head's 2 KiB in a block are too short for the hardware to see a stream.
//! - When tiles are few and contexts long, spans become tasks of their own; whoever finishes a tile's last span merges
//!   them in the same order, so there is one parallel region and no serial part.
//! - Memory is O(tile): one span of scores per row. No N×N matrix exists.
//!
//! Source: Dao 2023 (FlashAttention-2, arXiv:2307.08691) for tiles and the online softmax, Kwon et al. 2023
//! (PagedAttention, arXiv:2309.06180) for block tables; the fixed spans are ours.

mod attend;
mod exact;
mod layout;
mod plan;
mod prefetch;
mod quant;
mod quantize;
mod scalar;
mod scalar_quant;
mod store;
mod vector;
mod worker;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(test)]
mod tests;

pub use attend::{Inputs, Limits, Scratch, attend};
pub use layout::{
    BLOCK_TOKENS, KvBlock, KvFormat, KvLayer, KvPart, KvShape, KvUnits, KvUnitsMut, UNIT_BLOCKS, UNIT_TOKENS,
};
pub use prefetch::prefetch_plan;
pub use store::store;

use crate::isa::{self, Dispatch, Isa};
use quantize::{DequantizeArgs, QuantizeArgs};
use ruvllm_cpu::prefetch::CacheLevel;
use std::ops::Range;

/// Positions in a span: the unit of the softmax, see the [module's definition](self#definition).
pub const SPAN_TOKENS: usize = 256;

/// Rows (query × head) a tile has at most.
const TILE_ROWS: usize = 24;
/// Rows a register kernel takes at most, whatever the instruction set.
const CHUNK_ROWS_MAX: usize = 8;
/// Blocks a register kernel takes at most.
const GROUP_BLOCKS: usize = 8;
/// Blocks in a span.
const SPAN_BLOCKS: usize = SPAN_TOKENS / BLOCK_TOKENS;

/// Consecutive rows of a step that belong to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The first row of the step that is this segment's.
    pub first_row: usize,
    /// Its number of rows.
    pub n_rows: usize,
    /// Position of its first row in the sequence.
    pub pos: usize,
    /// Positions of the sequence once this step's rows are written.
    pub n_kv: usize,
    /// The sequence's blocks, at least `n_kv` positions.
    pub blocks: &'a [KvBlock],
}

/// Options of a layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Query heads, a multiple of `n_kv_heads`; head `h` reads KV head `h / (n_heads / n_kv_heads)`.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Length of a key head.
    pub k_dim: usize,
    /// Length of a value head.
    pub v_dim: usize,
    /// Multiplies every score, usually `1/√k_dim`.
    pub scale: f32,
    /// Scores become `cap·tanh(score/cap)`.
    pub softcap: Option<f32>,
    /// A query at position `p` sees positions greater than `p - window`.
    pub window: Option<usize>,
    /// Whether a query sees only positions up to its own; otherwise all `n_kv` of its sequence.
    pub causal: bool,
    /// One logit per head that joins the softmax's denominator, `[n_heads]`.
    pub sinks: Option<&'a [f32]>,
    /// One ALiBi slope per head, `[n_heads]`: `slope·|p - j|` is taken off the score.
    pub alibi: Option<&'a [f32]>,
}

impl Options<'_> {
    /// Returns causal attention with scale `1/√k_dim` and nothing else.
    pub fn causal(n_heads: usize, shape: KvShape) -> Options<'static> {
        Options {
            n_heads,
            n_kv_heads: shape.n_kv_heads,
            k_dim: shape.k_dim,
            v_dim: shape.v_dim,
            scale: 1.0 / (shape.k_dim as f32).sqrt(),
            softcap: None,
            window: None,
            causal: true,
            sinks: None,
            alibi: None,
        }
    }

    /// Returns the shape of the cache these options read.
    pub fn shape(&self) -> KvShape {
        KvShape { n_kv_heads: self.n_kv_heads, k_dim: self.k_dim, v_dim: self.v_dim }
    }

    /// Returns the positions a query at `pos` of a sequence of `n_kv` sees.
    fn visible(&self, pos: usize, n_kv: usize) -> Range<usize> {
        let end = if self.causal { pos + 1 } else { n_kv };
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window))..end
    }
}

/// Keys or values of a block, of all heads or of one.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// What the unit that the block lies in has of them.
    bytes: &'a [u8],
    /// The block's place in the unit.
    sub: usize,
}

impl Part<'_> {
    const NONE: Part<'static> = Part { bytes: &[], sub: 0 };
}

/// One head's keys or values of some blocks.
#[derive(Clone, Copy)]
struct Head<'a> {
    /// Those of all heads.
    parts: &'a [Part<'a>],
    /// Where the head's begin in each.
    at: usize,
    /// How many bytes are the head's.
    len: usize,
}

impl<'a> Head<'a> {
    /// Returns the number of blocks.
    #[inline(always)]
    fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the head's part of block `i`.
    ///
    /// # Panics
    /// If there are fewer blocks, or the unit ends before the head.
    #[inline(always)]
    fn get(&self, i: usize) -> Part<'a> {
        let Part { bytes, sub } = self.parts[i];
        Part { bytes: &bytes[self.at..self.at + self.len], sub }
    }

    /// Asserts that kernels of `format` find `len` bytes of each block.
    fn check(&self, format: KvFormat, len: usize) {
        assert_eq!(self.len, len, "bytes of a head in {format}");
        assert!(self.parts.iter().all(|part| part.sub < format.blocks_per_unit()));
    }
}

/// Keys or values that are read next, prefetched at the pace of reading.
#[derive(Clone, Copy)]
struct NextParts<'a> {
    /// Of all heads.
    parts: &'a [Part<'a>],
    /// Where the head's begin in each.
    at: usize,
    level: CacheLevel,
}

impl NextParts<'_> {
    /// Returns what is prefetched while part `block` of a group is read at `current`, which serves if there is no more.
    #[inline(always)]
    fn of<T>(&self, block: usize, current: *const T) -> *const T {
        let part = self.parts.get(block);
        part.map_or(current, |part| part.bytes.as_ptr().wrapping_add(self.at).cast())
    }
}

/// Scores of up to `chunk_rows` rows and [`GROUP_BLOCKS`] blocks: `out[r][16 b + t] = Σ_d q[r][d]·k[b][d][t]`.
struct ScoreArgs<'a> {
    /// Of all blocks.
    format: KvFormat,
    shape: KvShape,
    n_rows: usize,
    /// `[n_rows, k_stride]`, zeros past `k_dim`
    q: &'a [f32],
    /// The keys.
    blocks: Head<'a>,
    next: NextParts<'a>,
    /// Rows [`SPAN_TOKENS`] apart.
    out: &'a mut [f32],
}

/// Values of up to `chunk_rows` rows and [`GROUP_BLOCKS`] blocks: `out[r][c] += Σ_t p[r][t]·v[t][c]`, `t` in `tokens`.
struct ValueArgs<'a> {
    /// Of all blocks.
    format: KvFormat,
    shape: KvShape,
    n_rows: usize,
    /// Rows [`SPAN_TOKENS`] apart, from the first position of the first block.
    p: &'a [f32],
    /// The values.
    blocks: Head<'a>,
    next: NextParts<'a>,
    /// Which positions count, from the first of the first block.
    tokens: Range<usize>,
    /// `[n_rows, v_stride]`
    out: &'a mut [f32],
}

/// Maximum of some scores, and the sum of their exponentials above it.
#[derive(Clone, Copy, Debug, Default)]
struct MaxSum {
    max: f32,
    sum: f32,
}

/// Rows' scores of a span, turned into `exp(score - max)` in place, over the blocks that each row sees.
struct SoftmaxArgs<'a> {
    /// `[n_rows, SPAN_TOKENS]`
    scores: &'a mut [f32],
    /// What each row sees, from the span's start, or nothing. The others of its blocks become 0.
    visible: &'a [Range<usize>],
    softcap: Option<f32>,
    /// For each row the ALiBi slope, and the query's position less the span's start.
    alibi: Option<&'a [(f32, f32)]>,
    /// Becomes that of each row.
    totals: &'a mut [MaxSum],
}

/// Returns the positions from the first to the last that any row sees.
fn hull(visible: &[Range<usize>]) -> Range<usize> {
    let seen = visible.iter().filter(|visible| !visible.is_empty()).cloned();
    seen.reduce(|all, one| all.start.min(one.start)..all.end.max(one.end)).unwrap_or(0..0)
}

/// Returns the positions of the blocks that `visible` touches.
fn whole_blocks(visible: &Range<usize>) -> Range<usize> {
    visible.start / BLOCK_TOKENS * BLOCK_TOKENS..visible.end.next_multiple_of(BLOCK_TOKENS)
}

/// What rows' values start with: `out[r][c] = Σ_t p[r][t]·min[t][c]` over the blocks of a span that have minima.
struct MinArgs<'a> {
    shape: KvShape,
    /// `[n_rows, SPAN_TOKENS]`; 0 at positions of blocks a row sees that it does not see itself.
    p: &'a [f32],
    /// What each row sees.
    visible: &'a [Range<usize>],
    /// The format of each block of the span.
    formats: &'a [KvFormat],
    /// The values of each block that a row sees, of all heads.
    blocks: &'a [Part<'a>],
    /// The head.
    head: usize,
    /// `[n_rows, v_stride]`
    out: &'a mut [f32],
}

/// A row's running result and a span to be added to it.
struct FoldArgs<'a> {
    /// The running values, whole vectors.
    out: &'a mut [f32],
    /// The span's values, of the same length.
    values: &'a [f32],
    /// Of what `out` holds.
    total: MaxSum,
    /// Of the span.
    span: MaxSum,
}

/// Attention kernels of one instruction set.
pub type AttentionKernels = Dispatch<AttentionOps>;

/// Function pointers of [`AttentionKernels`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionOps {
    /// Rows its kernels take at most.
    chunk_rows: usize,
    /// By format.
    scores: [unsafe fn(&mut ScoreArgs<'_>); KvFormat::COUNT],
    softmax: unsafe fn(&mut SoftmaxArgs<'_>),
    /// By format.
    values: [unsafe fn(&mut ValueArgs<'_>); KvFormat::COUNT],
    mins: unsafe fn(&mut MinArgs<'_>),
    /// Returns the maximum and the sum of both.
    fold: unsafe fn(&mut FoldArgs<'_>) -> MaxSum,
    quantize: unsafe fn(&mut QuantizeArgs<'_>),
    dequantize: unsafe fn(&mut DequantizeArgs<'_>),
}

/// Writes the kernels of module `$module`.
macro_rules! ops {
    ($module:ident) => {
        AttentionOps {
            chunk_rows: $module::CHUNK_ROWS,
            scores: $module::SCORES,
            softmax: $module::softmax,
            values: $module::VALUES,
            mins: $module::mins,
            fold: $module::fold,
            quantize: $module::quantize,
            dequantize: $module::dequantize,
        }
    };
}

/// The kernels of CPUs that compute with 512 bits at once.
#[cfg(target_arch = "x86_64")]
const WIDE: AttentionOps = AttentionOps {
    chunk_rows: avx512::wide::CHUNK_ROWS,
    scores: avx512::wide::SCORES,
    values: avx512::wide::VALUES,
    ..ops!(avx512)
};

isa::table! {
    AttentionOps {
        #[cfg(target_arch = "x86_64")]
        Dispatch::new(Isa::Avx512, WIDE).only_if(ruvllm_cpu::family::is_zen_5),
        #[cfg(target_arch = "x86_64")]
        Dispatch::new(Isa::Avx512, ops!(avx512)).only_if(|| !ruvllm_cpu::family::is_zen_5()),
        #[cfg(target_arch = "x86_64")]
        Dispatch::new(Isa::Avx2, ops!(avx2)),
        #[cfg(target_arch = "aarch64")]
        Dispatch::new(Isa::Neon, ops!(neon)),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Dispatch::new(Isa::Simd128, ops!(simd128)),
        Dispatch::new(Isa::Scalar, ops!(scalar)),
    }
}

impl AttentionKernels {
    fn softmax(&self, args: &mut SoftmaxArgs<'_>) {
        let n_rows = args.visible.len();
        assert!(args.scores.len() == n_rows * SPAN_TOKENS && args.totals.len() == n_rows);
        assert!(args.visible.iter().all(|visible| visible.start <= visible.end && visible.end <= SPAN_TOKENS));
        assert!(args.alibi.is_none_or(|rows| rows.len() == n_rows));
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.softmax)(args) }
    }

    fn fold(&self, args: &mut FoldArgs<'_>) -> MaxSum {
        assert!(args.out.len().is_multiple_of(16) && args.out.len() == args.values.len());
        // SAFETY: as above.
        unsafe { (self.ops.fold)(args) }
    }

    fn mins(&self, args: &mut MinArgs<'_>) {
        let seen = hull(args.visible);
        let blocks = seen.start / BLOCK_TOKENS..seen.end.div_ceil(BLOCK_TOKENS);
        let n_rows = args.visible.len();
        assert!(n_rows > 0 && args.out.len() == n_rows * args.shape.v_stride());
        assert!(args.p.len() >= (n_rows - 1) * SPAN_TOKENS + blocks.end * BLOCK_TOKENS);
        let fits = |(part, format): (&Part<'_>, &KvFormat)| {
            part.bytes.len() >= (args.head + 1) * format.v_head_bytes(args.shape) && part.sub < format.blocks_per_unit()
        };
        assert!(args.blocks[blocks.clone()].iter().zip(&args.formats[blocks]).all(fits));
        // SAFETY: as above.
        unsafe { (self.ops.mins)(args) }
    }

    fn scores(&self, args: &mut ScoreArgs<'_>) {
        args.check();
        // SAFETY: as above.
        unsafe { (self.ops.scores[args.format as usize])(args) }
    }

    fn values(&self, args: &mut ValueArgs<'_>) {
        args.check();
        // SAFETY: as above.
        unsafe { (self.ops.values[args.format as usize])(args) }
    }
}

impl ScoreArgs<'_> {
    /// Asserts what the kernels' pointers rely on.
    fn check(&self) {
        let (n_rows, n_blocks) = (self.n_rows, self.blocks.len());
        assert!((1..=CHUNK_ROWS_MAX).contains(&n_rows) && (1..=GROUP_BLOCKS).contains(&n_blocks));
        assert!(self.q.len() >= n_rows * self.shape.k_stride());
        assert!(self.out.len() >= (n_rows - 1) * SPAN_TOKENS + n_blocks * BLOCK_TOKENS);
        self.blocks.check(self.format, self.format.k_head_bytes(self.shape));
    }
}

impl ValueArgs<'_> {
    /// Asserts what the kernels' pointers rely on.
    fn check(&self) {
        let (n_rows, tokens) = (self.n_rows, &self.tokens);
        assert!((1..=CHUNK_ROWS_MAX).contains(&n_rows) && (1..=GROUP_BLOCKS).contains(&self.blocks.len()));
        assert!(tokens.start <= tokens.end && tokens.end <= self.blocks.len() * BLOCK_TOKENS);
        assert!(self.p.len() >= (n_rows - 1) * SPAN_TOKENS + self.blocks.len() * BLOCK_TOKENS);
        assert!(self.out.len() >= n_rows * self.shape.v_stride());
        self.blocks.check(self.format, self.format.v_head_bytes(self.shape));
    }
}
