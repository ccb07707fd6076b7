//! The remote backend against servers whose answers are prepared. Streams of vLLM are written after its protocol's classes
//! (`vllm/entrypoints/openai/protocol.py`); no vLLM ran here.

mod server;

use std::ops::ControlFlow;
use std::time::Duration;

use ruvllm_backend::{BackendErrorKind, CallPiece, CompletionEvent, CompletionRequest, Completions, Usage};
use ruvllm_remote::{RemoteBackend, RemoteOptions};
use serde_json::{Value, json};
use server::{Answer, Server};

const MODELS: &str = r#"{"object":"list","data":[{"id":"Qwen/Qwen3-0.6B","object":"model","owned_by":"vllm"}]}"#;

fn options(server: &Server) -> RemoteOptions {
    RemoteOptions { read_timeout: Duration::from_secs(5), ..RemoteOptions::new(server.url()) }
}

fn request() -> CompletionRequest {
    CompletionRequest { messages: vec![json!({ "role": "user", "content": "Hi" })], ..Default::default() }
}

/// The reason why an answer ended and its tokens, or the line of an error.
type End = Result<(String, Option<Usage>), String>;

/// Returns everything that an answer told.
fn told(backend: &RemoteBackend, request: &CompletionRequest) -> (Vec<CompletionEvent>, End) {
    let mut events = Vec::new();
    let end = backend.generate(request, &mut |event| {
        events.push(event);
        ControlFlow::Continue(())
    });
    let end = end.map(|end| (end.finish_reason.unwrap_or_default(), end.usage)).map_err(|error| error.to_string());
    (events, end)
}

