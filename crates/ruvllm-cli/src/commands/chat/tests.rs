//! Conversations in which a model calls tools: what is run, what is told to it, and what is kept.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use clap::Parser;
use ruvllm_api::reading::ToolCall;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::config::Invocation;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::settings::ProcessSettings;
use ruvllm_engine::SamplingParams;
use ruvllm_engine::tools::ToolChoice;
use serde_json::{Value, json};

use super::local::Begun;
use super::session::{Answers, Said, Session, Settings, Talk};
use super::toolbox::McpArgs;

/// A question to the model: the conversation, and the tools that were offered.
#[derive(Clone, Debug)]
struct Asked {
    messages: Vec<Value>,
    offered: Option<(usize, ToolChoice)>,
}

/// A model that says what it is told to, in order, and then calls `echo` whenever that is offered.
struct Scripted {
    answers: VecDeque<Said>,
    asked: Rc<RefCell<Vec<Asked>>>,
}

fn said(text: &str, calls: &[(&str, Value)]) -> Said {
    let call =
        |(name, arguments): &(&str, Value)| ToolCall { name: (*name).to_owned(), arguments: arguments.to_string() };
    let calls = calls.iter().map(call).collect();
    Said { text: text.to_owned(), calls, is_whole: true, note: None, json: json!({}) }
}

fn echo(text: &str) -> (&'static str, Value) {
    ("t__echo", json!({ "text": text }))
}

impl Answers for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn answer(&mut self, talk: &Talk<'_>, _: bool, _: &mut dyn FnMut(&str) -> Result<()>) -> Result<Said> {
        let offered = talk.offer.map(|offer| (offer.tools.len(), offer.choice.clone()));
        self.asked.borrow_mut().push(Asked { messages: talk.all(), offered: offered.clone() });
        Ok(match (self.answers.pop_front(), offered) {
            (Some(said), _) => said,
            (None, Some(_)) => said("", &[echo("again")]),
            (None, None) => said("done", &[]),
        })
    }

    fn judge(&mut self, _: f32) -> Result<()> {
        Err(Error::usage("it learns nothing"))
    }

    fn correct(&mut self, _: &str) -> Result<()> {
        Err(Error::usage("it learns nothing"))
    }

    fn forget(&mut self) {}

    fn stats(&self) -> String {
        String::new()
    }
}

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    mcp: McpArgs,
}

/// Begins a conversation with a model that says these, and the good server under the name `t`.
fn begin(options: &[&str], answers: impl IntoIterator<Item = Said>) -> (Session, Rc<RefCell<Vec<Asked>>>) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-mcp/tests/server.py");
    let config = json!({ "mcpServers": { "t": { "command": "python3", "args": [script, "good"] } } });
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("mcp.json");
    std::fs::write(&file, config.to_string()).expect("it is writable");
    let file = file.to_string_lossy().into_owned();
    let args = Options::parse_from(["chat", "--mcp", &file].iter().chain(options)).mcp;
    let invocation = Invocation::new(clap::Command::new("ruvllm"), []);
    let app = App::new(ProcessSettings::read(None).expect("a sound environment"), invocation, None);
    let plan = args.plan(false).expect("a sound file").expect("there is one");
    let toolbox = plan.start(&app, Some(4096)).expect("the server starts");
    let asked = Rc::new(RefCell::new(Vec::new()));
    let model = Scripted { answers: answers.into_iter().collect(), asked: Rc::clone(&asked) };
    let settings = Settings { sampling: SamplingParams::default(), max_tokens: None, json: false };
    let mut session = Session::new(Box::new(model), app.ui, settings, Begun::default());
    session.set_toolbox(Some(toolbox));
    (session, asked)
}

fn roles(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["role"].as_str()).collect()
}

/// Returns the results that the model was told of at last.
fn results(asked: &Rc<RefCell<Vec<Asked>>>) -> Vec<String> {
    let messages = asked.borrow().last().expect("it was asked").messages.clone();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    results.filter_map(|message| message["content"].as_str().map(str::to_owned)).collect()
}

