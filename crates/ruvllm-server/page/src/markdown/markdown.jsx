// Markdown of an answer, block by block: while it grows, what stands already is left alone.

import { memo } from "./memo.js";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { tell } from "../state.js";
import { blocks, clean, rendered } from "./render.js";
import { TEX_MAX } from "./tex.js";

/** Code longer than this has no colours. */
const CODE_MAX = 40000;

// Both are files of their own beside this one.
const modules = {};
const highlighter = () => (modules.highlight ??= import("./highlight.js"));
const mathematics = () => (modules.math ??= import("./math.js"));

/** A text in Markdown. */
export function Markdown({ text }) {
  const { links, all } = useMemo(() => blocks(text), [text]);
  // A reference may be defined behind its use.
  const known = Object.keys(links).join("\n");
  return <div class="prose">{all.map((token, i) => <Block key={i} token={token} links={links} raw={token.raw + known} />)}</div>;
}

const Block = memo(
  ({ token, links }) => {
    const box = useRef(null);
    useLayoutEffect(() => {
      box.current.replaceChildren(rendered(token, links));
      decorate(box.current);
    }, [token.raw, links]);
    return <div class="block" ref={box} />;
  },
  (before, after) => before.raw === after.raw,
);

/** Adds colours, formulas and buttons for copying. */
function decorate(box) {
  for (const code of box.querySelectorAll("pre > code")) dress(code);
  for (const element of box.querySelectorAll("[data-tex]")) draw(element);
}

function dress(code) {
  const language = code.dataset.lang ?? "";
  const frame = document.createElement("figure");
  frame.className = "code";
  const head = document.createElement("figcaption");
  const name = document.createElement("span");
  name.textContent = language || "text";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy the code${language ? ` in ${language}` : ""}`);
  button.addEventListener("click", async () => {
    const isCopied = await copy(code.textContent.replace(/\n$/, ""));
    button.textContent = isCopied ? "Copied" : "Copy";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  head.append(name, button);
  code.parentElement.replaceWith(frame);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  pre.append(code);
  frame.append(head, pre);
  if (language && code.textContent.length <= CODE_MAX) colour(code, language);
}

async function colour(code, language) {
  const { coloured } = await highlighter();
  const html = coloured(code.textContent, language.toLowerCase());
  if (html && code.isConnected) code.replaceChildren(clean(html, ["span"], ["class"]));
}

async function draw(element) {
  const { tex, display } = element.dataset;
  if (tex.length > TEX_MAX) return;
  const { mathml } = await mathematics();
  try {
    const html = mathml(tex, display === "true");
    const drawn = clean(html, MATHML, MATHML_ATTRIBUTES);
    element.replaceChildren(drawn);
  } catch {
    // A formula that is wrong, or not written to its end yet, is shown as it is written.
    element.classList.add("tex");
  }
}

const MATHML = "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none semantics".split(" ");
const MATHML_ATTRIBUTES = "accent accentunder class columnalign columnlines columnspacing columnspan depth display displaystyle fence form height largeop linethickness lspace mathsize mathvariant maxsize minsize movablelimits notation rowalign rowlines rowspacing rowspan rspace scriptlevel separator stretchy symmetric voffset width".split(" ");

/** Puts a text on the clipboard; says so, or why not. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied");
    return true;
  } catch {
    return copyOld(text);
  }
}

/** Without encryption browsers have no clipboard but this. */
function copyOld(text) {
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "unseen";
  document.body.append(box);
  box.select();
  const isCopied = document.execCommand("copy");
  box.remove();
  tell(isCopied ? "Copied" : "This browser does not let the page copy.", !isCopied);
  return isCopied;
}
