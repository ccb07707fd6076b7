# docs: codex
mkdir -p ~/.codex
cat > ~/.codex/config.toml <<'END'
model = "qwen2.5-coder:0.5b"
model_provider = "ruvllm"
model_context_window = 32768

[model_providers.ruvllm]
name = "RuvLLM"
base_url = "http://127.0.0.1:8080/v1"
wire_api = "responses"
END
codex exec --skip-git-repo-check --sandbox workspace-write "Create a file hello.txt with the content: hello"
# end
