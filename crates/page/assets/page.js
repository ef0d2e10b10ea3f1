// The module of kai's page. The page works without it; with it the page is live and has search and keys.
//
// The server sends changes of blocks, which are elements with ids (crates/page/src/blocks.rs). This module puts them in place, and does
// nothing else to them: it makes no HTML of its own from data of the cluster.

const view = document.getElementById("view");
const state = document.getElementById("state");
const search = document.getElementById("search");
const panel = document.getElementById("panel");
const tip = document.getElementById("tip");
let seen = document.body.dataset.digest;

// ---- Ages: computed here, so that the passing of time changes no block.

// How far the browser's clock is off, in milliseconds.
const offset = Date.now() - (Date.parse(document.body.dataset.now) || Date.now());

function age(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

function showAges(root) {
  const now = Date.now() - offset;
  for (const time of root.querySelectorAll("time")) {
    const then = Date.parse(time.dateTime);
    if (Number.isNaN(then)) continue;
    const text = age((now - then) / 1000);
    if (time.textContent !== text) time.textContent = text;
    if (!time.title) time.title = time.dateTime;
  }
}

// ---- Changes of blocks.

function parse(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

function place(element, into, after) {
  const parent = document.getElementById(into);
  const before = after && document.getElementById(after);
  if (before) before.after(element);
  else parent?.prepend(element);
}

// What a new element needs once it is in its place.
function settle(element) {
  showAges(element);
  if (words.length) dim(element);
}

const steps = {
  remove: ({ id }) => document.getElementById(id)?.remove(),
  move: ({ id, into, after }) => {
    const element = document.getElementById(id);
    if (element) place(element, into, after);
  },
  insert: ({ html, into, after }) => {
    const element = parse(html);
    if (!element) return;
    place(element, into, after);
    settle(element);
  },
  replace: ({ id, html }) => {
    const old = document.getElementById(id);
    const element = parse(html);
    if (!old || !element) return;
    const kept = keepCells(old, element);
    if (!kept) old.replaceWith(element);
    settle(kept ? old : element);
  },
};

// Replaces only the cells of a row that differ: when one workload starts, the positions of hundreds change, and nothing else in their rows.
function keepCells(old, row) {
  const lookOf = (element) => [...element.classList].filter((name) => name !== "dim").join(" ");
  const isRow = old.matches("tbody > tr") && old.children.length === row.children.length && lookOf(old) === lookOf(row);
  if (!isRow) return false;
  showAges(row);
  for (const [at, cell] of [...row.children].entries()) {
    if (!old.children[at].isEqualNode(cell)) old.children[at].replaceWith(cell);
  }
  return true;
}

// Elements that have the focus may be replaced or moved; the same link gets it back.
function keepingFocus(change) {
  const active = document.activeElement;
  const row = view.contains(active) ? active.closest("[id]")?.id : null;
  const href = active?.getAttribute?.("href");
  change();
  if (row && !document.contains(active)) {
    const place = document.getElementById(row);
    const links = place ? [...place.querySelectorAll("a")] : [];
    (links.find((link) => link.getAttribute("href") === href) ?? links[0])?.focus({ preventScroll: true });
  } else if (row && document.activeElement !== active) {
    active.focus({ preventScroll: true });
  }
}

function apply(event, empty) {
  const begin = performance.now();
  const changes = JSON.parse(event.data);
  keepingFocus(() => {
    if (empty) view.replaceChildren();
    for (const change of changes) for (const [name, step] of Object.entries(change)) steps[name]?.(step);
  });
  seen = event.lastEventId || seen;
  // For tests and for the curious: the number of the change, and the milliseconds until it was drawn. A message that is sent in a frame
  // comes after the frame.
  const number = Number(view.dataset.changes ?? 0) + 1;
  view.dataset.changes = String(number);
  requestAnimationFrame(() => {
    const frame = new MessageChannel();
    frame.port1.onmessage = () => (view.dataset.drawn = `${number} ${(performance.now() - begin).toFixed(1)}`);
    frame.port2.postMessage(null);
  });
}

// ---- The stream of changes. It is closed while nobody sees the page.

let source = null;
let retry = 0;

function say(text) {
  if (state.textContent !== text) state.textContent = text;
  state.dataset.state = text;
}

function streamAddress() {
  const address = location.pathname + location.search;
  return `/events?view=${encodeURIComponent(address)}&seen=${encodeURIComponent(seen ?? "")}`;
}

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(streamAddress());
  source.onopen = () => say("live");
  source.addEventListener("change", (event) => apply(event, false));
  source.addEventListener("reset", (event) => apply(event, true));
  source.addEventListener("time", (event) => {
    const time = document.querySelector("footer time");
    if (time && event.data) {
      time.dateTime = event.data;
      time.title = event.data;
    }
  });
  // The access has changed: the page comes again with what it may show now.
  source.addEventListener("access", () => location.reload());
  source.onerror = () => {
    say("reconnecting");
    // The browser tries again by itself, unless the server answered with a status.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(reconnect, 3000);
  };
}

async function reconnect() {
  try {
    const answer = await fetch(streamAddress(), { method: "HEAD" });
    if (answer.status === 401) return location.reload();
    // The server is well, and says when to come again.
    if (answer.headers.has("retry-after")) {
      say("too many pages are open");
      retry = setTimeout(reconnect, 1000 * Number(answer.headers.get("retry-after")));
      return;
    }
  } catch {
    // The server is away; the next try tells.
  }
  connect();
}

function disconnect() {
  clearTimeout(retry);
  source?.close();
  source = null;
}

// ---- Search: dims what does not match.

let words = [];

function matches(text) {
  return words.every((word) => text.includes(word));
}

function textOf(element) {
  const links = [...element.querySelectorAll("a[href]")].map((link) => decodeURIComponent(link.getAttribute("href")));
  return `${element.textContent} ${links.join(" ")}`.toLowerCase();
}

// Dims a row, or the rows in an element.
function dim(root) {
  const wanted = "tbody > tr, .tiles > li, ol > li";
  const queues = queueNames();
  for (const row of root.matches(wanted) ? [root] : root.querySelectorAll(wanted)) {
    const match = row.id.startsWith("n:") ? dimCells(row, queues) : !words.length || matches(textOf(row));
    row.classList.toggle("dim", !match);
  }
}

// What a search looks at in the tile of a node. A tile that changes is another element.
const tiles = new WeakMap();

function tileOf(row) {
  const known = tiles.get(row);
  if (known) return known;
  const tile = { isDim: false, name: row.firstElementChild.textContent.toLowerCase(), badges: badges(row), cells: [] };
  for (const cell of row.querySelectorAll(".c > *, .sl > :not(small)")) {
    const parts = cell.matches("a") ? [cell] : [...cell.querySelectorAll("a, [class]")];
    tile.cells.push({ cell, parts: parts.map((part) => [hrefOf(part), look(part)]) });
  }
  tiles.set(row, tile);
  return tile;
}

// Names of pods rarely have characters that are encoded, and there are thousands of them.
function hrefOf(link) {
  const href = link.getAttribute("href") ?? "";
  return (href.includes("%") ? decodeURIComponent(href) : href).toLowerCase();
}

// Dims the cells of a node that do not match; a node that matches by its name keeps all of them. Returns whether anything matches.
function dimCells(row, queues) {
  const tile = tileOf(row);
  const byName = !words.length || matches(tile.name);
  // Words of different cells of a node are no match: they are about different pods.
  const text = ({ parts }) => parts.map(([href, of]) => `${href} ${queues.get(of)?.toLowerCase() ?? ""}`).join(" ");
  const found = byName ? [] : tile.cells.map((cell) => matches(text(cell)));
  const some = found.includes(true);
  if (some || tile.isDim) tile.cells.forEach(({ cell }, at) => cell.classList.toggle("dim", some && !found[at]));
  tile.isDim = some;
  return byName || some || matches(tile.badges);
}

// What a node says of itself: not ready, cordoned, unified memory.
function badges(row) {
  return [...row.querySelectorAll("em")].map((badge) => badge.textContent.toLowerCase()).join(" ");
}

// The classes that stand for a queue.
function look(part) {
  return /\bq\d\b( st)?/.exec(part.className)?.[0] ?? "";
}

// The names of queues by their looks, from the legend. Where there are more queues than looks, several share one.
function queueNames() {
  const names = new Map();
  for (const swatch of document.querySelectorAll("#legend .sw")) {
    const [of, name] = [look(swatch), swatch.parentElement.textContent];
    names.set(of, names.has(of) ? `${names.get(of)} or ${name}` : name);
  }
  return names;
}

let waiting = 0;
function searchSoon() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    dim(view);
  });
}

