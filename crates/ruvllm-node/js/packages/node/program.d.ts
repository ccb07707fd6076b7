/** Returns the path of the program `ruvllm` of this platform. */
declare function program(): string;
export = program;
