// From the Markdown of a model, which is not to be trusted, to elements that can do nothing.
//
// Three walls stand behind each other: HTML in the text is shown as text, but for a few bare tags; what marked makes is read by
// DOMPurify with a short list of what may stay; and the server's policy lets no script, style or address in but the page's own.

import DOMPurify from "dompurify";
import { Marked } from "marked";
import { mathExtensions } from "./tex.js";

/** Bare tags that a text may have. */
const BARE = new Set("b br code del details em hr i ins kbd li mark ol p pre s small strong sub summary sup table tbody td th thead tr u ul".split(" "));
const ALLOWED = [...BARE, "a", "blockquote", "div", "h1", "h2", "h3", "h4", "h5", "h6", "span", "tfoot"];

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
/** Returns text as HTML that shows it. */
const escaped = (text) => text.replace(/[&<>"']/g, (c) => escapes[c]);

/** Returns HTML with its bare tags and everything else as text. */
function bare(html) {
  const isBare = (part) => BARE.has(/^<\/?([a-z]+[1-6]?)\s*\/?>$/i.exec(part)?.[1]?.toLowerCase());
  return html.split(/(<\/?[a-z][^<>]*>)/i).map((part) => (isBare(part) ? part : escaped(part))).join("");
}

/** Returns whether an address may be gone to: of the web, or of mail. */
function isSafe(href) {
  try {
    return ["http:", "https:", "mailto:"].includes(new URL(href).protocol);
  } catch {
    return false;
  }
}

function link(href, title, inner) {
  if (!isSafe(href)) return inner;
  return `<a href="${escaped(href)}"${title ? ` title="${escaped(title)}"` : ""}>${inner}</a>`;
}

const marked = new Marked({
  gfm: true,
  breaks: false,
  extensions: mathExtensions(escaped),
  renderer: {
    html: ({ text }) => bare(text),
    code: ({ text, lang }) => `<pre><code data-lang="${escaped((lang ?? "").split(/\s/)[0].slice(0, 30))}">${escaped(text)}\n</code></pre>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // An image would tell its server that it was read, and in its address whatever the model put there.
    image: ({ href, title, text }) => link(href, title, `image: ${escaped(text || href)}`) ,
    link({ href, title, tokens }) {
      return link(href, title, this.parser.parseInline(tokens));
    },
  },
});

const PLAIN = ["title", "align", "start", "data-lang", "data-tex", "data-display"];

const purifier = {
  ALLOWED_TAGS: ALLOWED,
  ALLOWED_ATTR: ["href", ...PLAIN],
  // Their values are no addresses.
  ADD_URI_SAFE_ATTR: PLAIN,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

/** Returns HTML as elements without anything that acts: only these tags, with these attributes. */
export function clean(html, tags, attributes) {
  return DOMPurify.sanitize(html, { ...purifier, ALLOWED_TAGS: tags, ALLOWED_ATTR: attributes, ADD_URI_SAFE_ATTR: attributes });
}

/** Cuts a text into blocks: each is made anew only where its text changes. */
export function blocks(text) {
  const lexed = marked.lexer(text);
  return { links: lexed.links, all: lexed.filter((token) => token.type !== "space") };
}

/** Returns a block as elements. */
export function rendered(token, links) {
  const fragment = DOMPurify.sanitize(marked.parser(Object.assign([token], { links })), purifier);
  for (const anchor of fragment.querySelectorAll("a")) {
    anchor.target = "_blank";
    anchor.rel = "noopener noreferrer nofollow";
  }
  for (const table of fragment.querySelectorAll("table")) wrap(table);
  return fragment;
}

/** A wide table is scrolled by itself. */
function wrap(table) {
  const box = document.createElement("div");
  box.className = "table";
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Table");
  table.replaceWith(box);
  box.append(table);
}
