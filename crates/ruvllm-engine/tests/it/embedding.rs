//! Embeddings of texts, by encoders and by models that write.

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, ErrorKind, KvPolicy, LoadOptions, LogitRows, Pooling, Readout, Segment};
use ruvllm_gguf::{GgmlType, GgufFile, GgufWriter};
use ruvllm_testkit::{Golden, cosine, real_model};

fn open(path: &std::path::Path) -> Engine {
    let options = LoadOptions { kv: KvPolicy::F32, n_threads: 2, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).expect("it loads")
}

fn encode(engine: &Engine, text: &str) -> Vec<u32> {
    engine.tokenizer().expect("it has one").encode(text, EncodeOptions::EMBEDDED).expect("text")
}

const TEXTS: [&str; 6] = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "Ein Mann isst café-Brot — naïve, 12.5% déjà vu!",
    "def area(width, height): return width * height",
    "Über 東京 the quick brown fox jumps over unbelievably antidisestablishmentarianism",
];

/// What the published weights of all-MiniLM-L6-v2 give in float64 by a forward pass in numpy, over ids of the crate
/// `tokenizers`: the first numbers of each embedding, and the cosines of all with the first two.
const FIRST: [[f32; 4]; 6] = [
    [0.033242, 0.004406, -0.006277, 0.048379],
    [0.052518, 0.055241, -0.011188, -0.005745],
    [-0.036309, -0.035653, -0.027223, 0.03832],
    [0.015286, 0.077961, 0.017149, 0.00661],
    [0.089758, 0.050897, -0.013814, 0.04107],
    [0.14501, 0.024556, 0.064291, -0.010326],
];
const COSINES: [[f64; 6]; 2] = [
    [1.0, 0.755337, -0.104958, 0.047066, 0.005809, -0.044276],
    [0.755337, 1.0, -0.061017, 0.157332, -0.002688, 0.003922],
];

#[test]
fn minilm_is_what_its_weights_say() {
    let mut engine = open(&real_model("minilm:l6"));
    assert!(engine.info().is_encoder && !engine.info().is_ranker);
    assert_eq!(
        encode(&engine, TEXTS[3]),
        [
            101, 16417, 10856, 26354, 2102, 7668, 1011, 22953, 2102, 1517, 15743, 1010, 2260, 1012, 1019, 1003, 2139,
            3900, 24728, 999, 102
        ]
    );
    // A word of more than 100 characters is unknown, as sentence-transformers has it.
    assert_eq!(encode(&engine, &"x".repeat(101)), [101, 100, 102]);
    assert!(encode(&engine, &"x".repeat(100)).len() > 3);
    let embeddings = TEXTS.map(|text| {
        let tokens = encode(&engine, text);
        engine.embed(&tokens).expect("it fits")
    });
    for (embedding, first) in embeddings.iter().zip(FIRST) {
        let worst = embedding.iter().zip(first).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-5, "{worst}: {:?} instead of {first:?}", &embedding[..4]);
    }
    for (a, expected) in embeddings.iter().zip(COSINES) {
        for (b, expected) in embeddings.iter().zip(expected) {
            assert!((cosine(a, b) - expected).abs() < 1e-5, "{} instead of {expected}", cosine(a, b));
        }
    }
}

#[test]
fn a_model_that_writes_has_embeddings_too() {
    let mut engine = open(&real_model("smollm2:135m"));
    let text = "The sea is deep and blue. ".repeat(120);
    let tokens = encode(&engine, &text);
    assert!(tokens.len() > 600, "it takes more than one pass");
    let read = |engine: &mut Engine, tokens: &[u32], pooling| {
        engine.read_out(tokens, Readout::Embedding(pooling)).expect("it fits")
    };
    let mean = read(&mut engine, &tokens, Some(Pooling::Mean));
    assert_eq!(read(&mut engine, &tokens, None), mean, "the mean where the file says nothing");
    let length: f32 = mean.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-4 && mean.len() == engine.info().n_embd);
    // Tokens see those before them only: the first stays, and one token's mean is itself.
    let first = read(&mut engine, &tokens, Some(Pooling::Cls));
    assert_eq!(first, read(&mut engine, &tokens[..1], Some(Pooling::Last)));
    assert_eq!(first, read(&mut engine, &tokens[..1], Some(Pooling::Mean)));
    // What is alike is near.
    let near = |engine: &mut Engine, a: &str, b: &str| {
        let [a, b] = [a, b].map(|text| encode(engine, text));
        cosine(&read(engine, &a, None), &read(engine, &b, None))
    };
    let alike = near(&mut engine, TEXTS[0], TEXTS[1]);
    let other = near(&mut engine, TEXTS[0], TEXTS[4]);
    assert!(alike > other + 0.05, "{alike} and {other}");
    // Nothing is left behind, and answers are what they were.
    assert_eq!(engine.kv_usage().in_use, 0);
    let error = engine.read_out(&[1, 2], Readout::Score { n_first: 1 }).expect_err("it has no head for that");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(engine.embed(&[]).expect_err("nothing").kind(), ErrorKind::Prompt);
}