/// A stream in vLLM's form with a thought, text, log-probabilities and usage.
#[test]
fn an_answer_in_the_form_of_vllm_is_read() {
    let stream = include_str!("streams/vllm-thought.sse");
    let server = Server::start([Answer::json(MODELS), Answer::stream(stream)]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    assert_eq!(backend.info().0, "Qwen/Qwen3-0.6B");
    let wanted = CompletionRequest { top_logprobs: Some(1), max_tokens: Some(9), ..request() };
    let (events, end) = told(&backend, &wanted);
    let text = |event: &CompletionEvent| match event {
        CompletionEvent::Text(text) => Some(text.clone()),
        _ => None,
    };
    let thought = |event: &CompletionEvent| match event {
        CompletionEvent::Thought(text) => Some(text.clone()),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(thought).collect::<String>(), "Okay, hi.");
    assert_eq!(events.iter().filter_map(text).collect::<String>(), "Hello there");
    let logprobs = events.iter().filter_map(|event| match event {
        CompletionEvent::Logprobs(each) => Some(each.len()),
        _ => None,
    });
    assert_eq!(logprobs.sum::<usize>(), 2);
    let usage = Usage { prompt_tokens: 9, cached_tokens: 0, completion_tokens: 9 };
    assert_eq!(end, Ok(("stop".to_owned(), Some(usage))));
    let sent: Value = serde_json::from_str(&server.requests()[1].body).expect("JSON");
    assert_eq!((&sent["stream"], &sent["max_tokens"], &sent["top_logprobs"]), (&json!(true), &json!(9), &json!(1)));
}

/// A call of a function in pieces, in the form of vLLM's `hermes` parser.
#[test]
fn a_call_in_the_form_of_vllm_is_read() {
    let server = Server::start([Answer::json(MODELS), Answer::stream(include_str!("streams/vllm-call.sse"))]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    let (events, end) = told(&backend, &request());
    let pieces: Vec<&CallPiece> = events
        .iter()
        .filter_map(|event| match event {
            CompletionEvent::Call(piece) => Some(piece),
            _ => None,
        })
        .collect();
    assert_eq!(pieces[0].name.as_deref(), Some("get_weather"));
    assert!(pieces[0].id.as_deref().is_some_and(|id| id.starts_with("chatcmpl-tool-")));
    let arguments: String = pieces.iter().map(|piece| piece.arguments.as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).expect("JSON"), json!({ "city": "Lima" }));
    assert_eq!(end.map(|(reason, _)| reason), Ok("tool_calls".to_owned()));
}

#[test]
fn a_server_without_room_is_asked_again_and_a_refusal_is_not() {
    let full = Answer::status(503, r#"{"error":{"message":"the queue is full"}}"#).header("retry-after", "0");
    let done = Answer::stream(
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    let server = Server::start([Answer::json(MODELS), full.clone(), full.clone(), done]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    let (events, end) = told(&backend, &request());
    assert_eq!((events, end.is_ok()), (vec![CompletionEvent::Text("a".to_owned())], true));
    assert_eq!(server.requests().len(), 4);

    let long = r#"{"error":{"message":"9000 tokens do not fit","code":"context_length_exceeded"}}"#;
    for (status, body, kind, line) in [
        (400, long, BackendErrorKind::ContextLength, "answered 400 Bad Request: 9000 tokens do not fit"),
        (401, "{}", BackendErrorKind::Key, "answered 401 Unauthorized: it asks for a key"),
        (422, r#"{"error":{"message":"no such role\nsecond line"}}"#, BackendErrorKind::Prompt, "no such role"),
        (500, "oops", BackendErrorKind::Remote, "answered 500 Internal Server Error: oops"),
    ] {
        let server = Server::start([Answer::json(MODELS), Answer::status(status, body)]);
        let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
        let error = backend.generate(&request(), &mut |_| ControlFlow::Continue(())).expect_err("it is refused");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(line) && !error.to_string().contains("second"), "{error}");
        assert_eq!(server.requests().len(), 2, "{status} is not asked again");
    }
    // When to come again is told with the refusal.
    let busy = Answer::status(429, "{}").header("retry-after", "7");
    let server = Server::start([Answer::json(MODELS), busy]);
    let backend = RemoteBackend::connect(RemoteOptions { n_retries: 0, ..options(&server) }).expect("it has a model");
    let error = backend.generate(&request(), &mut |_| ControlFlow::Continue(())).expect_err("it has no room");
    assert_eq!((error.kind(), error.retry_after_s()), (BackendErrorKind::Busy, Some(7)));
    // As often as the options say, and no more.
    let server = Server::start(std::iter::once(Answer::json(MODELS)).chain(std::iter::repeat_n(full, 9)));
    let backend = RemoteBackend::connect(RemoteOptions { n_retries: 2, ..options(&server) }).expect("it has a model");
    let (_, end) = told(&backend, &request());
    assert!(end.expect_err("it has no room").contains("the queue is full"));
    assert_eq!(server.requests().len(), 4);
}

#[test]
fn a_stream_that_breaks_off_is_an_error_and_is_not_asked_again() {
    let piece = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    for (rest, line) in [
        ("", "ended before the answer did"),
        ("data: {\"error\":{\"message\":\"out of memory\"}}\n\n", "broke off: out of memory"),
        ("data: {oops\n\n", "is no JSON"),
    ] {
        let server = Server::start([Answer::json(MODELS), Answer::stream(&format!("{piece}{rest}"))]);
        let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
        let (events, end) = told(&backend, &request());
        assert_eq!(events, [CompletionEvent::Text("a".to_owned())]);
        let error = end.expect_err("it broke off");
        assert!(error.contains(line), "{error}");
        assert_eq!(server.requests().len(), 2);
    }
}

/// Whoever stops listening closes the connection: the server's next write fails.
#[test]
fn a_caller_that_stops_ends_the_request_on_the_other_side() {
    let server = Server::start([
        Answer::json(MODELS),
        Answer::endless("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
    ]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    let mut n = 0;
    let end = backend.generate(&request(), &mut |_| {
        n += 1;
        if n < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let end = end.expect("giving up is no error");
    assert_eq!((n, end.finish_reason), (3, None));
    server.wait_until_closed();
}

/// A request that is given up while the server says nothing ends there too: before its answer begins, and within it.
#[test]
fn an_interrupt_ends_a_request_while_nothing_comes() {
    let begun = Answer::silent("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n");
    for (answer, expected) in [(Answer::mute(), 0), (begun, 1)] {
        let server = Server::start([Answer::json(MODELS), answer]);
        let patient = RemoteOptions { read_timeout: Duration::from_secs(600), ..options(&server) };
        let backend = RemoteBackend::connect(patient).expect("it has a model");
        let request = request();
        let interrupt = request.interrupt.clone();
        let setter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            interrupt.set();
        });
        let (events, end) = told(&backend, &request);
        assert_eq!((events.len(), end), (expected, Ok((String::new(), None))));
        server.wait_until_closed();
        setter.join().expect("no panic");
    }
}

#[test]
fn a_server_that_is_too_slow_is_told_apart_from_one_that_is_not_there() {
    let server = Server::start([Answer::json(MODELS), Answer::mute()]);
    let hasty = RemoteOptions { read_timeout: Duration::from_millis(100), ..options(&server) };
    let backend = RemoteBackend::connect(hasty).expect("it has a model");
    let error = backend.generate(&request(), &mut |_| ControlFlow::Continue(())).expect_err("it is late");
    assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
}

#[test]
fn a_text_is_continued_as_it_is() {
    let stream = "data: {\"choices\":[{\"text\":\" b\",\"logprobs\":{\"tokens\":[\" b\"],\"token_logprobs\":[-0.5],\
        \"top_logprobs\":[{\" c\":-1.5}]},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
    let server = Server::start([Answer::json(MODELS), Answer::stream(stream)]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    let wanted = CompletionRequest { prompt: Some("a".to_owned()), top_logprobs: Some(1), ..Default::default() };
    let (events, end) = told(&backend, &wanted);
    let logprobs = json!({ "token": " b", "logprob": -0.5, "top_logprobs": [{ "token": " c", "logprob": -1.5 }] });
    assert_eq!(events, [CompletionEvent::Text(" b".to_owned()), CompletionEvent::Logprobs(vec![logprobs])]);
    assert_eq!(end, Ok(("length".to_owned(), None)));
    assert_eq!(server.requests()[1].path, "/v1/completions");
}

/// A server's words about a key may hold parts of it.
#[test]
fn what_is_said_of_a_key_names_where_it_comes_from_and_not_the_key() {
    let body = r#"{"error":{"message":"Incorrect API key provided: secret-key"}}"#;
    let server = Server::start([Answer::status(401, body), Answer::json(MODELS), Answer::status(400, body)]);
    let (key, key_name) = (Some("secret-key".to_owned()), Some("RUVLLM_REMOTE_KEY".to_owned()));
    let options = RemoteOptions { key, key_name, ..options(&server) };
    let error = RemoteBackend::connect(options.clone()).expect_err("it does not take it");
    assert!(error.to_string().ends_with("it does not take the key of RUVLLM_REMOTE_KEY; give another one"), "{error}");
    let backend = RemoteBackend::connect(options).expect("it has a model");
    let (_, end) = told(&backend, &request());
    let line = end.expect_err("it is refused");
    assert!(line.ends_with("Incorrect API key provided: (the key)"), "{line}");
}

#[test]
fn keys_names_and_addresses_are_checked() {
    let server = Server::start([Answer::json(MODELS), Answer::json(MODELS)]);
    let key = Some("secret".to_owned());
    RemoteBackend::connect(RemoteOptions { key: key.clone(), ..options(&server) }).expect("it has a model");
    assert_eq!(server.requests()[0].authorization.as_deref(), Some("Bearer secret"));
    let other = RemoteOptions { model: Some("llama".to_owned()), ..options(&server) };
    let line = RemoteBackend::connect(other).expect_err("it has no such model").to_string();
    assert!(line.ends_with("does not serve 'llama'; it has Qwen/Qwen3-0.6B"), "{line}");
    assert!(!format!("{:?}", RemoteOptions { key, ..RemoteOptions::new("http://a") }).contains("secret"));
    let line = RemoteBackend::connect(RemoteOptions::new("localhost:8080")).expect_err("no address").to_string();
    assert_eq!(line, "'localhost:8080' is no address of a server; write http://HOST:PORT/v1");
    let line = RemoteBackend::connect(RemoteOptions::new("http://ann:secret@host/v1")).expect_err("a user").to_string();
    assert!(line.starts_with("the address of a server has no user") && !line.contains("secret"), "{line}");
    let nobody = RemoteOptions { n_retries: 0, ..RemoteOptions::new("http://127.0.0.1:9/v1") };
    let error = RemoteBackend::connect(nobody).expect_err("nobody listens");
    assert_eq!(error.kind(), BackendErrorKind::Remote);
    assert!(error.to_string().starts_with("http://127.0.0.1:9/v1 cannot be reached"), "{error}");
}

#[test]
fn embeddings_are_vectors_in_the_order_of_their_texts() {
    let vectors = r#"{"data":[{"index":0,"embedding":[1.0,0.5]},{"index":1,"embedding":[0.0,-1.0]}]}"#;
    let server = Server::start([Answer::json(MODELS), Answer::json(vectors), Answer::json(vectors)]);
    let backend = RemoteBackend::connect(options(&server)).expect("it has a model");
    let texts = ["a".to_owned(), "b".to_owned()];
    assert_eq!(backend.embed(&texts).expect("two vectors"), [[1.0, 0.5], [0.0, -1.0]]);
    let line = backend.embed(&texts[..1]).expect_err("two vectors for one text").to_string();
    assert!(line.ends_with("answered without a vector for each text"), "{line}");
}
