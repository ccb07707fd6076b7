//! Writes `seeds/`: what each target begins with. The files are small, and the same each time.

use std::fs;
use std::path::Path;

use ruvllm_fuzz::{PATHS, join};
use ruvllm_gguf::{GgmlType, GgufWriter, TensorData};
use ruvllm_sona::bank::{Pattern, Step, Verdict};
use ruvllm_sona::witness::{Content, Event, Served};
use serde_json::{Value, json};

const CHAT: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
const TEMPLATES: [&str; 8] = [
    CHAT,
    "{%- set ns = namespace(i=0, last='') -%}{%- for m in messages if m.content -%}{%- set ns.i = ns.i + 1 -%}{{ ns.i ~ m.content[:3] | trim | upper }}{%- endfor -%}",
    "{% macro show(x, n=2) %}{{ (x | string) * n }}{% endmacro %}{{ show(bos_token) }}{{ show(messages | length, n=3) }}",
    "{{ tools | tojson(indent=2) }}{% if tools is defined and tools is iterable %}{{ tools[0].function.name.split('e')[::-1] | join(',') }}{% endif %}",
    "{% for k, v in messages[2].tool_calls[0].function.arguments.items() %}{{ k }}={{ v | replace('o', '0') }}{{ loop.index }}{% endfor %}",
    "{{ strftime_now('%d %B %Y') }}{{ raise_exception('no: ' ~ messages[0].role) }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | last | default('x') }}",
    "{{ 'a,b,c'.rsplit(',', 1) }}{{ [3, 1, 2] | sort(reverse=true) | first }}{{ range(3) | sum }}{{ {'a': 1.0, 'b': none} }}",
];

/// A kind, and a text of it.
const GRAMMARS: [(u8, &str); 12] = [
    (0, "[a-z]{2,5}(-[0-9]+)?"),
    (0, "(?i)yes|no\\.\\s*\\p{L}*"),
    (0, "(a|b)*abb"),
    (1, "root ::= item (\",\" item)*\nitem ::= [a-c]+ | \"(\" root \")\""),
    (1, "root ::= a\na ::= a \"x\" | \"y\""),
    (1, "root ::= \"\\\"\" [^\"\\\\]{0,8} \"\\\"\" ws\nws ::= [ \\t\\n]*"),
    (2, "start: word (\" \" word)*\nword: /[a-z]+/"),
    (2, "start: \"a\" start \"b\" | \"\""),
    (2, "start: num OP num\nnum: /[0-9]/ ~ 1..3\nOP: \"+\" | \"-\""),
    (3, "red|green|blue"),
    (3, "a|ab|abc|"),
    (2, "start: \"a\" start"),
];

const SCHEMAS: [&str; 9] = [
    r#"{"type":"object","properties":{"a":{"type":"integer","minimum":3,"maximum":40},"b":{"type":"string","maxLength":5}},"required":["a"],"additionalProperties":false}"#,
    r#"{"type":"array","items":{"enum":["x",1,null]},"minItems":1,"maxItems":3}"#,
    r##"{"$defs":{"t":{"type":"object","properties":{"next":{"$ref":"#/$defs/t"}}}},"$ref":"#/$defs/t"}"##,
    r#"{"anyOf":[{"type":"string","pattern":"^a+$"},{"type":"number","multipleOf":0.5}]}"#,
    r#"{"oneOf":[{"const":"a"},{"const":{"b":[1]}}]}"#,
    r#"{"allOf":[{"type":"object","properties":{"a":{}}},{"required":["b"]}]}"#,
    r#"{"type":"string","format":"date-time"}"#,
    r#"{"type":"object","patternProperties":{"^x":{"type":"boolean"}},"minProperties":1,"propertyNames":{"maxLength":3}}"#,
    r#"{"type":["string","null"],"if":{"type":"string"},"then":{"minLength":2},"not":{"const":"ab"}}"#,
];

