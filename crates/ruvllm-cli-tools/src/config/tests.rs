//! Options as settings of a file: what is read, refused and written.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command, value_parser};

use super::file::{self, ConfigFile};
use super::invocation::{Invocation, Origin};
use super::setting::{Setting, SettingKind, all};

/// Returns a program with a few options of each kind.
fn program() -> Command {
    let option = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Set);
    let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let common = || {
        [
            option("model").action(ArgAction::Set).default_value("tiny"),
            option("temp").value_parser(value_parser!(f32)).default_value("0.8"),
            option("kv").value_parser(["f16", "q8"]).default_value("f16"),
            option("backend").default_value("native"),
            option("url").required_if_eq("backend", "remote"),
            switch("learn"),
            option("learn-key").requires("learn"),
        ]
    };
    let serve = Command::new("serve").args(common()).args([
        option("port").value_parser(value_parser!(u16)).default_value("8080"),
        option("cache-dir")
            .value_parser(value_parser!(PathBuf))
            .visible_alias("slot-save-path")
            .conflicts_with("no-cache"),
        switch("no-cache"),
        option("alias").action(ArgAction::Append),
        option("api-key").action(ArgAction::Append),
    ]);
    let config = option("config").global(true).value_parser(value_parser!(PathBuf));
    Command::new("ruvllm").arg(config).subcommands([
        serve,
        Command::new("run").args(common()),
        Command::new("chat").args(common()),
        Command::new("list"),
    ])
}

fn settings() -> Vec<Setting> {
    all(&program())
}

/// Reads a text in which all must be right.
fn sound(text: &str) -> ConfigFile {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).expect("written");
    ConfigFile::load(&path, &settings()).expect("a sound file")
}

fn invocation(line: &str) -> Invocation {
    Invocation::new(program(), line.split(' ').map(OsString::from))
}

#[test]
fn settings_are_the_options_of_commands() {
    let settings = settings();
    let kind = |table: &str, key: &str| {
        settings.iter().find(|one| one.table == table && one.key == key).map(|one| (one.kind.clone(), one.is_list))
    };
    assert_eq!(kind("serve", "port"), Some((SettingKind::Integer, false)));
    assert_eq!(kind("serve", "alias"), Some((SettingKind::Text, true)));
    assert_eq!(kind("common", "temp"), Some((SettingKind::Number, false)));
    assert_eq!(kind("common", "learn"), Some((SettingKind::Switch, false)));
    assert_eq!(kind("run", "kv"), Some((SettingKind::Choice(vec!["f16".to_owned(), "q8".to_owned()]), false)));
    assert!(kind("common", "port").is_none() && kind("run", "port").is_none() && kind("serve", "config").is_none());
    assert_eq!(kind("general", "home"), Some((SettingKind::Any, false)));
}

#[test]
fn mistakes_are_told_with_their_line() {
    let problems =
        |text: &str| -> Vec<String> { file::parse(text, &settings()).1.iter().map(ToString::to_string).collect() };
    for (text, expected) in [
        ("[serve]\nport = 80\n\n[serve", "line 4: "),
        ("[srve]\nport = 80", "line 1: there is no table [srve]; is [serve] meant?"),
        ("port = 80", "line 1: 'port' stands in no table; it belongs in [serve]"),
        ("serve = 3", "line 1: 'serve' is a table; write [serve] on a line of its own"),
        ("[serve]\n\nprot = 80", "line 3: [serve] has no setting 'prot'; is 'port' meant?"),
        ("[serve]\ncache_dir = \"x\"", "line 2: [serve] has no setting 'cache_dir'; is 'cache-dir' meant?"),
        ("[serve]\nslot-save-path = \"x\"", "line 2: [serve] has no setting 'slot-save-path'; is 'cache-dir' meant?"),
        ("[run]\nport = 1", "line 2: [run] has no setting 'port'; 'port' belongs in [serve]"),
        ("[serve]\nport = \"80\"", "line 2: port in [serve]: it is text; use a whole number"),
        ("[serve]\nport = 80000", "line 2: port in [serve]: 80000 cannot be used: 80000 is not in 0..=65535"),
        ("[common]\nkv = \"q9\"", "line 2: kv in [common]: q9 cannot be used: use one of f16, q8"),
        ("[common]\nlearn = 1", "line 2: learn in [common]: it is a whole number; use true or false"),
        ("[common]\nmodel = [\"a\"]", "line 2: model in [common]: it is a list; use text in quotes"),
        (
            "[serve]\nalias = [1]",
            "line 2: alias in [serve]: it is a list of something else; use text in quotes, or a list of such",
        ),
        ("[serve]\nport = 1979-05-27", "line 2: port in [serve]: it is a date; use a whole number"),
    ] {
        let found = problems(text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text:?}: {found:?}");
    }
    // All of them, in order.
    let found = problems("[serve]\nprot = 1\nport = 1.5\n[common]\ntmep = 1\n");
    assert_eq!(found.len(), 3, "{found:?}");
    // No part of a secret.
    let found = problems("[serve]\napi-key = 12345678\n");
    assert!(!found[0].contains("1234"), "{found:?}");
}

