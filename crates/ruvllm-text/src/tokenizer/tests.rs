//! Tokenizers on small vocabularies: round trips, streaming, references, hostile metadata.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use ruvllm_gguf::Metadata;

use super::*;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSED: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const BOTH: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
const SHOWN: DecodeOptions = DecodeOptions { render_special: true };

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn metadata(model: &str, tokens: &[(String, i32)], scores: Option<Vec<f32>>) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", model);
    metadata.set("tokenizer.ggml.tokens", tokens.iter().map(|(text, _)| text.clone()).collect::<Vec<String>>());
    metadata.set("tokenizer.ggml.token_type", tokens.iter().map(|&(_, ty)| ty).collect::<Vec<i32>>());
    if let Some(scores) = scores {
        metadata.set("tokenizer.ggml.scores", scores);
    }
    metadata
}

/// All bytes, what the merges make of them, then `special`; ids in that order.
fn bpe_metadata(merges: &[&str], special: &[(&str, i32)]) -> Metadata {
    let mut tokens: Vec<(String, i32)> = (0..=255).map(|byte| (bpe::char_of(byte).to_string(), NORMAL)).collect();
    for merge in merges {
        let merged = merge.replacen(' ', "", 1);
        if tokens.iter().all(|(text, _)| *text != merged) {
            tokens.push((merged, NORMAL));
        }
    }
    tokens.extend(special.iter().map(|&(text, ty)| (text.to_owned(), ty)));
    let mut metadata = metadata("gpt2", &tokens, None);
    metadata.set("tokenizer.ggml.pre", "gpt-2");
    metadata.set("tokenizer.ggml.merges", merges.iter().map(|&merge| merge.to_owned()).collect::<Vec<String>>());
    metadata
}

/// `<unk> <s> </s>`, all bytes, then `pieces` with their scores (from id 259), then `special`.
fn spm_metadata(pieces: &[(&str, f32)], special: &[(&str, i32)]) -> Metadata {
    let mut tokens = vec![("<unk>".to_owned(), UNKNOWN), ("<s>".to_owned(), CONTROL), ("</s>".to_owned(), CONTROL)];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(pieces.iter().map(|(text, _)| ((*text).to_owned(), NORMAL)));
    let mut scores = vec![0.0; 259];
    scores.extend(pieces.iter().map(|&(_, score)| score));
    scores.resize(scores.len() + special.len(), 0.0);
    tokens.extend(special.iter().map(|&(text, ty)| (text.to_owned(), ty)));
    metadata("llama", &tokens, Some(scores))
}

const PIECES: &[(&str, f32)] = &[
    ("▁", -3.0),
    ("a", -4.0),
    ("b", -5.0),
    ("c", -6.0),
    ("ab", -1.0),
    ("bc", -0.5),
    ("abc", -2.0),
    ("▁a", -0.25),
    ("aa", -1.5),
    ("aaaa", -1.25),
    ("é", -7.0),
    ("\n", -8.0),
];

fn bpe() -> Tokenizer {
    let merges = ["a b", "b c", "ab c", "Ġ a", "a a", "aa aa", "Ġa b", "Ã ©"];
    Tokenizer::from_metadata(&bpe_metadata(&merges, &[("<|im_end|>", CONTROL), ("<tool>", USER_DEFINED)])).unwrap()
}

fn spm() -> Tokenizer {
    Tokenizer::from_metadata(&spm_metadata(PIECES, &[("<tool>", USER_DEFINED), ("<|end|>", CONTROL)])).unwrap()
}

fn texts<'t>(tokenizer: &'t Tokenizer, text: &str, options: EncodeOptions) -> Vec<&'t str> {
    let ids = tokenizer.encode(text, options).unwrap();
    ids.into_iter().map(|id| tokenizer.token_text(id).unwrap()).collect()
}

fn streamed(mut stream: DecodeStream<&Tokenizer>, ids: &[u32]) -> String {
    let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
    text.extend(stream.finish());
    text
}

#[test]
fn bpe_merges_by_rank() {
    let bpe = bpe();
    assert_eq!(texts(&bpe, "abc bc abab aaaaa é", PLAIN), ["abc", "Ġ", "bc", "Ġ", "ab", "ab", "Ġa", "aaaa", "Ġ", "Ã©"]);
    // `Ġ a` comes before `a a` in the list, so the space takes its letter first.
    assert_eq!(texts(&bpe, " aaa", PLAIN), ["Ġa", "aa"]);
    assert!(bpe.encode("", BOTH).unwrap().is_empty());
}

