//! What learns while answers are written: nothing learned changes nothing, and what is learned does not depend on company.

use std::sync::Arc;

use ruvllm_engine::{
    AdapterSet, Engine, FactorFormat, GenerateRequest, GenerationSummary, HeadWeights, KvPolicy, LoadOptions, LogitRow,
    LogitRows, LogitsHook, LogitsProcessor, MicroLora, SamplingParams, SchedulerOptions, Segment, Speculation,
    StateRows, Timings,
};
use ruvllm_lora::micro::{Rule, UpdateOptions};
use ruvllm_testkit::{Golden, max_abs_diff};

/// Tokens between two updates.
const EVERY: usize = 8;

fn open(n_threads: usize) -> Engine {
    let golden = Golden::load("llama-a");
    let options = LoadOptions { n_threads, kv: KvPolicy::F16, n_seq_max: 6, ..LoadOptions::default() };
    Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads")
}

/// One that has learned what makes no sense.
fn some_micro(engine: &Engine) -> MicroLora {
    let n_embd = engine.info().n_embd;
    let mut micro = MicroLora::new(n_embd, 2, 1.0, 5).expect("a valid shape");
    let head = engine.head_weights().expect("it has a head");
    let (mut gradient, options) = (micro.gradient_buffer(), UpdateOptions::sgd(0.5));
    for i in 0..20u32 {
        let hidden: Vec<f32> = (0..n_embd).map(|k| ((k as u32 * 7 + i) % 5) as f32 - 2.0).collect();
        micro.gradient(
            StateRows { hidden: &hidden, stream: &[] },
            &[(i, 0.4), (2 * i, 0.2)],
            3 * i + 1,
            &head,
            &mut gradient,
        );
        assert!(micro.update(&mut gradient, &options));
    }
    micro
}

