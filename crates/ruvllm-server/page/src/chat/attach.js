// Files of text that are attached to a question.

/** The most bytes of a file, and of all files of a question. */
const FILE_MAX = 1 << 20;
const ALL_MAX = 4 << 20;

/** Reads files; returns those that are text, and a line for each that is not taken. */
export async function readFiles(files, before) {
  const taken = [...before];
  const refused = [];
  for (const file of files) {
    const total = taken.reduce((sum, one) => sum + one.text.length, 0);
    if (file.size > FILE_MAX || total + file.size > ALL_MAX) {
      refused.push(`${file.name} is too large: a file may have 1 MiB, all together 4 MiB`);
      continue;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error("binary");
      taken.push({ name: unused(file.name || "text.txt", taken), text });
    } catch {
      refused.push(`${file.name} is no text; the model reads text only`);
    }
  }
  return { taken, refused };
}

function unused(name, taken) {
  const has = (candidate) => taken.some((one) => one.name === candidate);
  for (let n = 1; ; n++) {
    const candidate = n === 1 ? name : `${n}-${name}`;
    if (!has(candidate)) return candidate;
  }
}
