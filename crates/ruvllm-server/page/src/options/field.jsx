// One setting: its name, what it does, and a place to write it.

import { useState } from "preact/hooks";
import { label, read, usual, write } from "./fields.js";

/** A setting of the conversation. `set` is told the value, or undefined where it is left to the server. */
export function Field({ field, value, set }) {
  const [draft, setDraft] = useState(null);
  const [why, setWhy] = useState(null);
  const id = `field-${field.name}`;
  const change = (text) => {
    setDraft(text);
    try {
      set(read(field, text));
      setWhy(null);
    } catch (error) {
      setWhy(error.message);
    }
  };
  const own = {
    id,
    name: field.name,
    value: draft ?? write(field, value),
    "aria-describedby": `${id}-does`,
    "aria-invalid": why ? "true" : undefined,
    onInput: (event) => change(event.currentTarget.value),
    onBlur: () => why === null && setDraft(null),
  };
  return (
    <div class={`field ${field.kind}${value === undefined ? "" : " is-set"}`}>
      <label for={id}>{label(field.name)}</label>
      <Input field={field} own={own} />
      <p class="does" id={`${id}-does`}>
        {why ? <strong class="wrong">{why}. </strong> : null}
        {field.does}
      </p>
    </div>
  );
}

function Input({ field, own }) {
  switch (field.kind) {
    case "number":
      return <input {...own} type="text" inputmode="decimal" autocomplete="off" placeholder={usual(field.name) ?? "default"} />;
    case "boolean":
      return <Choice own={own} values={["true", "false"]} names={["yes", "no"]} />;
    case "enum":
      return <Choice own={own} values={field.values} names={field.values} />;
    case "lines":
      return <textarea {...own} rows="2" placeholder="one a line" />;
    case "json":
      return <textarea {...own} rows="2" spellcheck={false} placeholder="JSON" class="mono" />;
    default:
      return <input {...own} type="text" autocomplete="off" />;
  }
}

function Choice({ own, values, names }) {
  const { onInput, ...rest } = own;
  return (
    <select {...rest} onChange={onInput}>
      <option value="">default</option>
      {values.map((value, i) => <option key={value} value={value}>{names[i]}</option>)}
    </select>
  );
}
