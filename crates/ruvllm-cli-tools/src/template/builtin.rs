//! Chat templates by the names that llama.cpp has for them, for files that come without one.

/// Templates by name. The tokenizer puts the token in front that begins a text.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "chatml",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    ),
    (
        "llama2",
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + '</s>' }}\
         {% else %}{% if loop.first or loop.previtem.role == 'assistant' %}{{ '[INST] ' }}{% endif %}\
         {% if m.role == 'system' %}{{ m.content + '\\n' }}{% else %}{{ m.content + ' [/INST]' }}{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "llama2-sys",
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + '</s>' }}\
         {% else %}{% if loop.first or loop.previtem.role == 'assistant' %}{{ '[INST] ' }}{% endif %}\
         {% if m.role == 'system' %}{{ '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' }}\
         {% else %}{{ m.content + ' [/INST]' }}{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "llama3",
        "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    ),
    (
        "mistral-v1",
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}\
         {% else %}{% if loop.first or loop.previtem.role == 'assistant' %}{{ ' [INST] ' }}{% endif %}\
         {% if m.role == 'system' %}{{ m.content + '\\n\\n' }}{% else %}{{ m.content + ' [/INST]' }}{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3",
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ ' ' + m.content | trim + '</s>' }}\
         {% else %}{% if loop.first or loop.previtem.role == 'assistant' %}{{ '[INST] ' }}{% endif %}\
         {% if m.role == 'system' %}{{ m.content + '\\n\\n' }}{% else %}{{ m.content + '[/INST]' }}{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v3-tekken",
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + '</s>' }}\
         {% else %}{% if loop.first or loop.previtem.role == 'assistant' %}{{ '[INST]' }}{% endif %}\
         {% if m.role == 'system' %}{{ m.content + '\\n\\n' }}{% else %}{{ m.content + '[/INST]' }}{% endif %}{% endif %}{% endfor %}",
    ),
    (
        "mistral-v7",
        "{% for m in messages %}{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT] ' + m.content + '[/SYSTEM_PROMPT]' }}\
         {% elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}",
    ),
    (
        "phi3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "phi4",
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    ),
    (
        "falcon3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "zephyr",
        "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|endoftext|>\\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    ),
    (
        "gemma",
        "{% for m in messages %}{% if m.role != 'system' %}\
         {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}\
         {% if m.role != 'assistant' and loop.previtem is defined and loop.previtem.role == 'system' %}\
         {{ loop.previtem.content | trim + '\\n\\n' }}{% endif %}{{ m.content | trim + '<end_of_turn>\\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
    ),
    (
        "openchat",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '<|end_of_turn|>' }}\
         {% else %}{{ 'GPT4 Correct ' + m.role | title + ': ' + m.content + '<|end_of_turn|>' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}",
    ),
    (
        "vicuna",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}\
         {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}{% else %}{{ 'ASSISTANT: ' + m.content + '</s>\\n' }}{% endif %}\
         {% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    ),
    (
        "deepseek",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\
         {% elif m.role == 'user' %}{{ '### Instruction:\\n' + m.content + '\\n' }}\
         {% else %}{{ '### Response:\\n' + m.content + '\\n<|EOT|>\\n' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}",
    ),
    (
        "deepseek3",
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}\
         {% elif m.role == 'user' %}{{ '<｜User｜>' + m.content }}\
         {% else %}{{ '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
    ),
    (
        "command-r",
        "{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + ('CHATBOT' if m.role == 'assistant' else m.role | upper) + '_TOKEN|>' \
         + m.content | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    ),
];

/// Returns the template of a name.
pub(super) fn find(name: &str) -> Option<&'static str> {
    TEMPLATES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// Returns the names that there are.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use ruvllm_engine::template::{ChatInput, ChatTemplate};
    use serde_json::json;

    use super::*;

    #[test]
    fn conversations_are_written_as_the_models_read_them() {
        let render = |name: &str| {
            let template = ChatTemplate::new(find(name).expect("a name"), "", "").expect("a template");
            let says = |role: &str, content: &str| json!({ "role": role, "content": content });
            let messages = vec![says("system", "S"), says("user", "a"), says("assistant", "b"), says("user", "c")];
            template
                .render(&ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() })
                .expect("a text")
        };
        let expected = [
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
            ),
            ("llama2", "[INST] S\na [/INST]b</s>[INST] c [/INST]"),
            ("llama2-sys", "[INST] <<SYS>>\nS\n<</SYS>>\n\na [/INST]b</s>[INST] c [/INST]"),
            (
                "llama3",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            ("mistral-v1", " [INST] S\n\na [/INST] b</s> [INST] c [/INST]"),
            ("mistral-v3", "[INST] S\n\na[/INST] b</s>[INST] c[/INST]"),
            ("mistral-v3-tekken", "[INST]S\n\na[/INST]b</s>[INST]c[/INST]"),
            ("mistral-v7", "[SYSTEM_PROMPT] S[/SYSTEM_PROMPT][INST] a[/INST] b</s>[INST] c[/INST]"),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\nc<|end|>\n<|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>a<|im_end|><|im_start|>assistant<|im_sep|>b<|im_end|><|im_start|>user<|im_sep|>c<|im_end|><|im_start|>assistant<|im_sep|>",
            ),
            ("falcon3", "<|system|>\nS\n<|user|>\na\n<|assistant|>\nb\n<|user|>\nc\n<|assistant|>\n"),
            (
                "zephyr",
                "<|system|>\nS<|endoftext|>\n<|user|>\na<|endoftext|>\n<|assistant|>\nb<|endoftext|>\n<|user|>\nc<|endoftext|>\n<|assistant|>\n",
            ),
            (
                "gemma",
                "<start_of_turn>user\nS\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "openchat",
                "S<|end_of_turn|>GPT4 Correct User: a<|end_of_turn|>GPT4 Correct Assistant: b<|end_of_turn|>GPT4 Correct User: c<|end_of_turn|>GPT4 Correct Assistant:",
            ),
            ("vicuna", "S\n\nUSER: a\nASSISTANT: b</s>\nUSER: c\nASSISTANT:"),
            ("deepseek", "S### Instruction:\na\n### Response:\nb\n<|EOT|>\n### Instruction:\nc\n### Response:\n"),
            ("deepseek3", "S\n\n<｜User｜>a<｜Assistant｜>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜>"),
            (
                "command-r",
                "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>a<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>b<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>c<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
        ];
        assert_eq!(expected.len(), names().count());
        for (name, text) in expected {
            assert_eq!(render(name), text, "{name}");
        }
    }
}