#[test]
fn the_last_vector_is_what_the_head_reads() {
    // Without a scale or a cap the logits are the head's product with it: the most likely token is that of the largest.
    let golden = Golden::load("llama-a");
    let file = GgufFile::open(&golden.model("f32")).expect("a model");
    let name = if file.tensor("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
    let head: Vec<f32> = file
        .data(file.tensor(name).expect("a head"))
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
        .collect();
    let mut engine = open(&golden.model("f32"));
    let tokens = &golden.tokens[..20];
    let vector = engine.read_out(tokens, Readout::Embedding(Some(Pooling::Last))).expect("it fits");
    let seq = engine.new_sequence().expect("free");
    let logits = engine.forward(&[Segment { seq, tokens, logits: LogitRows::Last }]).expect("it fits").to_vec();
    let products: Vec<f32> =
        head.chunks_exact(vector.len()).map(|row| row.iter().zip(&vector).map(|(a, b)| a * b).sum()).collect();
    assert!(cosine(&products[..logits.len()], &logits) > 0.999_99);
}

/// Writes `bert-a` with the head of a cross-encoder.
fn ranker(dir: &std::path::Path) -> std::path::PathBuf {
    let file = GgufFile::open(&Golden::load("bert-a").model("f32")).expect("a model");
    let n = file.metadata().u32("bert.embedding_length").expect("a number").expect("there") as usize;
    let mut writer = GgufWriter::from_file(&file);
    writer.metadata_mut().set("bert.pooling_type", 4u32);
    let values = |n: usize, step: f32| -> Vec<u8> {
        (0..n).flat_map(|i| ((i as f32 * step).sin() * 0.3).to_le_bytes()).collect()
    };
    for (name, shape, step) in [
        ("cls.weight", vec![n, n], 0.7),
        ("cls.bias", vec![n], 1.3),
        ("cls.output.weight", vec![n, 1], 2.1),
        ("cls.output.bias", vec![1], 0.0),
    ] {
        let n_values = shape.iter().product();
        writer.add_tensor(name, GgmlType::F32, &shape, values(n_values, step)).expect("it fits");
    }
    let path = dir.join("ranker.gguf");
    writer.write_file(&path).expect("it is written");
    path
}

#[test]
fn a_cross_encoder_scores_pairs() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut engine = open(&ranker(dir.path()));
    assert!(engine.info().is_encoder && engine.info().is_ranker);
    let (tokens, n_first) = engine.text().expect("it has one").encode_pair("hello there", "world").expect("text");
    let [first, second] = ["hello there", "world"].map(|text| encode(&engine, text));
    assert_eq!((&tokens[..n_first], &tokens[n_first..]), (&first[..], &second[1..]));
    let score = engine.read_out(&tokens, Readout::Score { n_first }).expect("it scores");
    let again = engine.read_out(&tokens, Readout::Score { n_first }).expect("it scores");
    let as_one_text = engine.read_out(&tokens, Readout::Score { n_first: tokens.len() }).expect("it scores");
    assert_eq!((score.len(), &score), (1, &again));
    assert!(score[0].is_finite() && score != as_one_text, "the second text is another segment");
    // What was scored leaves no trace in an embedding.
    let embedding = engine.embed(&tokens).expect("it embeds");
    engine.read_out(&tokens, Readout::Score { n_first }).expect("it scores");
    assert_eq!(engine.embed(&tokens).expect("it embeds"), embedding);
}