#[test]
fn spm_merges_by_score_and_falls_back_to_bytes() {
    let spm = spm();
    assert_eq!(texts(&spm, "abc", PLAIN), ["▁a", "bc"]);
    assert_eq!(texts(&spm, "é中", PLAIN), ["▁", "é", "<0xE4>", "<0xB8>", "<0xAD>"]);
    assert_eq!(texts(&spm, "a", BOTH), ["<s>", "▁a"]);
    assert_eq!(texts(&spm, "", BOTH), ["<s>"]);
    assert_eq!(texts(&spm, "a<tool>a", PLAIN), ["▁a", "<tool>", "▁a"]);
    assert_eq!(spm.decode(&spm.encode("a  b", PLAIN).unwrap(), SHOWN), "a  b");
    assert_eq!(streamed(spm.stream_continuing(), &spm.encode("a", PLAIN).unwrap()), " a");
}

#[test]
fn special_tokens_are_cut_out_first() {
    let bpe = bpe();
    assert_eq!(texts(&bpe, "a<tool>b<|im_end|>", PARSED), ["a", "<tool>", "b", "<|im_end|>"]);
    let plain = texts(&bpe, "a<tool><|im_end|>", PLAIN);
    assert_eq!(plain[..3], ["a", "<tool>", "<"]);
    let end = bpe.token_id("<|im_end|>").unwrap();
    assert_eq!(bpe.decode(&[end], DecodeOptions::default()), "");
    assert_eq!(bpe.decode(&[end], SHOWN), "<|im_end|>");
    assert_eq!(streamed(bpe.stream().render_special(true), &[end]), "<|im_end|>");
    assert!(bpe.is_control(end) && bpe.is_end_of_generation(end) && !bpe.is_control(0));

    // The longest token wins wherever it stands, as in llama.cpp.
    let overlap = [("<a<", USER_DEFINED), ("<bb>", USER_DEFINED)];
    let overlap = Tokenizer::from_metadata(&bpe_metadata(&[], &overlap)).unwrap();
    assert_eq!(texts(&overlap, "<a<bb>", PLAIN), ["<", "a", "<bb>"]);
}

#[test]
fn phi3_tokens_swallow_the_space_after_them() {
    let mut metadata = spm_metadata(PIECES, &[("<|end|>", CONTROL), ("<|endoftext|>", CONTROL)]);
    metadata.set("general.name", "Phi-3 mini");
    let phi3 = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(texts(&phi3, "<|end|> \n a<|endoftext|> a", PARSED), ["<|end|>", "▁a", "<|endoftext|>", "▁", "▁a"]);
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let special = &[("<s>", CONTROL), ("</s>", CONTROL)];
    let mut metadata = bpe_metadata(&[], special);
    metadata.set("tokenizer.ggml.bos_token_id", 256u32);
    metadata.set("tokenizer.ggml.eos_token_id", 257u32);
    let check = |metadata: &Metadata, expected: &[&str]| {
        assert_eq!(texts(&Tokenizer::from_metadata(metadata).unwrap(), "x", BOTH), expected);
    };
    check(&metadata, &["x"]);
    metadata.set("tokenizer.ggml.add_eos_token", true);
    check(&metadata, &["x", "</s>"]);
    metadata.set("tokenizer.ggml.pre", "llama-bpe");
    check(&metadata, &["<s>", "x", "</s>"]);
    metadata.set("tokenizer.ggml.add_bos_token", false);
    check(&metadata, &["x", "</s>"]);
}

#[test]
fn answers_end_where_llama_cpp_ends_them() {
    let ends = |special: &[(&str, i32)]| {
        let tokenizer = Tokenizer::from_metadata(&bpe_metadata(&[], special)).unwrap();
        // Token 11 is the default EOS of this kind of vocabulary.
        let ends: Vec<u32> = tokenizer.end_of_generation().filter(|&id| id != 11).collect();
        ends.into_iter().map(|id| tokenizer.token_text(id).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&[("<|im_end|>", CONTROL), ("<|im_start|>", CONTROL)]), ["<|im_end|>"]);
    assert_eq!(ends(&[("<|endoftext|>", NORMAL), ("<|eot_id|>", CONTROL)]), ["<|endoftext|>", "<|eot_id|>"]);
    assert_eq!(ends(&[("<|end|>", CONTROL)]), ["<|end|>"]);
    let harmony = [("<|end|>", CONTROL), ("<|call|>", CONTROL), ("<|return|>", CONTROL)];
    assert_eq!(ends(&harmony), ["<|call|>", "<|return|>"]);
    assert_eq!(ends(&[("<|fim_pad|>", CONTROL), ("<|repo_name|>", NORMAL)]), ["<|fim_pad|>", "<|repo_name|>"]);
}

