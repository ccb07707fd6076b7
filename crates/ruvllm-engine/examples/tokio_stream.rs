//! Answers as streams of an async runtime: the engine has a thread of its own, and a channel of tokio fits its sink.
//!
//! `cargo run --release -p ruvllm-engine --example tokio_stream -- MODEL.gguf`; without an argument a tiny model of the test data.

use std::error::Error;

use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams, Service, ServiceEvent, ServiceOptions};
use tokio::sync::mpsc;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let tiny = || ruvllm_testkit::Golden::load("llama-a").model("f32");
    let path = std::env::args().nth(1).map_or_else(tiny, Into::into);
    let engine = Engine::load(&path, &LoadOptions { n_seq_max: 2, ..Default::default() }, &mut |_| {})?;
    let (service, thread) = Service::start(engine, ServiceOptions::default())?;
    let ask = |prompt: &str| {
        let prompt = service.text().encode_prompt(prompt, true)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let request =
            GenerateRequest { prompt, max_tokens: Some(16), sampling: SamplingParams::greedy(), ..Default::default() };
        // A reader that is gone ends its request.
        let ticket = service.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
        Ok::<_, Box<dyn Error>>((ticket, receiver))
    };
    // Two at once: they are computed in common steps.
    let (first, second) = (ask("Name three rivers.")?, ask("Once upon a time")?);
    for (_ticket, mut events) in [first, second] {
        while let Some(event) = events.recv().await {
            match event {
                ServiceEvent::Token(token) => print!("{}", token.text),
                ServiceEvent::Done(result) => println!("\n[{}]", result?.finish_reason.as_str()),
            }
        }
    }
    service.drain(std::time::Duration::from_secs(1));
    thread.join()?;
    Ok(())
}
