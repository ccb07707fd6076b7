# docs: opencode
cat > opencode.json <<'END'
{
  "$schema": "https://opencode.ai/config.json",
  "provider": {
    "ruvllm": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "RuvLLM",
      "options": { "baseURL": "http://127.0.0.1:8080/v1" },
      "models": { "qwen2.5-coder:0.5b": { "limit": { "context": 32768, "output": 2048 } } }
    }
  },
  "model": "ruvllm/qwen2.5-coder:0.5b",
  "small_model": "ruvllm/qwen2.5-coder:0.5b"
}
END
opencode run "Create a file hello.txt with the content: hello"
# end
