// Shows what one replica does: /v1/events tells once a second. All text goes
// through textContent: names of topics, indices and customers are not trusted.
"use strict";

const byId = (id) => document.getElementById(id);
const kept = 300; // seconds in the charts
const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (n) => number.format(Math.round(n));

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return (n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)) + " " + unit;
    n /= 1024;
  }
}

function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

const ago = (time) => (time ? duration(Math.max(0, (Date.now() - new Date(time)) / 1000)) : "–");

function text(id, value) {
  const e = byId(id);
  if (e.textContent !== value) e.textContent = value;
}

function element(tag, content, className) {
  const e = document.createElement(tag);
  if (content !== undefined) e.textContent = content;
  if (className) e.className = className;
  return e;
}

// table replaces what is in a place by a table. Columns are {title, value,
// number, long, code}.
function table(place, caption, columns, rows, none) {
  place = byId(place);
  if (rows.length === 0) return place.replaceChildren(...(none ? [element("p", none, "dim")] : []));
  const t = element("table");
  t.setAttribute("aria-label", caption);
  const head = t.createTHead().insertRow();
  for (const c of columns) {
    const th = element("th", c.title, c.number ? "number" : "");
    th.scope = "col";
    head.append(th);
  }
  const body = t.createTBody();
  for (const r of rows) {
    const tr = body.insertRow();
    for (const c of columns) {
      const td = element("td", undefined, c.number ? "number" : c.long ? "long" : "");
      const v = c.value(r);
      if (c.code) td.append(element("code", v)); else td.textContent = v;
      tr.append(td);
    }
  }
  const scroll = element("div", undefined, "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", caption + ", a table");
  scroll.append(t);
  const old = place.querySelector(".scroll");
  const [x, y, focused] = old ? [old.scrollLeft, old.scrollTop, document.activeElement === old] : [0, 0, false];
  place.replaceChildren(scroll);
  scroll.scrollLeft = x;
  scroll.scrollTop = y;
  if (focused) scroll.focus({ preventScroll: true });
}

// ---- charts

const times = [];
const charts = [];

function color(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function chart(id, series) {
  const place = byId(id);
  const c = { place, series, data: series.map(() => []), plot: null };
  c.draw = () => {
    if (c.plot) c.plot.destroy();
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
    c.plot = new uPlot({
      width: Math.max(200, place.clientWidth), height: 160, cursor: { sync: { key: "sluice" } },
      scales: { y: { range: (_, min, max) => [0, max > 0 ? max * 1.1 : 1] } },
      axes: [{ ...axis }, { ...axis, size: 64, values: (_, all) => all.map((v) => (v >= 1e6 ? v / 1e6 + " M" : v >= 1e4 ? v / 1e3 + " k" : v)) }],
      series: [{}, ...series.map((s) => ({ label: s.label, stroke: color(s.color), width: 1.5, points: { show: false }, value: (_, v) => (v == null ? "–" : count(v)) }))],
    }, [times, ...c.data], place);
  };
  charts.push(c);
  return c;
}

const rateChart = chart("chart-rate", [{ label: "read", color: "--one" }, { label: "handled", color: "--three" }]);
const lagChart = chart("chart-lag", [{ label: "lag", color: "--two" }]);
const requestChart = chart("chart-requests", [{ label: "in flight", color: "--one" }, { label: "limit", color: "--two" }]);
const memoryChart = chart("chart-memory", [{ label: "used", color: "--one" }, { label: "limit", color: "--two" }]);

function remember(at, values) {
  times.push(at);
  charts.forEach((c, i) => values[i].forEach((v, j) => c.data[j].push(v)));
  while (times.length > 0 && times[0] < at - kept) {
    times.shift();
    for (const c of charts) for (const d of c.data) d.shift();
  }
  if (!document.hidden) for (const c of charts) c.plot.setData([times, ...c.data]);
}

function redraw() { for (const c of charts) c.draw(); }

new ResizeObserver(() => {
  for (const c of charts) {
    const width = Math.max(200, c.place.clientWidth);
    if (c.plot && c.plot.width !== width) c.plot.setSize({ width, height: 160 });
  }
}).observe(document.body);

// ---- theme

function theme(name) {
  document.documentElement.dataset.theme = name;
  redraw();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("sluice-theme"); } catch { /* not allowed: the system's it is */ }
theme(chosen ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!chosen) theme(dark.matches ? "dark" : "light"); });
byId("theme").addEventListener("click", () => {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("sluice-theme", chosen); } catch { /* it lasts as long as the page */ }
  theme(chosen);
});

