// Focus: where what had it is gone, it goes to what stands in its place, so nobody has to begin at the top again.

/** Moves the focus to the first of these that is there, unless something has it. */
export function keepFocus(...selectors) {
  const look = () => {
    if (document.activeElement && document.activeElement !== document.body) return;
    for (const selector of selectors) {
      const element = document.querySelector(selector);
      if (element) {
        element.focus({ preventScroll: true });
        return;
      }
    }
  };
  // Once it was drawn.
  requestAnimationFrame(() => requestAnimationFrame(look));
}