/// Returns the logits of all rows under a micro adapter, and the final hidden states.
fn states(engine: &mut Engine, tokens: &[u32], micro: Option<&Arc<MicroLora>>, chunk: usize) -> (Vec<f32>, Vec<f32>) {
    let seq = engine.new_sequence().expect("a free sequence");
    engine.set_micro(seq, micro.cloned()).expect("it fits");
    let (mut logits, mut hidden) = (Vec::new(), Vec::new());
    for tokens in tokens.chunks(chunk) {
        let states = engine.forward_states(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits");
        logits.extend_from_slice(states.logits);
        hidden.extend_from_slice(states.rows.hidden);
    }
    engine.free_sequence(seq);
    (logits, hidden)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_micro_adapter_changes_the_rows_of_its_sequence_alone() {
    let mut engine = open(2);
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 200 + 5).collect();
    let (micro, fresh) = (Arc::new(some_micro(&engine)), Arc::new(MicroLora::new(engine.info().n_embd, 2, 1.0, 5)));
    let fresh = Arc::new(fresh.as_ref().as_ref().expect("a valid shape").clone());
    let (plain, hidden) = states(&mut engine, &tokens, None, usize::MAX);
    assert!(bits(&states(&mut engine, &tokens, Some(&fresh), usize::MAX).0) == bits(&plain), "nothing was learned");
    let (changed, same) = states(&mut engine, &tokens, Some(&micro), usize::MAX);
    assert!(bits(&same) == bits(&hidden), "the states are those before the change");
    assert!(max_abs_diff(&changed, &plain) > 1e-3);
    assert!(bits(&states(&mut engine, &tokens, Some(&micro), 7).0) == bits(&changed), "chunks change bits");
    // Beside one that has none, and its fork.
    let seqs = [engine.new_sequence().expect("free"), engine.new_sequence().expect("free")];
    engine.set_micro(seqs[1], Some(Arc::clone(&micro))).expect("it fits");
    let segment = |seq| Segment { seq, tokens: &tokens[..], logits: LogitRows::All };
    let both = engine.forward(&[segment(seqs[0]), segment(seqs[1])]).expect("it fits").to_vec();
    assert!(bits(&both) == [bits(&plain), bits(&changed)].concat());
    let fork = engine.fork_sequence(seqs[1], 39).expect("it fits");
    let last = engine.forward(&[Segment { seq: fork, tokens: &tokens[39..], logits: LogitRows::Last }]);
    assert!(bits(last.expect("it fits")) == bits(&changed[39 * plain.len() / 40..]));
    // Of another width, it is refused.
    let wide = Arc::new(MicroLora::new(engine.info().n_embd + 1, 1, 1.0, 0).expect("a valid shape"));
    let line = engine.set_micro(seqs[0], Some(wide)).expect_err("another width").to_string();
    assert!(line.contains("MicroLoRA") && !line.contains('\n'), "{line}");
}

/// One inside the last block that has learned what makes no sense, of states that the model has.
fn some_inside(engine: &mut Engine, tokens: &[u32]) -> MicroLora {
    let (n_embd, block) = (engine.info().n_embd, engine.last_block().expect("a file"));
    let micro = MicroLora::new(n_embd, 2, 1.0, 5).and_then(|micro| micro.inside(block.expect("a gated block")));
    let (mut micro, head) = (micro.expect("a valid shape"), engine.head_weights().expect("it has a head"));
    let (hidden, stream) = rows(engine, tokens);
    let (all, options) = (StateRows { hidden: &hidden, stream: &stream }, UpdateOptions::sgd(0.5));
    let mut gradient = micro.gradient_buffer();
    for (i, state) in all.iter(n_embd).take(20).enumerate() {
        let i = i as u32;
        micro.gradient(state, &[(i, 0.4), (2 * i, 0.2)], 3 * i + 1, &head, &mut gradient);
        assert!(micro.update(&mut gradient, &options));
    }
    micro
}

/// Returns final hidden states, and what the last block made them of.
fn rows(engine: &mut Engine, tokens: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let seq = engine.new_sequence().expect("a free sequence");
    let states = engine.forward_states(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits");
    let rows = (states.rows.hidden.to_vec(), states.rows.stream.to_vec());
    engine.free_sequence(seq);
    rows
}

#[test]
fn inside_the_last_block_it_changes_the_rows_of_its_sequence_alone() {
    let mut engine = open(2);
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 200 + 5).collect();
    let block = engine.last_block().expect("a file").expect("a gated block");
    let fresh = MicroLora::new(engine.info().n_embd, 2, 1.0, 5).and_then(|micro| micro.inside(block));
    let (micro, fresh) = (Arc::new(some_inside(&mut engine, &tokens)), Arc::new(fresh.expect("a valid shape")));
    let (plain, plain_states) = states(&mut engine, &tokens, None, usize::MAX);
    assert!(bits(&states(&mut engine, &tokens, Some(&fresh), usize::MAX).0) == bits(&plain), "nothing was learned");
    let (changed, same) = states(&mut engine, &tokens, Some(&micro), usize::MAX);
    assert!(bits(&same) == bits(&plain_states), "the states are those before the change");
    assert!(max_abs_diff(&changed, &plain) > 1e-3);
    assert!(bits(&states(&mut engine, &tokens, Some(&micro), 7).0) == bits(&changed), "chunks change bits");
    // Beside one that has none, one that has the half of it, and in a segment of whose rows few want logits.
    let half = Arc::new(micro.weakened(0.5));
    let (halved, _) = states(&mut engine, &tokens, Some(&half), usize::MAX);
    let seqs = [(); 4].map(|()| engine.new_sequence().expect("free"));
    for (seq, micro) in seqs.iter().zip([None, Some(&micro), Some(&half), Some(&micro)]) {
        engine.set_micro(*seq, micro.cloned()).expect("it fits");
    }
    let wanted = [LogitRows::All, LogitRows::All, LogitRows::Tail(3), LogitRows::TailOfStates(2)];
    let segments: Vec<_> =
        seqs.iter().zip(wanted).map(|(&seq, logits)| Segment { seq, tokens: &tokens, logits }).collect();
    let all = engine.forward(&segments).expect("it fits").to_vec();
    let n_vocab = plain.len() / 40;
    let expected = [&plain, &changed, &halved[37 * n_vocab..], &changed[38 * n_vocab..]].map(bits).concat();
    assert!(bits(&all) == expected);
    seqs.into_iter().for_each(|seq| engine.free_sequence(seq));
    // Of all that have one, where some rows are left out of the last layer.
    let seqs = [(); 2].map(|()| engine.new_sequence().expect("free"));
    for (seq, micro) in seqs.iter().zip([&half, &micro]) {
        engine.set_micro(*seq, Some(Arc::clone(micro))).expect("it fits");
    }
    let segments = seqs.map(|seq| Segment { seq, tokens: &tokens, logits: LogitRows::Tail(3) });
    let both = engine.forward_states(&segments).expect("it fits");
    let n_embd = plain_states.len() / 40;
    assert!(bits(both.logits) == [&halved, &changed].map(|rows| bits(&rows[37 * n_vocab..])).concat());
    assert!(bits(both.rows.hidden) == bits(&plain_states[37 * n_embd..]).repeat(2));
    // By its states alone it is the same.
    let (hidden, stream) = rows(&mut engine, &tokens);
    let (mut after, mut logits) = (vec![0.0; hidden.len()], Vec::new());
    micro.forward(StateRows { hidden: &hidden, stream: &stream }, &mut after);
    engine.logits_of(&after, &mut logits).expect("the files are there");
    assert!(bits(&logits) == bits(&changed));
}

#[test]
fn gradients_inside_the_last_block_are_those_of_the_loss() {
    for name in ["llama-a", "gemma3-a"] {
        let golden = Golden::load(name);
        let options = LoadOptions { n_threads: 1, kv: KvPolicy::F16, ..LoadOptions::default() };
        let mut engine = Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads");
        let tokens: Vec<u32> = (0..24).map(|i| i * 7 % 200 + 5).collect();
        let (n_embd, head) = (engine.info().n_embd, engine.head_weights().expect("it has a head"));
        let micro = some_inside(&mut engine, &tokens);
        let (hidden, stream) = rows(&mut engine, &tokens);
        let all = StateRows { hidden: &hidden, stream: &stream };
        let (state, target) = (all.row(20, n_embd), 17u32);
        let mut p = |micro: &MicroLora| -> Vec<f64> {
            let (mut changed, mut logits) = (vec![0.0; n_embd], Vec::new());
            micro.forward(state, &mut changed);
            engine.logits_of(&changed, &mut logits).expect("the files are there");
            let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
            logits.iter().map(|&x| f64::from(x).exp() / sum).collect()
        };
        let most_likely: Vec<(u32, f32)> = p(&micro).iter().enumerate().map(|(i, &p)| (i as u32, p as f32)).collect();
        let mut gradient = micro.gradient_buffer();
        micro.gradient(state, &most_likely, target, &head, &mut gradient);
        // Along itself, part by part: `downᵀ` has 8 bits a value.
        for (part, values) in gradient.values().enumerate() {
            let length = values.iter().map(|x| x * x).sum::<f32>().sqrt();
            let mut at = |step: f32| {
                let mut moved = micro.clone();
                let to = moved.values_mut().nth(part).expect("a part");
                to.iter_mut().zip(values).for_each(|(x, d)| *x += step * d / length);
                -p(&moved)[target as usize].ln()
            };
            let h = 0.02;
            let slope = (at(h) - at(-h)) / (2.0 * f64::from(h));
            let error = (slope - f64::from(length)).abs() / slope;
            assert!(length > 1e-4 && error < 0.03, "{name}, part {part}: {length} for {slope}");
        }
    }
}

#[test]
fn exported_it_is_an_ordinary_adapter() {
    let mut engine = open(1);
    let tokens: Vec<u32> = (0..30).map(|i| i * 11 % 200 + 5).collect();
    let micro = Arc::new(some_micro(&engine));
    let (changed, _) = states(&mut engine, &tokens, Some(&micro), usize::MAX);
    let head = engine.head_weights().expect("it has a head");
    let adapter = micro.export("learned", head.n_rows(), &head).expect("finite values");
    let bound =
        engine.adapter_loader().expect("it applies adapters").bind(&adapter, FactorFormat::F32).expect("it fits");
    let seq = engine.new_adapted_sequence(&AdapterSet::new(vec![(bound, 1.0)]).expect("a set")).expect("free");
    let segment = Segment { seq, tokens: &tokens, logits: LogitRows::All };
    let adapted = engine.forward(&[segment]).expect("it fits");
    let diff = max_abs_diff(&changed, adapted);
    assert!(diff <= 2e-4, "{diff:e}");
}

/// Learns in every request from nothing: by each token that the model wrote, the more of it.
struct OnlineLearner {
    micro: MicroLora,
    head: HeadWeights,
}

impl std::fmt::Debug for OnlineLearner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnlineLearner")
    }
}