const CALLS: [&str; 8] = [
    "I look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
    "{\"name\": \"put\", \"parameters\": {\"a\": [1, {\"b\": \"\\u00e9\"}]}}",
    "[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {}}, {\"name\": \"put\", \"arguments\": {\"x\": 1}}]",
    "[TOOL_CALLS]get[ARGS]{\"city\": \"Oslo\"}",
    "<start_function_call>call:get{city:<escape>Rome<escape>,n:3}<end_function_call>",
    "<|tool_call>call:put{a:[1,2],b:<|\"|>x<|\"|>}<tool_call|>",
    "{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n{\"name\": \"put\", \"arguments\": {}}",
    "<tool_call>{\"name\": \"other\", \"arguments\": 3",
];

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let write = |target: &str, inputs: Vec<Vec<u8>>| -> std::io::Result<()> {
        let folder = root.join(target);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        inputs.iter().enumerate().try_for_each(|(i, bytes)| fs::write(folder.join(format!("{i:02}")), bytes))
    };
    write("gguf", vec![model(false), model(true)])?;
    write("gguf_adapter", vec![adapter()])?;
    write("imatrix", vec![imatrix(), older_imatrix(&[]), older_imatrix(b"\x05\0\0\0\x03\0\0\0abc")])?;
    write("safetensors", vec![join(bert_settings().as_bytes(), &bert_weights())])?;
    write("folder", [("qwen2", "bpe"), ("gpt2", "bpe"), ("mamba", "bpe")].map(|(model, vocab)| folder(model, vocab)).to_vec())?;
    write("peft", peft())?;
    write("template", TEMPLATES.map(|text| text.as_bytes().to_vec()).to_vec())?;
    write("grammar", GRAMMARS.map(|(kind, text)| [&[kind, 5], text.as_bytes()].concat()).to_vec())?;
    write("schema", SCHEMAS.map(|text| [&[3], text.as_bytes()].concat()).to_vec())?;
    let calls = CALLS.iter().enumerate().map(|(i, text)| [&[i as u8, 3], text.as_bytes()].concat());
    write("tool_calls", calls.collect())?;
    write("records", records())?;
    write("fields", bodies())
}

/// A model of two tokens and one tensor, with or without a template and scores.
fn model(has_more: bool) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.architecture", "llama");
    metadata.set("llama.block_count", 1u32);
    metadata.set("tokenizer.ggml.model", if has_more { "gpt2" } else { "llama" });
    metadata.set("tokenizer.ggml.tokens", vec!["<s>".to_owned(), "a".to_owned(), "b".to_owned(), "ab".to_owned()]);
    metadata.set("tokenizer.ggml.token_type", vec![3i32, 1, 1, 1]);
    metadata.set("tokenizer.ggml.bos_token_id", 0u32);
    if has_more {
        metadata.set("tokenizer.ggml.merges", vec!["a b".to_owned()]);
        metadata.set("tokenizer.chat_template", CHAT);
    } else {
        metadata.set("tokenizer.ggml.scores", vec![0.0f32, -1.0, -2.0, -0.5]);
    }
    writer.add_tensor("output_norm.weight", GgmlType::F32, &[4], TensorData::from(vec![0u8; 16])).expect("a tensor");
    bytes(writer)
}

/// An adapter of one layer, rank 2.
fn adapter() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.architecture", "llama");
    metadata.set("general.type", "adapter");
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", 4.0f32);
    for (name, shape) in [("blk.0.attn_q.weight.lora_a", [8, 2]), ("blk.0.attn_q.weight.lora_b", [2, 16])] {
        let n_bytes = 4 * (shape[0] * shape[1]) as usize;
        writer.add_tensor(name, GgmlType::F32, &shape, TensorData::from(vec![0u8; n_bytes])).expect("a tensor");
    }
    bytes(writer)
}

