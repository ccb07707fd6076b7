# docs: qwen-code
export OPENAI_BASE_URL=http://127.0.0.1:8080/v1
export OPENAI_API_KEY=none
export OPENAI_MODEL=qwen2.5-coder:0.5b
qwen --auth-type openai --yolo --prompt "Create a file hello.txt with the content: hello"
# end
