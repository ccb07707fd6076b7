export * from '@ruvllm/node';
