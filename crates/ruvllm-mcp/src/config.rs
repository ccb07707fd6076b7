//! The file of servers, in the shape that Claude Desktop, Cursor and others use.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{McpError, McpErrorKind};
use crate::names;

/// The most bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most servers in it.
const N_SERVERS_MAX: usize = 32;
/// The most arguments, and the most variables, of a server.
const N_VALUES_MAX: usize = 256;
/// The most characters of a server's name.
const NAME_CHARS_MAX: usize = 64;

/// Servers that are to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpConfig {
    /// The servers, in the order of the file, without those that are disabled.
    pub servers: Vec<McpServerConfig>,
}

/// A server that is started as a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpServerConfig {
    /// Its name.
    pub name: String,
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment, beside those that every server gets.
    pub env: Vec<(String, String)>,
    /// Folder that it starts in; `None` is that of this process.
    pub cwd: Option<PathBuf>,
}

impl McpConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is none: the line names the place.
    pub fn read(path: &Path) -> Result<McpConfig, McpError> {
        let place = path.display().to_string();
        let cannot = |error: std::io::Error| refused(format!("cannot read {place}: {error}"));
        let n_bytes = std::fs::metadata(path).map_err(cannot)?.len();
        if n_bytes > FILE_BYTES_MAX {
            return Err(refused(format!(
                "{place} has {n_bytes} bytes; a file of MCP servers has at most {FILE_BYTES_MAX}"
            )));
        }
        McpConfig::parse(&std::fs::read_to_string(path).map_err(cannot)?, &place)
    }

    /// Reads the text of a file that is called `place`.
    ///
    /// # Errors
    /// It is no such file: the line names the place in it.
    pub fn parse(text: &str, place: &str) -> Result<McpConfig, McpError> {
        let file: Value =
            serde_json::from_str(text).map_err(|error| refused(format!("{place} is no JSON: {error}")))?;
        let Some(given) = file.get("mcpServers") else {
            let line = "write {\"mcpServers\": {\"NAME\": {\"command\": \"PROGRAM\", \"args\": []}}}";
            return Err(refused(format!("{place} has no 'mcpServers'; {line}")));
        };
        let given = object(given, &format!("{place}: mcpServers"))?;
        if given.len() > N_SERVERS_MAX {
            return Err(refused(format!("{place} has {} servers; {N_SERVERS_MAX} are allowed", given.len())));
        }
        let mut servers: Vec<McpServerConfig> = Vec::new();
        for (name, entry) in given {
            let Some(server) = server(name, entry, place)? else { continue };
            let prefix = names::prefix(name);
            if let Some(other) = servers.iter().find(|other| names::prefix(&other.name) == prefix) {
                let line = format!("the tools of '{}' and '{name}' would begin alike, with {prefix}__", other.name);
                return Err(refused(format!("{place}: {line}; rename one of the servers")));
            }
            servers.push(server);
        }
        match servers.is_empty() {
            true => Err(refused(format!("{place} names no server that is not disabled; add one to 'mcpServers'"))),
            false => Ok(McpConfig { servers }),
        }
    }
}

/// Reads a server; `None` if it is disabled.
fn server(name: &str, entry: &Value, place: &str) -> Result<Option<McpServerConfig>, McpError> {
    let at = format!("{place}: mcpServers.{name}");
    if names::prefix(name).is_empty() || name.chars().count() > NAME_CHARS_MAX {
        return Err(refused(format!("{at}: a name has letters or digits, and at most {NAME_CHARS_MAX} characters")));
    }
    let entry = object(entry, &at)?;
    if flag(entry, "disabled", &at)? == Some(true) || flag(entry, "enabled", &at)? == Some(false) {
        return Ok(None);
    }
    for (key, value) in entry {
        check_key(key, value, &at)?;
    }
    let Some(command) = entry.get("command") else {
        return Err(refused(format!("{at} has no 'command'; name the program that is the server")));
    };
    let command = text(command, &format!("{at}.command"))?;
    if command.trim().is_empty() {
        return Err(refused(format!("{at}.command is empty; name the program that is the server")));
    }
    let args = match entry.get("args") {
        None => Vec::new(),
        Some(Value::Array(args)) if args.len() <= N_VALUES_MAX => {
            let each = args.iter().enumerate();
            each.map(|(i, value)| text(value, &format!("{at}.args[{i}]"))).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(refused(format!("{at}.args is a list of at most {N_VALUES_MAX} texts"))),
    };
    let env = match entry.get("env") {
        None => Vec::new(),
        Some(given) => environment(object(given, &format!("{at}.env"))?, &at)?,
    };
    let cwd = entry.get("cwd").map(|value| text(value, &format!("{at}.cwd"))).transpose()?.map(PathBuf::from);
    Ok(Some(McpServerConfig { name: name.to_owned(), command, args, env, cwd }))
}

fn environment(given: &Map<String, Value>, at: &str) -> Result<Vec<(String, String)>, McpError> {
    if given.len() > N_VALUES_MAX {
        return Err(refused(format!("{at}.env has {} variables; {N_VALUES_MAX} are allowed", given.len())));
    }
    let variable = |(name, value): (&String, &Value)| {
        let at = format!("{at}.env.{name}");
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(refused(format!("{at} is no name of a variable")));
        }
        Ok((name.clone(), text(value, &at)?))
    };
    given.iter().map(variable).collect()
}

