//! Sizes that a model is to have.

use ruvllm_gguf::GgufFile;

use crate::error::{ConvertError, shown};

/// Size that a model is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Bytes of the file, at most.
    FileBytes(u64),
    /// Bits of the tensors per weight, at most.
    BitsPerWeight(f64),
}

impl Budget {
    /// Reads a size: a number with B, kB, MB, GB, KiB, MiB or GiB behind.
    ///
    /// # Errors
    /// It is none.
    pub fn parse_size(text: &str) -> Result<Budget, ConvertError> {
        const UNITS: [(&str, f64); 8] = [
            ("kib", 1024.0),
            ("mib", 1_048_576.0),
            ("gib", 1_073_741_824.0),
            ("kb", 1e3),
            ("mb", 1e6),
            ("gb", 1e9),
            ("b", 1.0),
            ("", 1.0),
        ];
        let lower = text.trim().to_ascii_lowercase();
        let parts = UNITS.iter().find_map(|(unit, factor)| Some((lower.strip_suffix(unit)?.trim_end(), factor)));
        let bytes = parts.and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor));
        match bytes.filter(|bytes| bytes.is_finite() && *bytes >= 1.0 && *bytes < 1e18) {
            Some(bytes) => Ok(Budget::FileBytes(bytes as u64)),
            None => Err(ConvertError::usage(format!("'{}' is no size, such as 3.5GB or 900MiB", shown(text)))),
        }
    }

    /// Reads bits per weight.
    ///
    /// # Errors
    /// It is no number from 1 to 32.
    pub fn parse_bits(text: &str) -> Result<Budget, ConvertError> {
        match text.parse::<f64>().ok().filter(|bits| (1.0..=32.0).contains(bits)) {
            Some(bits) => Ok(Budget::BitsPerWeight(bits)),
            None => {
                Err(ConvertError::usage(format!("'{}' are no bits per weight; use a number from 1 to 32", shown(text))))
            }
        }
    }

    /// Returns the bytes that tensors may have.
    pub(crate) fn tensor_bytes(self, file: &GgufFile) -> u64 {
        match self {
            Budget::FileBytes(n) => n.saturating_sub(head_bytes(file)),
            Budget::BitsPerWeight(bits) => {
                let n_values: u64 = file.tensors().map(|tensor| tensor.n_elements() as u64).sum();
                (bits * n_values as f64 / 8.0) as u64
            }
        }
    }
}

/// Returns the most bytes that a file made of this one has beside its tensors: keys, and room between tensors.
pub(crate) fn head_bytes(file: &GgufFile) -> u64 {
    /// Keys that the source does not have.
    const KEYS: u64 = 4096;
    let head = file.total_bytes().saturating_sub(file.tensor_bytes());
    head + KEYS + file.tensors().len() as u64 * file.alignment()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let check = |text: &str, bytes: u64| {
            assert_eq!(Budget::parse_size(text).ok(), Some(Budget::FileBytes(bytes)), "{text}")
        };
        check("3.5GB", 3_500_000_000);
        check("900 MiB", 900 << 20);
        check("12kb", 12_000);
        check("1234", 1234);
        check("7 B", 7);
        for wrong in ["", "GB", "-1GB", "nanGB", "1e30", "3.5 XB", "0"] {
            assert!(Budget::parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Budget::parse_bits("4.6").ok(), Some(Budget::BitsPerWeight(4.6)));
        assert!(Budget::parse_bits("0.5").is_err() && Budget::parse_bits("x").is_err());
    }
}
