// Short ways to the elements of the page.

export const byId = (id) => document.getElementById(id);

/** Makes an element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Writes a line, or hides where it stands. */
export function line(element, text) {
  element.textContent = text;
  element.hidden = text === '';
}