// ---- Hover in the GPU map: which pod, of which queue.

function hover(event) {
  const cell = event.target.closest?.(".tiles:not(.large) .c > *, .tiles:not(.large) .c a, .sl > a");
  if (!cell) {
    tip.hidden = true;
    return;
  }
  const link = event.target.closest("a[href]");
  const node = cell.closest("li")?.firstElementChild?.textContent ?? "";
  const lines = [node];
  if (link) {
    const [, , namespace, name] = link.getAttribute("href").split("/").map(decodeURIComponent);
    lines.push(`${namespace}/${name}`);
    const queue = queueNames().get(look(link));
    if (queue) lines.push(`queue ${queue}`);
    const percent = [...link.classList].find((look) => /^p\d+$/.test(look));
    const amount = link.closest(".sl") ? "a slice" : link.closest(".unk") ? "an unknown part of the GPU" : "the whole GPU";
    lines.push(percent ? `${percent.slice(1)} % of the GPU's memory` : amount);
    if (link.classList.contains("pr")) lines.push("promised: others are leaving");
    if (link.classList.contains("rl")) lines.push("ending");
  } else {
    const names = { held: "held: no pod of the view has it", bad: "failed", unk: "unknown", ts: "time-sliced" };
    const known = Object.keys(names).find((look) => cell.classList.contains(look));
    lines.push(known ? names[known] : cell.title || (cell.matches("b") ? "free" : "shared"));
  }
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  // Through the object model, which the policy allows; the policy forbids styles in HTML.
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const top = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
}

