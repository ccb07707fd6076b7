//! dequant
