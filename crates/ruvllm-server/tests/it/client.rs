//! A server for one test, and a client that speaks just enough HTTP to see every byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use ruvllm_engine::{Engine, LoadOptions, SamplingParams};
use ruvllm_server::{ModelSource, ServerError, ServerOptions, run};
use ruvllm_testkit::Golden;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;

/// The template of ChatML, with a place for names.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Returns a tiny model (two layers of llama, random weights) with a chat template, and the folder it lies in.
pub fn tiny_chat() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    let file = ruvllm_gguf::GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    writer.metadata_mut().set("tokenizer.chat_template", TEMPLATE);
    writer.write_file(&path).expect("a temporary folder is writable");
    (folder, path)
}

/// What tests load: two threads, four requests at once.
pub fn load_options() -> LoadOptions {
    LoadOptions { n_threads: 2, n_ctx: Some(1024), n_seq_max: 4, ..LoadOptions::default() }
}

/// What tests serve: the likeliest token, on a free port.
pub fn options() -> ServerOptions {
    ServerOptions {
        address: ([127, 0, 0, 1], 0).into(),
        sampling: SamplingParams::greedy(),
        ..ServerOptions::default()
    }
}

/// A server that runs while this lives.
pub struct Bench {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<Vec<Engine>, ServerError>>>,
}

impl Bench {
    /// Serves a model as `tiny`.
    pub fn new(model: &Path, load: &LoadOptions, options: ServerOptions) -> Bench {
        Bench::named("tiny", model, load, options)
    }

    /// Serves a model by a name.
    pub fn named(name: &str, model: &Path, load: &LoadOptions, options: ServerOptions) -> Bench {
        let engine = Engine::load(model, load, &mut |_| {}).expect("it loads");
        Bench::of(vec![ModelSource::loaded(name, engine)], options)
    }

    /// Serves models.
    pub fn of(models: Vec<ModelSource>, options: ServerOptions) -> Bench {
        let (ready, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let learns = options.learning.is_some();
        let serve = move || {
            let stopped = async { drop(stopped.await) };
            run(models, options, &|address| ready.send(address).expect("the test waits"), stopped)
        };
        let thread = std::thread::spawn(serve);
        let address = address.recv_timeout(Duration::from_secs(30)).expect("it listens");
        let bench = Bench { address, stop: Some(stop), thread: Some(thread) };
        if learns {
            bench.wait_until_ready();
        }
        bench
    }

    /// Waits until the models are ready to learn; until then they read their files.
    fn wait_until_ready(&self) {
        for _ in 0..36_000 {
            if self.get("/ready").status == 200 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it is not ready");
    }

    /// Serves the tiny model that chats.
    pub fn tiny(options: ServerOptions) -> Bench {
        let (folder, path) = tiny_chat();
        let bench = Bench::new(&path, &load_options(), options);
        // The model is mapped into memory.
        drop(folder);
        bench
    }

    /// Asks the server to stop.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Stops the server, and returns the engine of the first model that is loaded.
    pub fn join(mut self) -> Engine {
        self.stop();
        let thread = self.thread.take().expect("it is joined once");
        thread.join().expect("no panic").expect("it stops cleanly").remove(0)
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(path, body.to_string(), &[])
    }

    /// Sends a body with more headers.
    pub fn send(&self, path: &str, body: impl AsRef<[u8]>, headers: &[(&str, &str)]) -> Reply {
        let body = body.as_ref();
        let head = head("POST", path, body.len(), headers);
        Reply::read(self.write([head.as_bytes(), body].concat()))
    }

    pub fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[])
    }

    /// Sends a request without a body.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        Reply::read(self.write(head(method, path, 0, headers)))
    }

    /// Sends a request and leaves the answer to be read.
    pub fn open(&self, path: &str, body: &Value) -> TcpStream {
        let body = body.to_string();
        self.write(format!("{}{body}", head("POST", path, body.len(), &[])))
    }

    /// Writes bytes as they are to a new connection.
    pub fn write(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream.write_all(bytes.as_ref()).expect("it reads");
        stream
    }

    /// Returns the sum of a metric over its labels, 0 where it is not there yet.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let of_name =
            text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        of_name.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Waits until no request runs or waits.
    pub fn wait_until_idle(&self) {
        for _ in 0..2000 {
            if self.metric("ruvllm_requests_running") + self.metric("ruvllm_requests_waiting") == 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it is still busy");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop();
        let result = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panic)) = result.filter(|_| !std::thread::panicking()) {
            std::panic::resume_unwind(panic);
        }
    }
}

fn head(method: &str, path: &str, n_bytes: usize, headers: &[(&str, &str)]) -> String {
    let mut lines = vec![
        format!("{method} {path} HTTP/1.1"),
        "host: localhost".to_owned(),
        "connection: close".to_owned(),
        format!("content-length: {n_bytes}"),
    ];
    if headers.iter().all(|(name, _)| *name != "content-type") {
        lines.push("content-type: application/json".to_owned());
    }
    lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
    format!("{}\r\n\r\n", lines.join("\r\n"))
}

/// Returns an object with the fields of another one as well.
pub fn with(mut object: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    object.as_object_mut().expect("an object").extend(more);
    object
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn read(stream: TcpStream) -> Reply {
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).expect("an answer");
            line.trim_end().to_owned()
        };
        let first = line();
        let status =
            first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{first:?}"));
        let mut headers = Vec::new();
        while let Some((name, value)) = line().split_once(':') {
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("the whole answer");
        let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let bytes = if is_chunked { unchunk(&rest) } else { rest };
        Reply { status, headers, body: String::from_utf8(bytes).expect("answers are UTF-8") }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns the answer, which must be one of success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// Returns the status and the message of a refusal in OpenAI's shape.
    #[track_caller]
    pub fn refusal(&self) -> String {
        let error = &self.json()["error"];
        assert!(self.status >= 400 && error["message"].is_string(), "{}", self.body);
        assert!(error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some());
        format!("{} {}", self.status, error["message"].as_str().unwrap_or_default())
    }

    /// Returns the data of a stream's events, named or not.
    pub fn data(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
        data.map(|data| serde_json::from_str(data).expect("events are JSON")).collect()
    }

    /// Returns the data of a stream's events, without the `[DONE]` that must be the last.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let mut data: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|data| serde_json::from_str(data).expect("events are JSON")).collect()
    }
}

/// Joins the chunks of a body (RFC 9112, 7.1).
fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let n = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).expect("a length"), 16).expect("a length");
        whole.extend_from_slice(&bytes[end + 2..end + 2 + n]);
        bytes = &bytes[(end + 2 + n + 2).min(bytes.len())..];
        if n == 0 {
            break;
        }
    }
    whole
}