#[test]
fn wordpiece_takes_the_longest_token() {
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hel", "▁hello", "lo", "▁wor", "ld", "▁,", "▁中", "▁cafe"];
    // A syllable of three sounds, in parts; a consonant with a vowel sign that has a width.
    let parts = ["▁\u{1109}", "\u{1165}", "\u{11AF}", "▁\u{938}", "\u{93E}"];
    let words = [&words[..], &parts].concat();
    let tokens: Vec<(String, i32)> =
        words.iter().map(|word| ((*word).to_owned(), if word.starts_with('[') { CONTROL } else { NORMAL })).collect();
    let mut metadata = metadata("bert", &tokens, None);
    metadata.set("tokenizer.ggml.bos_token_id", 2u32);
    metadata.set("tokenizer.ggml.seperator_token_id", 3u32);
    metadata.set("tokenizer.ggml.unknown_token_id", 1u32);
    let bert = Tokenizer::from_metadata(&metadata).unwrap();
    let expected = ["[CLS]", "▁hello", "▁,", "▁wor", "ld", "▁中", "▁cafe", "[UNK]", "[SEP]"];
    assert_eq!(texts(&bert, " Hel\u{B}lo,WORLD 中\u{200B}Café xyz", BOTH), expected);
    let expected = ["[CLS]", parts[0], parts[1], parts[2], parts[3], parts[4], "[SEP]"];
    assert_eq!(texts(&bert, "\u{C124} \u{938}\u{93E}\u{902}", BOTH), expected);
    assert_eq!((bert.bos_to_add(), bert.eos_to_add()), (Some(2), Some(3)));
}

#[test]
fn damaged_metadata_is_refused_in_a_line() {
    let check = |change: &dyn Fn(&mut Metadata), kind: TextErrorKind, part: &str| {
        let mut metadata = bpe_metadata(&["a b"], &[]);
        change(&mut metadata);
        let error = Tokenizer::from_metadata(&metadata).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(part), "{part}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    };
    let model = |part: &'static str, change: &dyn Fn(&mut Metadata)| check(change, TextErrorKind::Model, part);
    model("'tokenizer.ggml.tokens' is missing", &|m| drop(m.remove("tokenizer.ggml.tokens")));
    model("missing or empty", &|m| m.set("tokenizer.ggml.tokens", Vec::<String>::new()));
    model("'tokenizer.ggml.model' is missing", &|m| drop(m.remove("tokenizer.ggml.model")));
    model("'tokenizer.ggml.merges' is missing", &|m| drop(m.remove("tokenizer.ggml.merges")));
    model("is no pair: \"ab\"", &|m| m.set("tokenizer.ggml.merges", vec!["ab".to_owned()]));
    model("has 3 items for 257 tokens", &|m| m.set("tokenizer.ggml.token_type", vec![1i32; 3]));
    model("has 1 items for 257 tokens", &|m| m.set("tokenizer.ggml.scores", vec![1f32]));
    model("tokenizer.ggml.merges", &|m| m.set("tokenizer.ggml.merges", 7u32));
    let unsupported = |part: &'static str, key: &'static str| {
        check(&move |m| m.set(key, part), TextErrorKind::Unsupported, part);
    };
    ["t5", "rwkv", "plamo2"].into_iter().for_each(|model| unsupported(model, "tokenizer.ggml.model"));
    unsupported("unheard-of", "tokenizer.ggml.pre");
    let few: Vec<(String, i32)> = vec![("a".to_owned(), NORMAL)];
    let error = Tokenizer::from_metadata(&metadata("bert", &few, None)).unwrap_err();
    assert!(error.to_string().contains("'tokenizer.ggml.bos_token_id'"), "{error}");
}

#[test]
fn ids_outside_the_vocabulary_are_nothing() {
    let mut metadata = spm_metadata(PIECES, &[]);
    for name in ["eot", "fim_pad", "bos"] {
        metadata.set(format!("tokenizer.ggml.{name}_token_id"), u32::MAX);
    }
    let spm = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(spm.bos(), Some(1), "a bad id leaves the default");
    assert_eq!(spm.decode(&[u32::MAX, 260], SHOWN), "a");
    assert_eq!((spm.token_text(9999), spm.token_bytes(9999), spm.is_control(9999)), (None, None, false));
}

#[test]
fn a_vocabulary_without_bytes_says_so() {
    let tokens = vec![("a".to_owned(), NORMAL), ("b".to_owned(), NORMAL), ("c".to_owned(), NORMAL)];
    let mut metadata = metadata("llama", &tokens, Some(vec![0.0; 3]));
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    metadata.set("tokenizer.ggml.unknown_token_id", 1u32);
    let spm = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(spm.encode("a\u{1}", PLAIN).unwrap(), [0, 1]);
}

#[test]
fn long_texts_stay_near_linear() {
    let (bpe, spm) = (bpe(), spm());
    for unit in ["a", " ", "\n", "ab", "é", "<tool>", "<"] {
        let text = unit.repeat((1 << 20) / unit.len());
        for tokenizer in [&bpe, &spm] {
            let start = Instant::now();
            let ids = tokenizer.encode(&text, PARSED).unwrap();
            assert_eq!(tokenizer.decode(&ids, SHOWN).len(), text.len(), "{unit:?}");
            assert!(start.elapsed() < Duration::from_secs(20), "{unit:?}: {:?}", start.elapsed());
        }
    }
}

/// Merges the best neighbours, leftmost first, by looking at all of them every time.
fn merge_slowly(text: &str) -> Vec<String> {
    let mut symbols: Vec<String> = format!("▁{}", text.replace(' ', "▁")).chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for i in 1..symbols.len() {
            let both = [symbols[i - 1].as_str(), symbols[i].as_str()].concat();
            let score = PIECES.iter().find(|(text, _)| *text == both).map(|&(_, score)| score);
            if let Some(score) = score.filter(|&score| best.is_none_or(|(best, _)| score > best)) {
                best = Some((score, i));
            }
        }
        let Some((_, i)) = best else { return symbols };
        let right = symbols.remove(i);
        symbols[i - 1].push_str(&right);
    }
}

