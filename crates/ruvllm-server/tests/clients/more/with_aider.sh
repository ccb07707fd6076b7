# docs: aider
export OPENAI_API_BASE=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none
aider --model openai/qwen2.5-coder:0.5b --edit-format whole --no-git --yes-always --no-show-model-warnings \
    --message "Create a file hello.txt with the content: hello" hello.txt
# end