#[test]
fn calls_are_run_and_told_to_the_model() {
    let calls = [echo("one"), echo("two"), ("t__sing", json!({})), ("t__fail", json!({})), ("t__echo", json!([1]))];
    let (mut session, asked) = begin(&["--mcp-allow", "t__*"], [said("wait", &calls), said("it is one and two", &[])]);
    session.say("say one and two".to_owned()).expect("an answer");
    let told = results(&asked);
    assert_eq!(told[..2], ["one", "two"]);
    assert_eq!(told[2], "error: there is no tool 't__sing'");
    assert!(told[3].starts_with("error: no such file"), "{}", told[3]);
    assert_eq!(told[4], "error: the arguments are no JSON object");
    let messages = asked.borrow()[1].messages.clone();
    assert_eq!(roles(&messages), ["user", "assistant", "tool", "tool", "tool", "tool", "tool"]);
    assert_eq!(messages[1]["content"], "wait");
    let call = &messages[1]["tool_calls"][1];
    assert_eq!(call["function"], json!({ "name": "t__echo", "arguments": { "text": "two" } }));
    assert_eq!(messages[3]["tool_call_id"], call["id"]);
    // What follows has it all before it.
    session.say("and now?".to_owned()).expect("an answer");
    let messages = asked.borrow()[2].messages.clone();
    assert_eq!(roles(&messages)[7..], ["assistant", "user"]);
    assert_eq!(messages[7]["content"], "it is one and two");
}

#[test]
fn nothing_runs_that_was_not_allowed() {
    let calls = [echo("one"), ("t__place", json!({}))];
    let (mut session, asked) = begin(&["--mcp-allow", "t__ech*"], [said("", &calls), said("no", &[])]);
    session.say("where are you?".to_owned()).expect("an answer");
    assert_eq!(results(&asked), ["one", "error: this call is not allowed, and nobody can be asked"]);
    let list = session.tools();
    let line = |name: &str| list.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
    assert!(line("t__echo ").contains("allowed") && line("t__place ").contains("asks"), "{list}");
}

#[test]
fn rounds_have_an_end() {
    let (mut session, asked) = begin(&["--mcp-allow", "*", "--mcp-rounds", "2", "--mcp-choice", "t__echo"], []);
    session.say("go on for ever".to_owned()).expect("an answer");
    let offered: Vec<_> = asked.borrow().iter().map(|asked| asked.offered.clone().map(|(_, choice)| choice)).collect();
    assert_eq!(offered, [Some(ToolChoice::Named("t__echo".to_owned())), Some(ToolChoice::Auto), None]);
    assert_eq!(results(&asked), ["again", "again"]);
    // The next question has its rounds again.
    session.say("once more".to_owned()).expect("an answer");
    assert!(asked.borrow()[3].offered.is_some());
    // A model that calls what it was not offered is not asked again and again; nor are a hundred calls run.
    let many: Vec<_> = (0..100).map(|_| echo("many")).collect();
    let (mut session, asked) =
        begin(&["--mcp-allow", "*", "--mcp-rounds", "1"], [said("", &many), said("", &[echo("x")])]);
    session.say("go on for ever".to_owned()).expect("an answer");
    assert_eq!((asked.borrow().len(), results(&asked).len()), (2, 16));
    let (mut session, asked) = begin(&["--mcp-rounds", "0"], []);
    session.say("hello".to_owned()).expect("an answer");
    assert!(asked.borrow()[0].offered.is_none());
}

#[test]
fn calls_of_an_answer_that_was_cut_are_not_run() {
    let cut = Said { is_whole: false, ..said("I shall", &[echo("one")]) };
    let (mut session, asked) = begin(&["--mcp-allow", "*"], [cut, said("two", &[])]);
    session.say("one".to_owned()).expect("an answer");
    assert_eq!(asked.borrow().len(), 1);
    session.say("two".to_owned()).expect("an answer");
    assert_eq!(roles(&asked.borrow()[1].messages), ["user", "assistant", "user"]);
}

#[test]
fn an_answer_is_written_again_with_its_calls() {
    let answers = [said("", &[echo("one")]), said("first", &[]), said("second", &[])];
    let (mut session, asked) = begin(&["--mcp-allow", "*"], answers);
    session.say("one".to_owned()).expect("an answer");
    session.regenerate().expect("an answer");
    assert_eq!(roles(&asked.borrow()[2].messages), ["user"]);
}

#[test]
fn a_server_that_dies_is_a_result() {
    let answers = [said("", &[("t__die", json!({}))]), said("", &[echo("alive")]), said("well", &[])];
    let (mut session, asked) = begin(&["--mcp-allow", "*"], answers);
    session.say("end it".to_owned()).expect("an answer");
    let told = results(&asked);
    assert!(told[0].starts_with("error: the MCP server 't' ended (exit status: 7): the disk is full"), "{}", told[0]);
    assert_eq!(told[1], "alive");
}

#[test]
fn results_leave_room_in_the_context() {
    let answers = [said("", &[("t__huge", json!({}))]), said("much", &[])];
    let (mut session, asked) = begin(&["--mcp-allow", "*"], answers);
    session.say("give me all".to_owned()).expect("an answer");
    let told = results(&asked);
    assert!(told[0].len() < 2150 && told[0].ends_with("[the result has 10000000 bytes; these are the first 2048]"));
}