/// An importance matrix of a matrix and of two experts, one of which nothing went to.
fn imatrix() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.type", "imatrix");
    metadata.set("imatrix.datasets", vec!["a.txt".to_owned()]);
    metadata.set("imatrix.chunk_count", 2u32);
    metadata.set("imatrix.chunk_size", 64u32);
    let mut add = |name: &str, shape: &[usize], values: &[f32]| {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.add_tensor(name, GgmlType::F32, shape, TensorData::from(data)).expect("a tensor");
    };
    add("blk.0.attn_q.weight.in_sum2", &[4, 1], &[1.0, 0.0, 2.5, 9.0]);
    add("blk.0.attn_q.weight.counts", &[1, 1], &[128.0]);
    add("blk.0.attn_q.weight.sensitivity", &[1], &[0.5]);
    add("blk.0.ffn_up_exps.weight.in_sum2", &[2, 2], &[1.0, 3.0, 0.0, 0.0]);
    add("blk.0.ffn_up_exps.weight.counts", &[1, 2], &[128.0, 0.0]);
    bytes(writer)
}

/// An importance matrix in the older form, and what stands behind its entries.
fn older_imatrix(tail: &[u8]) -> Vec<u8> {
    let name = b"blk.0.attn_q.weight";
    let mut bytes = [&1i32.to_le_bytes()[..], &(name.len() as i32).to_le_bytes(), name].concat();
    bytes.extend([2i32, 3].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([1.0f32, 0.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
    bytes.extend(tail);
    bytes
}

fn bytes(writer: GgufWriter<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("memory is writable");
    bytes
}

/// Settings, tokenizer and directory of a tiny model of the converter's tests.
fn folder(model: &str, vocab: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/ruvllm-convert/testdata/hf");
    let read = |name: &Path| fs::read(root.join(name)).expect("a file of the tests");
    let config = compact(&read(&Path::new(model).join("config.json")));
    let tokenizer = compact(&read(&Path::new("tokenizers").join(vocab).join("tokenizer.json")));
    let weights = read(&Path::new(model).join("model.safetensors"));
    let (n, rest) = weights.split_first_chunk::<8>().expect("a directory");
    let directory = &rest[..u64::from_le_bytes(*n) as usize];
    join(&config, &join(&tokenizer, directory.trim_ascii_end()))
}

/// Leaves out the space between the parts of a JSON text.
fn compact(text: &[u8]) -> Vec<u8> {
    let (mut is_text, mut is_escaped) = (false, false);
    let mut keep = |byte: &u8| {
        let keeps = is_text || !byte.is_ascii_whitespace();
        is_text ^= *byte == b'"' && !is_escaped;
        is_escaped = is_text && *byte == b'\\' && !is_escaped;
        keeps
    };
    text.iter().copied().filter(|byte| keep(byte)).collect()
}

/// A file of tensors of F32 that are 0.
fn safetensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for &(name, shape) in tensors {
        let n = 4 * shape.iter().product::<usize>();
        let tensor = json!({ "dtype": "F32", "shape": shape, "data_offsets": [at, at + n] });
        header.insert(name.to_owned(), tensor);
        at += n;
    }
    let text = Value::Object(header).to_string().into_bytes();
    [&(text.len() as u64).to_le_bytes()[..], &text, &vec![0; at]].concat()
}

fn peft() -> Vec<Vec<u8>> {
    let settings = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": ["q_proj"] });
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    let weights = safetensors(&[(&a, &[2, 8]), (&b, &[16, 2])]);
    let patterns = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "use_rslora": true, "rank_pattern": { "q_.*": 2 }, "alpha_pattern": { "q_proj": 8 } });
    vec![join(settings.to_string().as_bytes(), &weights), join(patterns.to_string().as_bytes(), &weights)]
}

fn bert_settings() -> String {
    json!({ "model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "vocab_size": 4, "max_position_embeddings": 8, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu" })
    .to_string()
}

