// A conversation is a tree: every message knows the one before it, and answers to one question are siblings.
// Functions here return new conversations and change none.

/** Returns a name that is not used yet. */
export const newId = () => crypto.randomUUID();

/** Returns an empty conversation that is asked as `like` is. */
export function newConversation(like) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    nodes: {},
    leaf: null,
    model: like?.model ?? "",
    adapter: like?.adapter ?? "",
    system: like?.system ?? "",
    // Small models often find no end.
    settings: { ...(like?.settings ?? { max_tokens: 1024 }) },
    format: { ...(like?.format ?? { kind: "text" }) },
    tools: { ...(like?.tools ?? { text: "", isOn: false }) },
    hasTokens: like?.hasTokens ?? false,
  };
}

/** Returns the messages from the first one to `leaf`. */
export function path(conversation, leaf = conversation.leaf) {
  const found = [];
  for (let id = leaf; id && conversation.nodes[id]; id = conversation.nodes[id].parent) {
    found.push(conversation.nodes[id]);
  }
  return found.reverse();
}

/** Returns the messages behind the same message, the oldest first. */
export function siblings(conversation, node) {
  const all = Object.values(conversation.nodes).filter((other) => other.parent === node.parent);
  return all.sort((a, b) => a.created - b.created || (a.choice ?? 0) - (b.choice ?? 0));
}

/** Returns the newest message below `id`, which it is itself if nothing came behind it. */
export function newestBelow(conversation, id) {
  for (;;) {
    const children = Object.values(conversation.nodes).filter((node) => node.parent === id);
    if (children.length === 0) return id;
    id = children.sort((a, b) => a.created - b.created).at(-1).id;
  }
}

/** Returns the conversation with another message, which is the last one from then on. */
export function add(conversation, node) {
  const nodes = { ...conversation.nodes, [node.id]: node };
  return { ...conversation, nodes, leaf: node.id, updated: Date.now() };
}

/** Returns the conversation with a message changed; what is not there any more is not changed. */
export function patch(conversation, id, change) {
  const node = conversation.nodes[id];
  if (!node) return conversation;
  return { ...conversation, nodes: { ...conversation.nodes, [id]: { ...node, ...change } }, updated: Date.now() };
}

/** Returns a title: the beginning of the first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = path(conversation).find((node) => node.role === "user");
  const text = (first?.content || first?.attachments?.[0]?.name || "").trim().replace(/\s+/g, " ");
  return text.length > 60 ? `${text.slice(0, 58)}…` : text || "New conversation";
}