struct OnlineLesson {
    logits_processor: Arc<OnlineLearner>,
    micro: MicroLora,
    shown: Arc<MicroLora>,
    /// The last hidden state, and the most likely tokens with their shares.
    hidden: Vec<f32>,
    most_likely: Vec<(u32, f32)>,
    n: usize,
}

#[derive(Debug)]
struct Shared(Arc<OnlineLearner>);

impl LogitsProcessor for Shared {
    fn begin(&self, _: &[u32], _: bool) -> Box<dyn LogitsHook> {
        let (logits_processor, micro) = (Arc::clone(&self.0), self.0.micro.clone());
        let shown = Arc::new(micro.clone());
        Box::new(OnlineLesson { logits_processor, micro, shown, hidden: Vec::new(), most_likely: Vec::new(), n: 0 })
    }
}

impl LogitsHook for OnlineLesson {
    fn micro(&self) -> Option<&Arc<MicroLora>> {
        Some(&self.shown)
    }

    fn n_steady(&self) -> usize {
        EVERY - self.n % EVERY
    }

    fn adjust(&mut self, state: StateRows<'_>, logits: LogitRow<'_>) {
        let (hidden, logits) = (state.hidden, logits.exact);
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        let weights: Vec<(u32, f32)> = order[..8].iter().map(|&id| (id, logits[id as usize].exp())).collect();
        let sum: f32 = weights.iter().map(|(_, w)| w).sum();
        self.hidden = hidden.to_vec();
        self.most_likely = weights.into_iter().map(|(id, w)| (id, w / sum)).collect();
        // And by what is there already: a nudge that depends on the state.
        logits[order[1] as usize] += hidden[0].abs().min(0.1);
    }

