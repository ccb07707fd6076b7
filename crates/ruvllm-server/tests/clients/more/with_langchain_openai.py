"""The langchain-openai package."""

import langchain_checks

# docs: langchain-openai
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="qwen2.5-coder:0.5b", base_url="http://127.0.0.1:8080/v1", api_key="none")
print(model.invoke("What is the capital of France?").text)
# end

langchain_checks.run(model.model_copy(update={"temperature": 0, "max_tokens": 80}), tool_choice="required")
