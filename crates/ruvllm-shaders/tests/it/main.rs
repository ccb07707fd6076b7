//! Every kernel against plain Rust, on every adapter of the machine.

mod attention;
mod device;
mod elementwise;
mod experts;
mod formats;
mod linear;
mod low_rank;
mod norms;
mod random;
mod recurrent;
mod reference;
mod rows;
mod short_conv;
mod texts;
