# docs: claude-code
export ANTHROPIC_BASE_URL=http://127.0.0.1:8080
export ANTHROPIC_AUTH_TOKEN=none
export ANTHROPIC_MODEL=qwen2.5-coder:0.5b
export ANTHROPIC_DEFAULT_HAIKU_MODEL=qwen2.5-coder:0.5b
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
claude -p "Create a file hello.txt with the content: hello" --tools Write Read --permission-mode acceptEdits
# end
