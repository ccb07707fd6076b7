//! Answers as each family writes them.

use super::*;
use crate::template::ChatTemplate;

/// A family, what its template shows, an answer with a thought, and what each part is.
const FAMILIES: &[(&str, &str, &str, &str, &str)] = &[
    (
        "harmony",
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
        "<|channel|>analysis<|message|>2 < 3, so yes.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        "2 < 3, so yes.",
        "Yes.",
    ),
    ("gemma4", "<|channel>thought\n{{ t }}<channel|>", "<|channel>thought\nhm\n<channel|>Yes.", "hm", "Yes."),
    ("seed", "<seed:think>{{ t }}</seed:think>", "<seed:think>\nhm\n</seed:think>\nYes.", "hm", "Yes."),
    ("mistral", "[THINK]{{ t }}[/THINK]", "[THINK]hm[/THINK]Yes.", "hm", "Yes."),
    (
        "command",
        "<|START_THINKING|>{{ t }}<|END_THINKING|>",
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        "hm",
        "Yes.",
    ),
    ("kimi", "◁think▷{{ t }}◁/think▷", "◁think▷hm ◁ hm◁/think▷Yes.", "hm ◁ hm", "Yes."),
    ("apertus", "<|inner_prefix|>{{ t }}<|inner_suffix|>", "<|inner_prefix|>hm<|inner_suffix|>Yes.", "hm", "Yes."),
    ("longcat", "<longcat_think>{{ t }}</longcat_think>", "<longcat_think>\nhm\n</longcat_think>\nYes.", "hm", "Yes."),
    ("exaone", "<thought>{{ t }}</thought>", "<thought>\nhm\n</thought>\n\nYes.", "hm", "Yes."),
    ("reka", "<reasoning>{{ t }}</reasoning>", "<reasoning>\nhm\n</reasoning>\nYes.", "hm", "Yes."),
    (
        "granite",
        "Write 'Here is my thought process:' and 'Here is my response:'.",
        "Here is my thought process: hm Here is my response: Yes.",
        "hm",
        "Yes.",
    ),
    (
        "answer",
        "<think>{{ t }}</think><answer>{{ m.content }}</answer>",
        "<think>\nhm\n</think>\n<answer>\nYes.\n</answer>",
        "hm",
        "Yes.",
    ),
    ("think", "<think>{{ t }}</think>", "<think>\nhm, 1 < 2 </b\n\n</think>\n\nYes.\n", "hm, 1 < 2 </b", "Yes.\n"),
];

/// Reads a text in pieces of `n` characters.
fn read(mut reader: ThoughtReader, text: &str, n: usize) -> (String, String) {
    let mut all = (String::new(), String::new());
    let mut add = |(thought, said): (String, String)| {
        all.0.push_str(&thought);
        all.1.push_str(&said);
    };
    let chars: Vec<char> = text.chars().collect();
    chars.chunks(n).for_each(|piece| add(reader.push(&piece.iter().collect::<String>())));
    add(reader.finish());
    all
}

#[test]
fn each_family_is_known_by_its_template_and_read_in_any_pieces() {
    assert_eq!(FAMILIES.len(), ThoughtFormat::ALL.len());
    for &(name, template, text, thought, said) in FAMILIES {
        let template = ChatTemplate::new(template, "", "").expect("a template");
        let format = ThoughtFormat::of(&template).expect("it shows thoughts");
        assert_eq!(format.name, name);
        let open = text.strip_prefix(format.open).expect("it begins with its mark");
        for n in 1..=text.len() {
            let expected = (thought.to_owned(), said.to_owned());
            assert_eq!(read(ThoughtReader::new(format, false), text, n), expected, "{name} by {n}");
            assert_eq!(
                read(ThoughtReader::new(format, true), open, n),
                expected,
                "{name} by {n}, opened by the prompt"
            );
            assert_eq!(read(ThoughtReader::new(format, false), "Yes, <b>", n).1, "Yes, <b>");
        }
    }
    for plain in ["{{ messages }}", "<tool_call>", "<answer>{{ m }}</answer>"] {
        assert_eq!(ThoughtFormat::of(&ChatTemplate::new(plain, "", "").expect("a template")), None, "{plain}");
    }
}

#[test]
fn answers_that_are_cut_or_do_not_think_lose_nothing() {
    let [think, harmony] = ["think", "harmony"]
        .map(|name| ThoughtFormat::ALL.iter().find(|format| format.name == name).expect("it is one"));
    for (format, text, is_open, thought, said) in [
        (think, "\n<think>\n</think>yes", false, "", "yes"),
        (think, " yes <think>no</think>", false, "", " yes <think>no</think>"),
        (think, "<thin", false, "", "<thin"),
        (think, "<think>hm </th", false, "hm </th", ""),
        (think, "hm\n</think>\nyes", true, "hm", "yes"),
        (think, "", false, "", ""),
        (harmony, "<|channel|>final<|message|>Yes.", false, "", "Yes."),
        (
            harmony,
            "hm<|end|><|start|>assistant<|channel|>commentary to=a",
            true,
            "hm",
            "<|start|>assistant<|channel|>commentary to=a",
        ),
    ] {
        for n in 1..=text.len().max(1) {
            let read = read(ThoughtReader::new(format, is_open), text, n);
            assert_eq!(read, (thought.to_owned(), said.to_owned()), "{text:?} by {n}");
        }
    }
}

#[test]
fn earlier_thoughts_have_the_name_that_a_template_reads() {
    let answer = serde_json::json!({ "role": "assistant", "content": "Yes.", "reasoning_content": "hm" });
    let input = ChatInput { messages: vec![answer], ..ChatInput::default() };
    for name in ["reasoning_content", "thinking", "reasoning", "thought"] {
        for read in [format!("m.{name}"), format!("m['{name}']"), format!("m.get(\"{name}\")")] {
            let source = format!("{{% for m in messages %}}<{{{{ {read} }}}}>{{{{ m.content }}}}{{% endfor %}}");
            let template = ChatTemplate::new(&source, "", "").expect("a template");
            let text = template.render(&named_for(&template, &input)).expect("it renders");
            assert_eq!(text, "<hm>Yes.", "{source}");
        }
    }
}
