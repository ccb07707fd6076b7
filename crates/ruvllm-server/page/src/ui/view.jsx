// What all views beside the conversation are made of: a head, a state while they read, and lines of what went wrong.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

/** A view with its title and what stands beside it. */
export function View({ menu, title, children, actions }) {
  const head = useRef(null);
  useEffect(() => {
    head.current.focus({ preventScroll: true });
  }, []);
  return (
    <>
      <header class="bar of-view">
        {menu}
        <h1 ref={head} tabIndex={-1}>{title}</h1>
        <div class="row">{actions}</div>
      </header>
      <div class="view" tabIndex={0} role="region" aria-label={title}><div class="sheet">{children}</div></div>
    </>
  );
}

/** Reads something when a view opens, and every so many seconds while it is seen. Returns it, what went wrong, and how to read again. */
export function useRead(read, seconds, key = "") {
  const [state, setState] = useState({ value: null, error: null });
  const isThere = useRef(true);
  const again = useCallback(async () => {
    try {
      const value = await read();
      if (isThere.current) setState({ value, error: null });
    } catch (error) {
      if (isThere.current) setState((before) => ({ ...before, error }));
    }
  }, [key]);
  useEffect(() => {
    isThere.current = true;
    again();
    const timer = seconds ? setInterval(() => document.hidden || again(), 1000 * seconds) : null;
    return () => {
      isThere.current = false;
      clearInterval(timer);
    };
  }, [again]);
  return { ...state, again };
}

/** What is shown while there is nothing yet, or where something went wrong. */
export function Pending({ error, what }) {
  return error ? <p class="wrong" role="alert">{error.message}</p> : <p class="soft">Reading {what}…</p>;
}

/** A time as people write it: the hour today, the day otherwise. */
export function when(ms) {
  const date = new Date(ms);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** Bytes as people write them. */
export function bytes(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const i = n < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  return `${(n / 2 ** (10 * i)).toFixed(i ? 1 : 0)} ${units[i]}`;
}

/** Saves a text as a file. */
export function download(name, text, type = "application/json") {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([text], { type }));
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}
