"""The langchain-ollama package."""

import langchain_checks

# docs: langchain-ollama
from langchain_ollama import ChatOllama

model = ChatOllama(model="qwen2.5-coder:0.5b", base_url="http://127.0.0.1:8080")
print(model.invoke("What is the capital of France?").text)
# end

langchain_checks.run(model.model_copy(update={"temperature": 0, "num_predict": 80}))
