//! Records of data sets: what is learned of them, filters, splits, malformed lines.

use super::*;

/// Bytes are tokens from 10 on; roles and ends are below.
struct Bytes;

impl Encoder for Bytes {
    fn text(&self, text: &str) -> Result<Vec<u32>, LoraError> {
        Ok([1].into_iter().chain(text.bytes().map(|byte| u32::from(byte) + 10)).collect())
    }

    fn chat(&self, messages: &[Value], open: bool) -> Result<Vec<u32>, LoraError> {
        let mut tokens = vec![1];
        for message in messages {
            tokens.push(if message["role"] == "assistant" { 3 } else { 2 });
            tokens.extend(message["content"].as_str().expect("checked").bytes().map(|byte| u32::from(byte) + 10));
            tokens.extend([4, 5]);
        }
        tokens.extend(open.then_some(3));
        Ok(tokens)
    }

    fn end(&self) -> Option<u32> {
        Some(4)
    }

    fn is_end(&self, token: u32) -> bool {
        token == 4
    }
}

fn read(lines: &str, filter: &Filter) -> Result<Vec<Example>, LoraError> {
    Dataset::read(lines.as_bytes(), filter)?.encode(&Bytes, filter)
}

/// The learned tokens of a sequence as text, the end as '$'.
fn learned(sequence: &ScoredSequence) -> String {
    let tokens = sequence.tokens.iter().zip(&sequence.is_scored).filter(|(_, is_scored)| **is_scored);
    tokens.map(|(&token, _)| if token < 10 { '$' } else { (token - 10) as u8 as char }).collect()
}

#[test]
fn answers_are_learned_and_nothing_else() {
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let turns = [message("user", "hi"), message("assistant", "yes"), message("user", "so"), message("assistant", "no")];
    let rows = [
        (json!({ "messages": turns }), vec!["yes$no$"]),
        (json!({ "messages": turns[..3] }), vec!["yes$"]),
        (json!({ "text": "abc" }), vec!["abc$"]),
        (json!({ "prompt": "ab", "completion": "cd" }), vec!["cd$"]),
        (json!({ "prompt": [turns[0]], "completion": "cd" }), vec!["cd$"]),
        (json!({ "prompt": [turns[0]], "completion": [turns[1]] }), vec!["yes$"]),
        (json!({ "prompt": "a", "chosen": "b", "rejected": "c" }), vec!["b$", "c$"]),
        (
            json!({ "prompt": "a", "completions": [{ "text": "b", "score": 2 }, { "text": "c", "score": 0.5 }] }),
            vec!["b$", "c$"],
        ),
        (json!({ "anchor": "a", "positive": "b" }), vec!["", ""]),
    ];
    for (row, expected) in rows {
        let examples = read(&row.to_string(), &Filter::default()).unwrap_or_else(|error| panic!("{row}: {error}"));
        assert_eq!(examples[0].sequences.iter().map(learned).collect::<Vec<_>>(), expected, "{row}");
    }
}

#[test]
fn filters_drop_and_count() {
    let lines = concat!(
        "{\"text\":\"one\",\"quality\":0.9}\n\n{\"text\":\"two\",\"quality\":0.1}\n{\"text\":\"one\"}\n",
        "{\"text\":\"x\"}\n{\"text\":\"a long one\"}\n"
    );
    let filter = Filter { n_chars_min: 2, n_tokens_max: 8, quality_min: 0.5 };
    let mut data = Dataset::read(lines.as_bytes(), &filter).expect("records");
    assert_eq!(data.encode(&Bytes, &filter).expect("examples").len(), 1);
    assert_eq!(data.dropped, Dropped { n_short: 1, n_long: 1, n_duplicate: 1, n_poor: 1 });
    assert_eq!(data.records[0].0, 1);
    let error = read("{\"text\":\"x\"}", &filter).expect_err("nothing is left").to_string();
    assert_eq!(error, "no record is left of the data (1 too short, 0 too long, 0 said before, 0 of low quality)");
}

#[test]
fn splits_are_by_seed_and_whole() {
    let deal =
        |seed| Split::new((0..100).collect::<Vec<u32>>(), seed, SplitShares { val: 0.1, test: 0.05 }).expect("a split");
    let split = deal(1);
    assert_eq!((split.train.len(), split.val.len(), split.test.len()), (85, 10, 5));
    let mut all = [&split.train[..], &split.val, &split.test].concat();
    all.sort_unstable();
    assert_eq!(all, (0..100).collect::<Vec<u32>>());
    assert_eq!(split, deal(1));
    assert_ne!(split, deal(2));
    assert!(Split::new(vec![1, 2], 0, SplitShares { val: 0.5, test: 0.5 }).is_err());
    let few = Split::new(vec![1, 2, 3], 0, SplitShares { val: 0.05, test: 0.05 }).expect("too few to hold back");
    assert_eq!((few.train.len(), few.val.len()), (3, 0));
}

#[test]
fn malformed_lines_are_named() {
    let deep = format!("{{\"text\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let rows = [
        ("{\"text\":\"x\"}\nnonsense", "line 2: no JSON"),
        ("[1]", "line 1: no JSON object"),
        ("{\"txt\":\"x\\u001b[2J\"}", "line 1: fields 'txt'; a record has"),
        ("{\"text\":7}", "line 1: 'text' is no text"),
        ("{\"messages\":[]}", "line 1: 'messages' is no list of messages"),
        ("{\"messages\":[{\"role\":\"assistant\"}]}", "line 1: message 1 of 'messages' has no 'role' and 'content'"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "line 1: no message of the assistant"),
        ("{\"prompt\":\"x\"}", "line 1: 'completion' is missing"),
        ("{\"prompt\":\"x\",\"chosen\":\"y\"}", "line 1: 'rejected' is missing"),
        ("{\"prompt\":\"x\",\"completions\":[]}", "line 1: 0 completions; 2 to 64"),
        (
            "{\"prompt\":\"x\",\"completions\":[{\"text\":\"y\",\"score\":1e300},3]}",
            "line 1: the 'score' of a completion",
        ),
        ("{\"text\":\"x\",\"quality\":\"good\"}", "line 1: 'quality' is no number"),
        ("{\"anchor\":\"x\"}", "line 1: 'positive' is missing"),
        ("\u{0}\u{1}\u{2}", "line 1: no JSON"),
        (deep.as_str(), "line 1: no JSON"),
    ];
    for (lines, expected) in rows {
        let error = read(lines, &Filter::default()).expect_err(lines).to_string();
        assert!(
            error.contains(expected) && !error.contains('\n') && !error.contains('\u{1b}'),
            "{error} for {expected}"
        );
    }
    let long = format!("{{\"text\":\"{}\"}}", "x".repeat(5 << 20));
    let error = read(&long, &Filter::default()).expect_err("too long").to_string();
    assert!(error.starts_with("line 1: more than 4194304 bytes"), "{error}");
    assert!(Dataset::read(&b"{\"text\":\"\xff\xfe\"}"[..], &Filter::default()).is_err());
}