fn bert_weights() -> Vec<u8> {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![4, 4]),
        ("embeddings.position_embeddings.weight".into(), vec![8, 4]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, 4]),
        ("embeddings.LayerNorm.weight".into(), vec![4]),
        ("embeddings.LayerNorm.bias".into(), vec![4]),
    ];
    let layer = "encoder.layer.0";
    let linear = [
        ("attention.self.query", 4, 4),
        ("attention.self.key", 4, 4),
        ("attention.self.value", 4, 4),
        ("attention.output.dense", 4, 4),
        ("intermediate.dense", 8, 4),
        ("output.dense", 4, 8),
    ];
    for (name, n_out, n_in) in linear {
        tensors.push((format!("{layer}.{name}.weight"), vec![n_out, n_in]));
        tensors.push((format!("{layer}.{name}.bias"), vec![n_out]));
    }
    for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
        tensors.push((format!("{layer}.{name}.weight"), vec![4]));
        tensors.push((format!("{layer}.{name}.bias"), vec![4]));
    }
    let tensors: Vec<(&str, &[usize])> = tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    safetensors(&tensors)
}

fn records() -> Vec<Vec<u8>> {
    let content = Content::new(&[1, 2, 3], true);
    let served = Served { request: 7, prompt: content, ..Served::default() };
    let mut pattern =
        Pattern::new("sort a list", vec![0.5; 4], vec![Step { action: "look".into(), outcome: "seen".into() }], Verdict::Success, 0.9);
    pattern.created_ms = 1;
    let events = [
        Event::Served(Box::new(served)),
        Event::Feedback { request: 7, quality: 0.5 },
        Event::Learning { what: "published".into() },
        Event::Erased { seqs: vec![1, 5] },
    ];
    let mut all: Vec<Vec<u8>> = events.iter().map(|event| [&[0], &event.to_bytes()[..]].concat()).collect();
    all.push([&[1], &pattern.to_bytes()[..]].concat());
    all.push(b"\x063:0000000000000000000000000000000000000000000000000000000000000000".to_vec());
    all
}

fn bodies() -> Vec<Vec<u8>> {
    let message = json!([{ "role": "user", "content": "hi" }]);
    let texts = [
        ("/v1/chat/completions", json!({ "messages": message, "max_tokens": 2, "temperature": 0.5, "logprobs": true, "top_logprobs": 2, "stop": ["x"] })),
        ("/v1/chat/completions", json!({ "messages": message, "max_tokens": 2, "response_format": { "type": "json_object" }, "stream": true })),
        ("/v1/chat/completions", json!({ "messages": message, "max_tokens": 2, "tools": [{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }] })),
        ("/v1/completions", json!({ "prompt": [1, 2], "max_tokens": 2, "n": 2, "seed": 3, "logit_bias": { "5": -100 } })),
        ("/v1/responses", json!({ "input": "hi", "max_output_tokens": 2 })),
        ("/v1/messages", json!({ "messages": message, "max_tokens": 2, "system": "short" })),
        ("/v1/messages/count_tokens", json!({ "messages": message })),
        ("/v1/embeddings", json!({ "input": ["a", "b"], "encoding_format": "base64" })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["a", "b"] })),
        ("/v1/feedback", json!({ "id": "chatcmpl-1", "quality": 1.0 })),
        ("/v1/patterns/search", json!({ "text": "a", "n": 2 })),
        ("/v1/adapters", json!({ "name": "a", "path": "/nowhere" })),
        ("/tokenize", json!({ "text": "a river" })),
        ("/detokenize", json!({ "tokens": [1, 2] })),
        ("/apply-template", json!({ "messages": message })),
    ];
    let path = |path: &str| PATHS.iter().position(|p| *p == path).expect("a path of the target") as u8;
    texts.iter().map(|(to, body)| [&[path(to)], body.to_string().as_bytes()].concat()).collect()
}
