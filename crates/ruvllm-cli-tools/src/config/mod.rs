//! The settings file: options of commands, and what else comes from the environment, in TOML.
//!
//! No setting is listed here. An option of `serve`, `run` or `chat` is a setting of the table of that command, under its long
//! name and with the check of its value; an option of all three is one of `[common]` too. What has a variable and no option is
//! in `[general]`. The command line wins over the environment, the environment over the file, a command's table over `[common]`.
//!
//! The file's options are put on the command line, in front of those that are there, and are read by the same parser.

mod file;
mod invocation;
mod reload;
mod schema;
mod setting;
mod template;
#[cfg(test)]
mod tests;

pub use file::ConfigFile;
pub use invocation::{Invocation, Origin, ParsedLine};
pub use reload::is_reloaded;
pub use schema::schema;
pub use setting::{COMMANDS, Setting, all};
pub use template::template;