// ---- what is told

let before = null; // {at, live}

const handled = (r) => r.indexed + r.deleted + r.stale + r.dead_lettered + r.parked + r.ignored;

// perSecond is how fast a count grew since the last telling; partitions that
// came or went make it negative or too large, so it is bounded below.
function perSecond(now, old, seconds) { return old === undefined || seconds <= 0 ? 0 : Math.max(0, now - old) / seconds; }

function show(live, at) {
  const seconds = before ? at - before.at : 0;
  const old = before?.live;
  const sameHolding = old && old.partitions === live.partitions;
  const rate = (of) => (sameHolding ? perSecond(of(live), of(old), seconds) : 0);
  const read = rate((l) => l.records.consumed), done = rate((l) => handled(l.records));

  const troubled = live.held_count > 0 || live.halted.length > 0;
  const state = byId("state");
  text("state", live.state);
  state.className = "pill " + (live.state === "running" && !troubled ? "good" :
    troubled || live.state.startsWith("waiting") || live.state.startsWith("blocked") ? "bad" : "");
  text("why", [live.reason, "for " + ago(live.since)].filter(Boolean).join(", "));
  text("who", live.version + (live.group ? ", group " + live.group : ""));

  text("flow-in", count(read) + " /s");
  text("flow-lag", "lag " + count(live.lag) + (live.lag_unknown > 0 ? " + ?" : "") + ", " + live.partitions + " partitions");
  text("flow-held", bytes(live.memory.used_bytes));
  text("flow-memory", "of " + bytes(live.memory.limit_bytes) + ", " + count(live.records.in_flight) + " records");
  text("flow-indexers", String(live.indexer.indexers));
  text("flow-procs", "active, GOMAXPROCS " + live.gomaxprocs);
  text("flow-out", count(done) + " /s");
  text("flow-requests", live.elasticsearch.available
    ? live.indexer.requests_in_flight + " of " + live.indexer.requests_limit + " requests" + (live.indexer.throttled ? ", throttled" : "")
    : "not available");
  text("flow-letters", count(live.records.dead_lettered));
  text("flow-waiting", live.dead_letters ? live.dead_letters.waiting + " wait" : "nowhere to put them");

  const falling = sameHolding && seconds > 0 ? (old.lag - live.lag) / seconds : 0;
  text("seen", "told at " + new Date(at * 1000).toLocaleTimeString());
  remember(at, [[read, done], [live.lag], [live.indexer.requests_in_flight, live.indexer.requests_limit],
    [live.memory.used_bytes / 1048576, live.memory.limit_bytes / 1048576]]);

  byId("trouble").hidden = !troubled;
  table("halted", "halted partitions", [
    { title: "partition", value: (h) => h.topic + "/" + h.partition },
    { title: "stands at", value: (h) => (h.offset < 0 ? "–" : count(h.offset)), number: true },
    { title: "kind", value: (h) => h.kind },
    { title: "why", value: (h) => h.reason, long: true },
    { title: "for", value: (h) => ago(h.since), number: true },
    { title: "to pass it", value: (h) => (h.offset < 0 ? "see the documentation of this kind" : "sluice skip " + h.topic + "/" + h.partition + "/" + h.offset), code: true },
  ], live.halted);
  table("held", "held targets", [
    { title: "target", value: (h) => h.target, long: true },
    { title: "why", value: (h) => h.reason },
    { title: "for", value: (h) => ago(h.since), number: true },
    { title: "waiting", value: (h) => bytes(h.bytes), number: true },
  ], live.held);
  if (live.held_count > live.held.length) byId("held").append(element("p", "and " + count(live.held_count - live.held.length) + " more: sluice target list", "dim"));

  const topicBefore = new Map((sameHolding ? old.topics : []).map((t) => [t.topic, t]));
  table("topics", "topics", [
    { title: "topic", value: (t) => t.topic, long: true },
    { title: "partitions", value: (t) => count(t.partitions), number: true },
    { title: "records/s", value: (t) => count(perSecond(handled(t.records), topicBefore.has(t.topic) ? handled(topicBefore.get(t.topic).records) : undefined, seconds)), number: true },
    { title: "lag", value: (t) => count(t.lag) + (t.lag_unknown > 0 ? " + ?" : ""), number: true },
    { title: "behind", value: (t) => duration(t.lag_seconds), number: true },
    { title: "ETA", value: (t) => (t.lag === 0 ? "–" : falling > 0 ? duration(t.lag / falling) : "does not fall"), number: true },
    { title: "stand", value: (t) => (t.partitions_halted > 0 ? t.partitions_halted + " halted" : t.partitions_waiting > 0 ? t.partitions_waiting + " wait" : "–") },
  ], live.topics, "none of this replica's: it holds no partition");

  byId("customers-section").hidden = !live.customers?.length;
  table("customers", "customers by bytes in the last minutes", [
    { title: "customer", value: (c) => c.customer, long: true },
    { title: "bytes/s", value: (c) => bytes(c.bytes_per_second), number: true },
    { title: "share", value: (c) => (100 * c.share).toFixed(1) + " %", number: true },
  ], live.customers ?? []);
  const letters = Object.entries(live.dead_letters?.reasons ?? {}).sort((a, b) => b[1] - a[1]);
  byId("letters-section").hidden = letters.length === 0;
  table("letters", "dead letters by reason", [
    { title: "reason", value: (l) => l[0], long: true },
    { title: "letters", value: (l) => count(l[1]), number: true },
  ], letters);
  before = { at, live };
}