#[test]
fn the_command_line_wins_and_own_tables_over_common_ones() {
    let file = sound("[common]\ntemp = 0\nmodel = \"a\"\n[serve]\ntemp = 0.5\nport = 81\nalias = [\"x\", \"y,z\"]\n");
    let parsed = invocation("ruvllm serve --port 82").parse(Some(&file)).expect("sound");
    let own = parsed.matches.subcommand_matches("serve").expect("serve");
    assert_eq!(own.get_one::<u16>("port"), Some(&82));
    assert_eq!(own.get_one::<f32>("temp"), Some(&0.5));
    assert_eq!(own.get_one::<String>("model").map(String::as_str), Some("a"));
    let aliases: Vec<&String> = own.get_many("alias").expect("two").collect();
    assert_eq!(aliases, ["x", "y,z"]);
    let command = program();
    let serve = command.find_subcommand("serve").expect("serve");
    let origin = |name: &str| {
        parsed.origin("serve", serve.get_arguments().find(|arg| arg.get_long() == Some(name)).expect("an option"))
    };
    assert_eq!(origin("port"), Origin::Option);
    assert_eq!(origin("temp"), Origin::File(5));
    assert_eq!(origin("model"), Origin::File(3));
    assert_eq!(origin("kv"), Origin::Default);
    let other = invocation("ruvllm serve --alias z").parse(Some(&file)).expect("sound");
    let own = other.matches.subcommand_matches("serve").expect("serve");
    assert_eq!(own.get_many::<String>("alias").expect("one").count(), 1, "a list is replaced");
    let run = invocation("ruvllm run").parse(Some(&file)).expect("sound");
    assert_eq!(run.matches.subcommand_matches("run").and_then(|run| run.get_one::<f32>("temp")), Some(&0.0));
    assert!(invocation("ruvllm list").parse(Some(&file)).is_ok());
}

#[test]
fn options_of_the_line_put_out_those_of_the_file_that_they_exclude() {
    let file = sound(
        "[serve]\ncache-dir = \"kv\"\n[common]\nlearn = true\nlearn-key = \"k\"\nbackend = \"remote\"\nurl = \"u\"\n",
    );
    let serve = |line: &str| {
        let parsed = invocation(line).parse(Some(&file)).expect(line);
        parsed.matches.subcommand_matches("serve").expect("serve").clone()
    };
    let plain = serve("ruvllm serve");
    assert!(plain.get_flag("learn") && plain.contains_id("learn-key") && plain.contains_id("cache-dir"));
    assert!(!serve("ruvllm serve --no-cache").contains_id("cache-dir"));
    let unlearned = serve("ruvllm serve --learn=false");
    assert!(!unlearned.get_flag("learn") && !unlearned.contains_id("learn-key"));
    assert!(serve("ruvllm serve --learn=true").get_flag("learn"));
    let local = serve("ruvllm serve --backend native");
    assert!(!local.contains_id("url"));
    // What the file has need not be on the line.
    assert!(invocation("ruvllm serve --learn-key other").parse(Some(&file)).is_ok());
    let missing = invocation("ruvllm serve --learn-key other").parse(Some(&sound("[serve]\nport = 1\n")));
    assert_eq!(missing.err().map(|error| error.kind()), Some(ErrorKind::MissingRequiredArgument));
}

#[test]
fn values_that_look_like_switches_are_left_alone() {
    let parsed = invocation("ruvllm run --model --learn=false").parse(None);
    assert!(parsed.is_err(), "a value that begins with '-' is none");
    let parsed = invocation("ruvllm run --model=--learn=false").parse(None).expect("a value");
    let run = parsed.matches.subcommand_matches("run").expect("run").clone();
    assert_eq!(run.get_one::<String>("model").map(String::as_str), Some("--learn=false"));
    assert_eq!(invocation("ruvllm --config x run").config(), Some(PathBuf::from("x")));
    assert_eq!(invocation("ruvllm serve --prot 1 --config=y").config().or(Some("y".into())), Some(PathBuf::from("y")));
}
