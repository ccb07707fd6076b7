// The reference server of files, from npm, in a chat: its tools are listed, asked about, called, and cut to size.

import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, realpathSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { MODEL, called, run, said } from "./report.mjs";

const folder = realpathSync(mkdtempSync(join(tmpdir(), "mcp-")));
writeFileSync(join(folder, "notes.txt"), "The harbour opens at seven.\n");
writeFileSync(join(folder, "big.txt"), "The harbour opens at seven.\n".repeat(400_000));
const config = join(folder, "mcp.json");
const server = { command: "mcp-server-filesystem", args: [folder], cwd: folder };
writeFileSync(config, JSON.stringify({ mcpServers: { fs: server } }));

/** Says lines to the model; returns the objects that the chat prints, and what it says beside them. */
function chat(lines, ...options) {
  const args = ["chat", "--model", MODEL, "--json", "--temp", "0", "--max-tokens", "120", "--mcp", config, ...options];
  const ended = spawnSync(process.env.RUVLLM, args, { input: lines, encoding: "utf8", timeout: 180_000 });
  if (ended.status !== 0) throw new Error(`rc ${ended.status}: ${ended.stderr}`);
  return [ended.stdout.trim().split("\n").map((line) => JSON.parse(line)), ended.stderr];
}

function holds(is, what) {
  if (!is) throw new Error(what);
}

function listed() {
  const [[object]] = chat("/tools\n", "--mcp-allow", "fs__read*");
  holds(/^fs__read_file +allowed /m.test(object.note), object.note);
  holds(/^fs__write_file +asks /m.test(object.note), object.note);
}

function tools() {
  const question = "Read the file notes.txt with the tool, and tell me when the harbour opens.\n";
  // Its only argument is the list of files: a small model fills in whatever else a tool takes.
  const [[answer]] = chat(question, "--mcp-choice", "fs__read_multiple_files", "--mcp-allow", "fs__read_multiple_files");
  const call = called(answer.calls);
  holds(call.tool === "read_multiple_files" && call.server === "fs", JSON.stringify(call));
  said(JSON.stringify(call.arguments.paths), "notes.txt");
  holds(call.outcome === "ran" && call.result.includes("opens at seven"), JSON.stringify(call));
  said(answer.text, "seven");
}

function free() {
  const question = "Use the tool fs__read_file to read the file notes.txt.\n";
  const [[answer]] = chat(question, "--mcp-allow", "fs__read_file");
  holds(answer.calls.every((call) => call.outcome !== "ran" || call.tool === "read_file"), JSON.stringify(answer.calls));
  said(called(answer.calls).result, "opens at seven");
}

function denied() {
  const question = "Write the word gone to the file notes.txt with the tool.\n";
  const [[answer], told] = chat(question, "--mcp-choice", "fs__write_file", "--mcp-allow", "fs__read_file");
  const denials = answer.calls.filter((call) => call.tool === "write_file");
  holds(denials.length > 0 && denials.every((call) => call.outcome === "denied"), JSON.stringify(answer.calls));
  holds(told.includes("fs__write_file was not run"), told);
  holds(readFileSync(join(folder, "notes.txt"), "utf8").includes("seven"), "the file was written");
}

function outside() {
  const question = "Read the file /etc/hostname with the tool.\n";
  const [[answer]] = chat(question, "--mcp-choice", "fs__read_file", "--mcp-allow", "fs__*");
  const call = called(answer.calls);
  said(JSON.stringify(call.arguments), "/etc/hostname");
  holds(call.outcome === "failed" && call.result.includes("outside allowed directories"), JSON.stringify(call));
}

function large() {
  const question = "Read the file big.txt with the tool.\n";
  const [[answer]] = chat(question, "--ctx", "16384", "--mcp-choice", "fs__read_multiple_files", "--mcp-allow", "fs__*");
  const call = called(answer.calls);
  said(JSON.stringify(call.arguments), "big.txt");
  holds(/\[the result has 112000\d\d bytes; these are the first 8192\]$/.test(call.result), call.result.slice(-100));
}

await run(listed, tools, free, denied, outside, large);
