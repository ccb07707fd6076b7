//! Weight formats: how a row lies on the device.
//!
//! GGML's blocks have odd sizes (18, 22, 34, 210 bytes), so that few of them begin at a word. On upload a row is
//! repacked into *planes*, each a run of whole words for all units of the row; a unit is 32 values. Neighbouring lanes
//! then read neighbouring words, nothing is added but the padding of a row's end, and every word is read once.
//!
//! ```text
//! nibbles   4 words a unit    byte b of word w: value 4w + b in the low nibble, value 16 + 4w + b in the high one
//! bits      1 word a unit     bit j: the fifth bit of value j
//! pairs     2 words a unit    byte b of word w, bits 2s..2s+2: bits 4 and 5 of value 16w + 4s + b
//! bytes     8 words a unit    values in order, signed
//! halves    16 words a unit   values in order
//! floats    32 words a unit   values in order
//! scales    f16 or bytes a unit, or the head of a block of 256 values, packed without gaps
//! ```

/// A format of weights that the kernels read. The names and ids are GGML's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(non_camel_case_types, reason = "these are the names the field uses")]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// Upper halves of 32-bit floats.
    BF16,
    /// 4 bits, a scale per 32.
    Q4_0,
    /// 4 bits, scale and minimum per 32.
    Q4_1,
    /// 5 bits, a scale per 32.
    Q5_0,
    /// 5 bits, scale and minimum per 32.
    Q5_1,
    /// 8 bits, a scale per 32.
    Q8_0,
    /// 4 bits, 6-bit scale and minimum per 32, blocks of 256.
    Q4_K,
    /// 5 bits, 6-bit scale and minimum per 32, blocks of 256.
    Q5_K,
    /// 6 bits, 8-bit scale per 16, blocks of 256.
    Q6_K,
    /// 4 bits, non-linear codebook, a scale per 32.
    IQ4_NL,
    /// 4 bits, non-linear codebook, 6-bit scale per 32, blocks of 256.
    IQ4_XS,
    /// 4-bit floats, an exponent per 32.
    MXFP4,
}

/// A row of the table of formats.
struct Row {
    format: WeightFormat,
    name: &'static str,
    ggml_id: u32,
    block_len: usize,
    block_bytes: usize,
    /// WGSL of the decoder: `Unit`, `load_unit` and `quad`.
    decoder: &'static str,
}

macro_rules! formats {
    ($($format:ident = $id:literal, $len:literal values, $bytes:literal bytes, $file:literal;)*) => {
        const ROWS: &[Row] = &[$(Row {
            format: WeightFormat::$format, name: stringify!($format), ggml_id: $id, block_len: $len, block_bytes: $bytes,
            decoder: include_str!(concat!("wgsl/formats/", $file, ".wgsl")),
        },)*];
    };
}

formats! {
    F32 = 0, 1 values, 4 bytes, "f32";
    F16 = 1, 1 values, 2 bytes, "f16";
    BF16 = 30, 1 values, 2 bytes, "bf16";
    Q4_0 = 2, 32 values, 18 bytes, "q4_0";
    Q4_1 = 3, 32 values, 20 bytes, "q4_1";
    Q5_0 = 6, 32 values, 22 bytes, "q5_0";
    Q5_1 = 7, 32 values, 24 bytes, "q5_1";
    Q8_0 = 8, 32 values, 34 bytes, "q8_0";
    Q4_K = 12, 256 values, 144 bytes, "q4_k";
    Q5_K = 13, 256 values, 176 bytes, "q5_k";
    Q6_K = 14, 256 values, 210 bytes, "q6_k";
    IQ4_NL = 20, 32 values, 18 bytes, "iq4_nl";
    IQ4_XS = 23, 256 values, 136 bytes, "iq4_xs";
    MXFP4 = 39, 32 values, 17 bytes, "mxfp4";
}

impl WeightFormat {
    /// Every format, in the order of the table.
    pub const ALL: [WeightFormat; ROWS.len()] = {
        let mut all = [WeightFormat::F32; ROWS.len()];
        let mut i = 0;
        while i < ROWS.len() {
            all[i] = ROWS[i].format;
            i += 1;
        }
        all
    };

    /// The format that GGUF files number so, or `None` if no kernel reads it.
    pub fn from_ggml_id(id: u32) -> Option<WeightFormat> {
        ROWS.iter().find(|row| row.ggml_id == id).map(|row| row.format)
    }

    /// The number that GGUF files have for it.
    pub fn ggml_id(self) -> u32 {
        self.row().ggml_id
    }

    /// The GGML name, e.g. `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Number of values in a block of a file.
    pub fn block_len(self) -> usize {
        self.row().block_len
    }

    /// Number of bytes of a block in a file.
    pub fn block_bytes(self) -> usize {
        self.row().block_bytes
    }

    /// Number of units in a row of `k` values: 32 values each, the last one padded with zeros.
    pub fn n_units(self, k: usize) -> usize {
        k.div_ceil(UNIT_LEN)
    }

    /// Number of words that a row of `k` values takes on the device. Rows lie one after another, so any rows next to each
    /// other are a buffer of their own.
    pub fn row_words(self, k: usize) -> usize {
        let n_values = self.n_units(k) * UNIT_LEN;
        (n_values / self.block_len() * self.row().block_bytes).div_ceil(4)
    }

    /// WGSL that decodes it: a struct `Unit`, `load_unit(row, u) -> Unit` and `quad(unit, i) -> vec4<f32>`.
    pub(crate) fn decoder(self) -> &'static str {
        self.row().decoder
    }

    /// Whether a row may end within a unit.
    pub(crate) fn is_ragged(self) -> bool {
        self.block_len() == 1
    }

    fn row(self) -> &'static Row {
        ROWS.iter().find(|row| row.format == self).expect("the table has every format")
    }
}

/// Number of values in a unit, the piece of a row that a lane decodes at once.
pub const UNIT_LEN: usize = 32;
