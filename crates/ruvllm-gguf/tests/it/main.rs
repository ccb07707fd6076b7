//! The crate from outside: round trips, committed files, and what damaged and hostile files cost.

mod base;
mod committed;
mod counting;
mod headers;
mod malformed_files;
mod messages;
mod mutated;
mod release;
mod round_trip;
mod source;
mod split;