proptest! {
    #[test]
    fn text_comes_back(text in any::<String>()) {
        let bpe = bpe();
        let ids = bpe.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(&bpe.decode(&ids, SHOWN), &text);
        let parsed = bpe.encode(&text, BOTH).unwrap();
        prop_assert_eq!(&bpe.decode(&parsed, SHOWN), &text);
        let spm = spm();
        let ids = spm.encode(&text, PLAIN).unwrap();
        prop_assert_eq!(spm.decode(&ids, SHOWN), text.replace('▁', " "));
    }

    #[test]
    fn streaming_is_decoding(ids in prop::collection::vec(0u32..300, 0..40)) {
        for tokenizer in [bpe(), spm()] {
            prop_assert_eq!(streamed(tokenizer.stream(), &ids), tokenizer.decode(&ids, DecodeOptions::default()));
            prop_assert_eq!(streamed(tokenizer.stream().render_special(true), &ids), tokenizer.decode(&ids, SHOWN));
        }
    }

    #[test]
    fn spm_is_the_slow_way(text in "[abcé \n]{0,24}") {
        let spm = spm();
        let expected = if text.is_empty() { vec![] } else { merge_slowly(&text) };
        prop_assert_eq!(texts(&spm, &text, PLAIN), expected);
    }

    /// The `tokenizers` crate is an independent reader of the same merges.
    #[test]
    fn bpe_is_that_of_the_tokenizers_crate(
        pairs in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..30),
        text in "[a-e]{0,40}",
    ) {
        use tokenizers::Model as _;
        let mut pieces: Vec<String> = ('a'..='e').map(String::from).collect();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (left.get(&pieces).clone(), right.get(&pieces).clone());
            let both = left.clone() + &right;
            if !pieces.contains(&both) {
                merges.push((left, right));
                pieces.push(both);
            }
        }
        let lines: Vec<String> = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let ours = Tokenizer::from_metadata(&bpe_metadata(&lines, &[])).unwrap();
        let vocab: serde_json::Map<_, _> =
            pieces.iter().map(|piece| (piece.clone(), ours.token_id(piece).unwrap().into())).collect();
        let theirs = serde_json::json!({"type": "BPE", "vocab": vocab, "merges": merges});
        let theirs: tokenizers::models::bpe::BPE = serde_json::from_str(&theirs.to_string()).unwrap();
        let expected: Vec<u32> = theirs.tokenize(&text).unwrap().into_iter().map(|token| token.id).collect();
        prop_assert_eq!(ours.encode(&text, PLAIN).unwrap(), expected);
    }
}
