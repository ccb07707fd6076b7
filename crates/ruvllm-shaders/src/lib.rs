//! The GPU kernels of RuvLLM: WGSL texts, specialised by constants, and their interface as Rust constants.
//!
//! A [`Kernel`] is an operation with its constants: format of the weights, tile, way in which lanes add up. It gives its
//! WGSL ([`Kernel::source`]), its bindings, its grid, and what a device needs for it. Weights are repacked on upload
//! ([`repack`]), parameters are records of 64 bytes ([`LinearParams`] and others).
//!
//! ```
//! use ruvllm_shaders::{Extent, Kernel, Reduction, RowTile, WeightFormat, repack};
//!
//! let format = WeightFormat::Q8_0;
//! let kernel = Kernel::MatVec { format, rows: RowTile::One, reduction: Reduction::Subgroup };
//! assert_eq!(kernel.name(), "matvec_q8_0_r1");
//! assert!(kernel.source().contains("fn main("));
//! assert_eq!(kernel.grid(Extent { n: 4096, rows: 1, slots: 1 }), [1024, 1, 1]);
//!
//! let row = vec![0; 2 * 34]; // 64 values as a file has them
//! let mut words = vec![0; format.row_words(64)];
//! repack(format, 64, &row, &mut words).expect("two blocks of 32 values");
//! ```
//!
//! It knows no device and no model: `wgpu`, or a host that links Metal itself, runs what it gives.

#![forbid(unsafe_code)]

mod binding;
mod format;
mod kernel;
mod metal;
mod params;
mod repack;

pub use binding::{Access, Binding, METAL_PASS_INDEX, METAL_SIZES_INDEX, PARAMS_BINDING, PASS_BINDINGS};
pub use format::{UNIT_LEN, WeightFormat};
pub use kernel::{
    DeviceNeeds, Extent, HeadTile, HeadWidth, KV_BLOCK, Kernel, KvType, Reduction, RowTile, ShaderActivation,
    TOP_K_MAX, TileType,
};
pub use metal::{METAL_KERNELS, MetalKernel};
pub use params::{
    ADAPTERS_MAX, ActivateParams, AddParams, AttentionMergeParams, AttentionParams, CausalConvParams, CombineParams,
    ConvParams, CopyHeadsParams, EmbedParams, ExpertLinearParams, KvAppendParams, LOW_RANK_F32, LOW_RANK_GAIN,
    LOW_RANK_PLACE_WORDS, LinearParams, LowRankParams, NO_ADAPTER, NormParams, RECORD_WORDS, RopeParams, RouteParams,
    RowRecord, ScanParams, SoftmaxParams, TopKParams, TopKPartsParams, flags, low_rank_words,
};
pub use repack::{RepackError, repack};
