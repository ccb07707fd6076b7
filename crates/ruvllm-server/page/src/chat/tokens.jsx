// The tokens of an answer with their probabilities, and what the model might have written instead.

import { useState } from "preact/hooks";

const share = (logprob) => Math.exp(logprob);
const percent = (logprob) => {
  const value = 100 * share(logprob);
  return value >= 99.95 ? "100 %" : value >= 0.1 ? `${value.toFixed(1)} %` : "< 0.1 %";
};
/** Tokens that are seen: blanks and ends of lines have marks. */
const visible = (text) => text.replace(/\n/g, "⏎").replace(/^ | $/g, "␣") || "∅";

/** One of five levels, for the colour. */
const level = (logprob) => [0.9, 0.6, 0.3, 0.1, 0].findIndex((least) => share(logprob) >= least);

/** The view. */
export function Tokens({ tokens, id }) {
  const [at, setAt] = useState(0);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (!step) return;
    event.preventDefault();
    setAt(Math.min(tokens.length - 1, Math.max(0, at + step)));
  };
  const mean = tokens.reduce((sum, token) => sum + token.logprob, 0) / tokens.length;
  const token = tokens[at];
  return (
    <section class="tokens" aria-label="Tokens">
      <div class="token-list" role="listbox" aria-label="Tokens of the answer; arrows move" tabIndex={0} aria-activedescendant={`${id}-${at}`} onKeyDown={move}>
        {tokens.map((one, i) => (
          <span key={i} id={`${id}-${i}`} role="option" aria-selected={i === at ? "true" : "false"} class={`token p${level(one.logprob)}`} onClick={() => setAt(i)} title={percent(one.logprob)}>
            {one.text.includes("\n") ? <>{visible(one.text)}<br /></> : one.text}
          </span>
        ))}
      </div>
      <div class="token-detail">
        <table>
          <caption>Token {at + 1} of {tokens.length}</caption>
          <thead><tr><th scope="col">Token</th><th scope="col">Probability</th><th scope="col"><span class="unseen">Bar</span></th></tr></thead>
          <tbody>
            {[{ ...token, isChosen: true }, ...token.top.filter((one) => one.text !== token.text)].map((one) => (
              <tr key={one.text} class={one.isChosen ? "chosen" : ""}>
                <td><code>{visible(one.text)}</code>{one.isChosen ? <span class="unseen"> (written)</span> : null}</td>
                <td>{percent(one.logprob)}</td>
                <td><meter min="0" max="1" value={share(one.logprob)} aria-label={`${percent(one.logprob)}`} /></td>
              </tr>
            ))}
          </tbody>
        </table>
        <p class="soft">Perplexity of the answer: {Math.exp(-mean).toFixed(2)}</p>
      </div>
    </section>
  );
}
