//! A settings file to begin with: every setting as a comment, with its help and its default.

use std::fmt::Write as _;

use super::schema::typed;
use super::setting::{Setting, SettingKind};

/// Columns of a comment.
const WIDTH: usize = 110;

const HEAD: &str = "\
# Settings of ruvllm. The command line wins over the environment, the environment over this file.
# 'ruvllm config check' checks it, 'ruvllm config show' prints what holds and where it comes from.
# Paths are relative to the folder that the program is started in; '~' stands for nothing.
";

/// Returns the text of a file in which nothing is set yet.
pub fn template(settings: &[Setting]) -> String {
    let (mut text, mut table) = (HEAD.to_owned(), "");
    for setting in settings {
        if setting.table != table {
            table = setting.table;
            let about = match table {
                "general" => "Folders, sources and keys, which have a variable of the environment and no option",
                "common" => "Options of serve, run and chat; a table of theirs wins over this one",
                _ => "",
            };
            let _ = write!(text, "\n[{table}]\n");
            if !about.is_empty() {
                let _ = writeln!(text, "# {about}.");
            }
        }
        text.push('\n');
        for line in wrapped(&setting.help) {
            let _ = writeln!(text, "## {line}");
        }
        let _ = writeln!(text, "# {} = {}", setting.key, value(setting));
    }
    text
}

/// Returns the default of a setting as TOML, or an example of its type.
fn value(setting: &Setting) -> String {
    let example = || match &setting.kind {
        SettingKind::Switch => "false",
        SettingKind::Integer | SettingKind::Number => "1",
        SettingKind::Text | SettingKind::Choice(_) | SettingKind::Any => "\"\"",
    };
    // A TOML string, number, boolean or list of such is written as JSON writes it.
    setting.default.as_ref().map_or_else(|| example().to_owned(), |default| typed(setting, default).to_string())
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is one from the start");
        if !last.is_empty() && last.chars().count() + word.chars().count() >= WIDTH {
            lines.push(word.to_owned());
        } else {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines
}