/// Refuses what other programs have in such files and this one does not do.
fn check_key(key: &str, value: &Value, at: &str) -> Result<(), McpError> {
    let advice = match key {
        "command" | "args" | "env" | "cwd" | "disabled" | "enabled" => return Ok(()),
        "type" | "transport" if value == "stdio" => return Ok(()),
        "url" | "serverUrl" | "httpUrl" | "headers" | "type" | "transport" => {
            "servers are started as programs here; for an address take a bridge, \
             {\"command\": \"npx\", \"args\": [\"-y\", \"mcp-remote\", \"URL\"]}"
        }
        "alwaysAllow" | "autoApprove" | "trust" => {
            "what may run without a question is said at the start, with --mcp-allow SERVER__TOOL; leave it out"
        }
        "timeout" => "some programs count it in seconds and others in milliseconds; leave it out",
        _ => "known are command, args, env, cwd, type and disabled; leave it out",
    };
    Err(refused(format!("{at}.{key} is not supported: {advice}")))
}

fn flag(entry: &Map<String, Value>, key: &str, at: &str) -> Result<Option<bool>, McpError> {
    match entry.get(key) {
        None => Ok(None),
        Some(Value::Bool(is_set)) => Ok(Some(*is_set)),
        Some(_) => Err(refused(format!("{at}.{key} is true or false"))),
    }
}

fn object<'v>(value: &'v Value, at: &str) -> Result<&'v Map<String, Value>, McpError> {
    value.as_object().ok_or_else(|| refused(format!("{at} is an object, {{…}}")))
}

fn text(value: &Value, at: &str) -> Result<String, McpError> {
    let Some(text) = value.as_str() else { return Err(refused(format!("{at} is a text, \"…\""))) };
    if text.contains('\0') {
        return Err(refused(format!("{at} holds a zero character")));
    }
    // Others put variables or answers of the person there; as they are they would mean something else.
    match text.contains("${") {
        true => Err(refused(format!("{at}: variables like ${{NAME}} are not filled in here; write the value itself"))),
        false => Ok(text.to_owned()),
    }
}

fn refused(line: String) -> McpError {
    McpError::new(McpErrorKind::Config, line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, piece: &str) {
        let line = McpConfig::parse(text, "mcp.json").expect_err(text).to_string();
        assert!(line.starts_with("mcp.json") && line.contains(piece) && !line.contains('\n'), "{text}: {line}");
    }

    fn of_server(fields: &str) -> String {
        format!("{{\"mcpServers\": {{\"fs\": {{{fields}}}}}}}")
    }

    #[test]
    fn the_file_of_others_is_read() {
        let text = r#"{"globalShortcut": "", "mcpServers": {
            "fs": {"command": "npx", "args": ["-y", "server", "/tmp"], "type": "stdio", "disabled": false},
            "off": {"command": "x", "disabled": true}, "off too": {"url": "http://a", "enabled": false},
            "time": {"command": "python3", "env": {"TZ": "UTC"}, "cwd": "/"}}}"#;
        let servers = McpConfig::parse(text, "mcp.json").expect("a sound file").servers;
        let names: Vec<_> = servers.iter().map(|server| &*server.name).collect();
        assert_eq!(names, ["fs", "time"]);
        assert_eq!((&*servers[0].command, &*servers[0].args[2]), ("npx", "/tmp"));
        assert_eq!(servers[1].env, [("TZ".to_owned(), "UTC".to_owned())]);
        assert_eq!(servers[1].cwd.as_deref(), Some(Path::new("/")));
    }

    #[test]
    fn faults_are_told_with_their_place() {
        check("{", "is no JSON: EOF");
        check("[]", "has no 'mcpServers'; write {");
        check("{\"servers\": {}}", "has no 'mcpServers'");
        check("{\"mcpServers\": []}", "mcpServers is an object");
        check("{\"mcpServers\": {}}", "names no server");
        check("{\"mcpServers\": {\"…\": {\"command\": \"x\"}}}", "a name has letters");
        check("{\"mcpServers\": {\"a b\": {\"command\": \"x\"}, \"a_b\": {\"command\": \"x\"}}}", "rename one");
        check(&of_server(""), "mcpServers.fs has no 'command'");
        check(&of_server(r#""command": 1"#), "mcpServers.fs.command is a text");
        check(&of_server(r#""command": " ""#), "mcpServers.fs.command is empty");
        check(&of_server(r#""command": "x", "args": "y""#), "mcpServers.fs.args is a list");
        check(&of_server(r#""command": "x", "args": ["y", 2]"#), "mcpServers.fs.args[1] is a text");
        check(&of_server(r#""command": "x", "env": {"A": null}"#), "mcpServers.fs.env.A is a text");
        check(&of_server(r#""command": "x", "env": {"A=B": ""}"#), "is no name of a variable");
        check(&of_server(r#""command": "x", "args": ["${HOME}/notes"]"#), "write the value itself");
        check(&of_server(r#""command": "x", "disabled": "no""#), "mcpServers.fs.disabled is true or false");
        check(&of_server(r#""command": "x", "alwaysAllow": []"#), "--mcp-allow");
        check(&of_server(r#""command": "x", "timeout": 60"#), "milliseconds");
        check(&of_server(r#""command": "x", "colour": 1"#), "mcpServers.fs.colour is not supported: known are");
        check(&of_server(r#""url": "http://127.0.0.1/mcp""#), "mcp-remote");
        check(&of_server(r#""command": "x", "type": "sse""#), "mcp-remote");
    }
}
