//! The clients, with the exact versions of what they need.

/// A client.
pub(super) struct Client {
    pub name: &'static str,
    pub from: From,
    /// Its packages; the first one gives the version that is told.
    pub packages: &'static [&'static str],
    pub script: &'static str,
    /// Seconds that its script may take.
    pub limit_s: u64,
}

/// The registry a client's packages come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    PyPi,
    Npm,
}

impl Client {
    /// Whether it is a program that is given a task: to make a file.
    pub(super) fn is_agent(&self) -> bool {
        self.script.ends_with(".sh")
    }

    /// Returns the version of its first package.
    pub(super) fn version(&self) -> &'static str {
        let (_, version) = self.packages[0].rsplit_once(['@', '=']).expect("packages have exact versions");
        version
    }
}

const fn python(name: &'static str, packages: &'static [&'static str], script: &'static str) -> Client {
    Client { name, from: From::PyPi, packages, script, limit_s: 400 }
}

const fn node(name: &'static str, packages: &'static [&'static str], script: &'static str) -> Client {
    Client { name, from: From::Npm, packages, script, limit_s: 400 }
}

/// All of them: libraries, agents, MCP servers that a chat has, and what measures.
pub(super) const CLIENTS: [Client; 27] = [
    python("openai", &["openai==3.57.0"], "with_openai.py"),
    python("anthropic", &["anthropic==2.14.0"], "with_anthropic.py"),
    python("ollama", &["ollama==0.6.3"], "with_ollama.py"),
    python("litellm", &["litellm==1.110.2"], "with_litellm.py"),
    python("langchain-openai", &["langchain-openai==1.7.4"], "with_langchain_openai.py"),
    python("langchain-ollama", &["langchain-ollama==1.1.0"], "with_langchain_ollama.py"),
    python(
        "llama-index",
        &["llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1", "llama-index-llms-openai==0.8.3"],
        "with_llama_index.py",
    ),
    python("instructor", &["instructor==1.17.0", "anthropic==2.14.0"], "with_instructor.py"),
    python("pydantic-ai", &["pydantic-ai-slim[openai,anthropic]==2.68.0"], "with_pydantic_ai.py"),
    python("openai-agents", &["openai-agents==0.24.0"], "with_openai_agents.py"),
    python("smolagents", &["smolagents[openai]==1.26.0"], "with_smolagents.py"),
    python("haystack", &["haystack-ai==3.4.1"], "with_haystack.py"),
    python("llm", &["llm==0.36"], "with_llm.py"),
    node("openai-js", &["openai@6.49.0", "zod@4.6.7"], "with_openai.mjs"),
    node("anthropic-js", &["@anthropic-ai/sdk@1.14.0", "zod@4.6.7"], "with_anthropic.mjs"),
    node("ollama-js", &["ollama@0.6.4", "zod@4.6.7"], "with_ollama.mjs"),
    node(
        "ai",
        &[
            "ai@6.0.326",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/anthropic@3.0.140",
            "@ai-sdk/openai-compatible@2.0.92",
            "zod@4.6.7",
        ],
        "with_ai.mjs",
    ),
    node("claude-code", &["@anthropic-ai/claude-code@2.1.197"], "with_claude_code.sh"),
    node("codex", &["@openai/codex@0.171.0"], "with_codex.sh"),
    node("opencode", &["opencode-ai@1.18.33"], "with_opencode.sh"),
    node("qwen-code", &["@qwen-code/qwen-code@0.15.10"], "with_qwen_code.sh"),
    python("aider", &["aider-chat==0.86.2"], "with_aider.sh"),
    node(
        "mcp-filesystem",
        &["@modelcontextprotocol/server-filesystem@2026.8.31", "zod@4.6.7"],
        "with_mcp_filesystem.mjs",
    ),
    python("mcp-time", &["mcp-server-time==2026.10.19"], "with_mcp_time.py"),
    python(
        "lm-eval",
        &["lm-eval[api]==0.4.13", "gguf==0.19.0", "transformers==5.24.0", "pydantic==2.14.4"],
        "measure_lm_eval.py",
    ),
    python("fim", &["openai==3.57.0"], "measure_fim.py"),
    python("tools", &["openai==3.57.0"], "measure_tools.py"),
];

#[cfg(test)]
mod tests {
    use super::CLIENTS;

    #[test]
    fn every_client_has_a_script_and_a_version() {
        for client in &CLIENTS {
            let script = crate::shell::root().join(super::super::SCRIPTS).join(client.script);
            assert!(script.is_file(), "{} is missing", script.display());
            assert!(
                client.version().starts_with(|c: char| c.is_ascii_digit()),
                "{}: {}",
                client.name,
                client.version()
            );
        }
    }
}