// ---- What would help: asked for on demand, shown beside the view.

async function help(link) {
  openPanel((box) => {
    box.textContent = "The scheduler tries what would help …";
  });
  try {
    const answer = await fetch(`${link.getAttribute("href")}?fragment=1`);
    const text = await answer.text();
    openPanel((box) => {
      // The server escapes all text in a fragment; other answers are plain text.
      if (answer.ok) box.innerHTML = text;
      else box.textContent = text;
    });
  } catch {
    openPanel((box) => {
      box.textContent = "The server does not answer.";
    });
  }
}

function openPanel(write) {
  const box = document.createElement("div");
  write(box);
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "Close";
  close.onclick = () => panel.close();
  panel.replaceChildren(box, close);
  if (!panel.open) panel.showModal();
}

const KEYS = [
  ["1 … 7", "switch between views"],
  ["j, k or ↓, ↑", "next and previous row"],
  ["Enter", "open the row"],
  ["Esc", "end the search, close, go back"],
  ["/", "search: dims what does not match"],
  ["?", "this help"],
];

function showKeys() {
  openPanel((box) => {
    const title = document.createElement("h2");
    title.textContent = "Keys";
    const list = document.createElement("dl");
    list.className = "facts";
    for (const [key, meaning] of KEYS) {
      const name = document.createElement("dt");
      name.textContent = key;
      const text = document.createElement("dd");
      text.textContent = meaning;
      list.append(name, text);
    }
    box.append(title, list);
  });
}

// ---- Keys.

function rows() {
  return [...view.querySelectorAll("tbody > tr[id], .tiles > li[id], ol.log > li[id]")].filter(
    (row) => !row.classList.contains("dim") && row.querySelector("a[href]"),
  );
}

function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement?.closest?.("tr[id], li[id]"));
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  const link = all[next].querySelector("a[href]:not([tabindex])") ?? all[next].querySelector("a[href]");
  link.focus();
  all[next].scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || panel.open) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (event.target === search || search.value) {
      search.value = "";
      search.blur();
      searchSoon();
    } else if (document.activeElement !== document.body && view.contains(document.activeElement)) {
      document.activeElement.blur();
    } else if (history.length > 1) {
      history.back();
    }
    return;
  }
  if (typing) {
    if (event.target === search && (event.key === "Enter" || event.key === "ArrowDown")) {
      event.preventDefault();
      step(1);
    }
    return;
  }
  const links = document.querySelectorAll(".top nav a");
  if (event.key >= "1" && event.key <= String(links.length)) links[Number(event.key) - 1].click();
  else if (event.key === "j" || event.key === "ArrowDown") step(1);
  else if (event.key === "k" || event.key === "ArrowUp") step(-1);
  else if (event.key === "/") search.focus();
  else if (event.key === "?") showKeys();
  else return;
  event.preventDefault();
}

// ---- Begin.

showAges(document);
setInterval(() => document.hidden || showAges(document), 1000);
document.addEventListener("keydown", onKey);
if (search) {
  search.form.hidden = false;
  search.form.addEventListener("submit", (event) => event.preventDefault());
  search.addEventListener("input", searchSoon);
  document.getElementById("keys").hidden = false;
  document.getElementById("keys").onclick = showKeys;
  view.addEventListener("mouseover", hover);
  view.addEventListener("mouseleave", () => (tip.hidden = true));
  view.addEventListener("click", (event) => {
    const link = event.target.closest("a.help");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    help(link);
  });
  // A step of the story is submitted without leaving the page.
  view.addEventListener("submit", async (event) => {
    if (!event.target.action.includes("/story/")) return;
    event.preventDefault();
    const answer = await fetch(event.target.action, { method: "POST", redirect: "manual" });
    if (answer.type !== "opaqueredirect" && !answer.ok) {
      const text = await answer.text();
      openPanel((box) => (box.textContent = text));
    }
  });
}
if (seen) {
  connect();
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  // A page that comes back from the browser's memory has a closed stream.
  addEventListener("pageshow", (event) => event.persisted && connect());
}
