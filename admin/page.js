// Shows /healthz and /v1/status and reads them again every two seconds. All
// text goes through textContent: names of topics and indices are not trusted.
"use strict";

const byId = (id) => document.getElementById(id);
const title = (key) => key.replaceAll("_", " ");
const isObject = (v) => v !== null && typeof v === "object";

function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

function cell(tag, value) {
  if (typeof value === "number") return element(tag, value.toLocaleString("en-US"), "number");
  if (Array.isArray(value)) return element(tag, value.map((v) => (isObject(v) ? JSON.stringify(v) : v)).join(", "));
  if (isObject(value)) return element(tag, JSON.stringify(value));
  return element(tag, value === null || value === "" ? "–" : String(value));
}

function row(tag, values) {
  const tr = element("tr");
  for (const v of values) tr.append(cell(tag, v));
  return tr;
}

// A list of objects becomes a table, an object a table of its plain values
// followed by a section for each part.
function show(into, name, value) {
  if (Array.isArray(value) && value.every(isObject)) {
    into.append(element("h2", title(name)));
    if (value.length === 0) return into.append(element("p", "none", "dim"));
    const columns = [...new Set(value.flatMap(Object.keys))];
    const table = element("table");
    table.append(row("th", columns.map(title)));
    for (const item of value) table.append(row("td", columns.map((c) => item[c] ?? "")));
    const scroll = element("div", undefined, "scroll");
    scroll.append(table);
    return into.append(scroll);
  }
  if (name) into.append(element("h2", title(name)));
  const plain = element("table");
  for (const [key, v] of Object.entries(value)) {
    if (!isObject(v) || (Array.isArray(v) && !v.every(isObject))) plain.append(row("td", [title(key), v]));
  }
  if (plain.childElementCount > 0) into.append(plain);
  for (const [key, v] of Object.entries(value)) {
    if (isObject(v) && (!Array.isArray(v) || v.every(isObject))) show(into, key, v);
  }
}

async function refresh() {
  try {
    const [health, status] = await Promise.all(
      ["/healthz", "/v1/status"].map((path) => fetch(path).then((answer) => answer.json())));
    const state = byId("state");
    const troubled = health.held_targets?.length > 0 || health.halted_partitions?.length > 0;
    state.textContent = health.state;
    state.className = health.state === "running" && !troubled ? "good" :
      troubled || health.state.startsWith("waiting") || health.state.startsWith("blocked") ? "bad" : "";
    byId("why").textContent = [health.reason, "since " + new Date(health.since).toLocaleString()].filter(Boolean).join(", ");
    const into = element("main");
    into.id = "status";
    show(into, "", { ...status, held_targets: health.held_targets ?? [], halted_partitions: health.halted_partitions ?? [] });
    byId("status").replaceWith(into);
    byId("seen").textContent = "read " + new Date().toLocaleTimeString();
  } catch (err) {
    byId("state").textContent = "not reachable";
    byId("state").className = "bad";
  }
  setTimeout(refresh, 2000);
}

refresh();
