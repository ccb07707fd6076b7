// Mathematics in Markdown: `$x$` and `\(x\)` in a line, `$$x$$` and `\[x\]` on lines of their own.

/** Formulas longer than this are shown as they are written. */
export const TEX_MAX = 4000;

// As in Pandoc: no blank inside the dollars, and no digit behind them, so prices are none.
const IN_LINE = /^(?:\$\$([^$\n]+?)\$\$|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)|\\\((.+?)\\\))/s;
const ON_LINES = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;

/** Returns marked's extensions: formulas become elements that hold their text. */
export function mathExtensions(escaped) {
  const element = (tag, tex, isDisplay) => `<${tag} data-tex="${escaped(tex)}" data-display="${isDisplay}">${escaped(tex)}</${tag}>`;
  const inLine = {
    name: "math",
    level: "inline",
    start: (text) => text.match(/\$|\\\(/)?.index,
    tokenizer(text) {
      const found = IN_LINE.exec(text);
      const tex = found?.slice(1).find((part) => part !== undefined)?.trim();
      return tex && tex.length <= TEX_MAX ? { type: "math", raw: found[0], tex, isDisplay: found[1] !== undefined } : undefined;
    },
    renderer: ({ tex, isDisplay }) => element("span", tex, isDisplay),
  };
  const onLines = {
    name: "mathBlock",
    level: "block",
    start: (text) => text.match(/\n {0,3}(?:\$\$|\\\[)/)?.index,
    tokenizer(text) {
      const found = ON_LINES.exec(text);
      const tex = (found?.[1] ?? found?.[2])?.trim();
      return tex && tex.length <= TEX_MAX ? { type: "mathBlock", raw: found[0], tex } : undefined;
    },
    renderer: ({ tex }) => element("div", tex, true),
  };
  return [inLine, onLines];
}
