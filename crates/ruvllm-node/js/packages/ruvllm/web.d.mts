export * from '@ruvllm/web';