    fn accept(&mut self, token: u32) {
        let mut gradient = self.micro.gradient_buffer();
        let state = StateRows { hidden: &self.hidden, stream: &[] };
        self.micro.gradient(state, &self.most_likely, token, &self.logits_processor.head, &mut gradient);
        let options = UpdateOptions { rule: Rule::RmsProp { decay: 0.95 }, ..UpdateOptions::sgd(0.05) };
        self.micro.update(&mut gradient, &options);
        self.n += 1;
        if self.n.is_multiple_of(EVERY) {
            self.shown = Arc::new(self.micro.clone());
        }
    }
}

fn facts(summary: &GenerationSummary) -> GenerationSummary {
    GenerationSummary { timings: Timings::default(), ..summary.clone() }
}

#[test]
fn what_learns_writes_the_same_alone_in_company_and_with_guesses() {
    let mut engine = open(2);
    let micro = MicroLora::new(engine.info().n_embd, 2, 1.0, 3).expect("a valid shape");
    let logits_processor = Arc::new(OnlineLearner { micro, head: engine.head_weights().expect("it has a head") });
    let request = |i: usize| {
        let prompt = (0..20 + 3 * i as u32).map(|k| (k * k * 31) % 11 + 7).collect();
        let sampling = match i % 2 {
            0 => SamplingParams::greedy(),
            _ => SamplingParams { seed: Some(i as u64), ..SamplingParams::default() },
        };
        let logits_processor =
            (!i.is_multiple_of(3)).then(|| Arc::new(Shared(Arc::clone(&logits_processor))) as Arc<dyn LogitsProcessor>);
        GenerateRequest {
            prompt,
            logits_processor,
            sampling,
            max_tokens: Some(40),
            ignore_eos: true,
            ..Default::default()
        }
    };
    let requests: Vec<GenerateRequest> = (0..18).map(request).collect();
    let (mut alone, mut n_changed, mut n_accepted) = (Vec::new(), 0, 0);
    for request in &requests {
        let mut answer = |speculation, is_learning: bool| {
            engine.clear_cache();
            let logits_processor = request.logits_processor.clone().filter(|_| is_learning);
            let request = GenerateRequest { speculation, logits_processor, ..request.clone() };
            let run = engine.generate(&request).expect("a valid request");
            run.for_each_token(|_| {}).expect("it runs")
        };
        let (off, on) = (answer(Speculation::Off, true), answer(Speculation::Ngram, true));
        n_changed += usize::from(answer(Speculation::Off, false).tokens != off.tokens);
        n_accepted += on.timings.accepted_tokens;
        assert_eq!(facts(&on), facts(&off));
        alone.push(facts(&off));
    }
    assert!(n_changed >= 4 && n_accepted > 0, "{n_changed} answers changed, {n_accepted} guesses right");
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    for request in &requests {
        scheduler.submit(request.clone()).expect("a valid request");
    }
    for ((_, answer), alone) in scheduler.run().iter().zip(&alone) {
        assert_eq!(&facts(answer.as_ref().expect("it ran")), alone);
    }
}
