// Formulas as MathML, which browsers draw with their own fonts. Loaded when an answer first has one.

import temml from "temml";

/** Returns a formula as the text of a MathML element. Nothing in it may lead anywhere or name a class. */
export function mathml(tex, isDisplay) {
  const html = temml.renderToString(tex, { displayMode: isDisplay, throwOnError: true, trust: false, strict: false, maxSize: [20, 200], maxExpand: 200 });
  // Styles within elements are not allowed here, and would only be complained of.
  return html.replace(/ style="[^"]*"/g, "");
}