// ---- partitions and jobs: asked for while somebody looks

const details = byId("partitions-details");

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(path + ": " + answer.status);
  return answer.json();
}

async function showPartitions() {
  if (!details.open || document.hidden) return;
  const status = await ask("v1/status");
  const all = status.consumer.partitions ?? [];
  table("partitions", "partitions", [
    { title: "partition", value: (p) => p.topic + "/" + p.partition },
    { title: "state", value: (p) => (p.halt ? "halted: " + p.halt.kind : p.state) },
    { title: "position", value: (p) => (p.position < 0 ? "?" : count(p.position)), number: true },
    { title: "committed", value: (p) => (p.committed < 0 ? "–" : count(p.committed)), number: true },
    { title: "log end", value: (p) => (p.end < 0 ? "?" : count(p.end)), number: true },
    { title: "lag", value: (p) => (p.lag < 0 ? "?" : count(p.lag)), number: true },
    { title: "behind", value: (p) => duration(p.lag_seconds), number: true },
    { title: "in flight", value: (p) => count(p.in_flight), number: true },
    { title: "queue", value: (p) => bytes(p.queue_bytes), number: true },
    { title: "stuck at", value: (p) => (p.halt && p.halt.offset >= 0 ? count(p.halt.offset) : "–"), number: true },
  ], all, "none");
}

let jobs = true; // until the server says that it has none
async function showJobs() {
  if (!jobs || document.hidden) return;
  const answer = await fetch("v1/jobs", { cache: "no-store" });
  if (answer.status === 404) { jobs = false; return; }
  if (!answer.ok) return;
  const all = await answer.json();
  byId("jobs-section").hidden = all.length === 0;
  table("jobs", "migrations", [
    { title: "job", value: (j) => j.name },
    { title: "state", value: (j) => j.state },
    { title: "status", value: (j) => j.line, long: true, code: true },
    { title: "next", value: (j) => j.advice, long: true },
  ], all);
}

details.addEventListener("toggle", () => showPartitions().catch(() => {}));
setInterval(() => { showPartitions().catch(() => {}); showJobs().catch(() => {}); }, 5000);
showJobs().catch(() => {});

// ---- the stream

let lostAt = null;

function lost() {
  lostAt ??= Date.now();
  byId("lost").hidden = false;
  text("lost", "The connection is lost since " + new Date(lostAt).toLocaleTimeString() + ": what stands here is old. Trying again.");
  byId("state").className = "pill";
}

function listen() {
  const events = new EventSource("v1/events");
  let alive = Date.now();
  // The browser itself tries again, but where it has given up.
  const broken = () => {
    lost();
    if (events.readyState === EventSource.CLOSED) { clearInterval(watch); setTimeout(listen, 2000); }
  };
  const watch = setInterval(() => { if (Date.now() - alive >= 5000) broken(); }, 1000);
  events.onmessage = (e) => {
    alive = Date.now();
    lostAt = null;
    byId("lost").hidden = true;
    show(JSON.parse(e.data), alive / 1000);
  };
  events.onerror = broken;
}

listen();
