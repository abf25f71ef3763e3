"use strict";

const THRESHOLDS = [1.5, 2.5, 5].map(Math.log); // as in the legend
const LINE = 300; // tokens of a paragraph, at most
const PRINTED = 1500; // tokens that a printed page has
const N_PLACE = 8;
const N_BAR = 120;

let run = null; // the text that is shown: what `unpack` gives
let near = 0; // lengths of memory that are compared
let far = 0;
let map = 0; // of the attention that is shown
let here = -1; // the token that is looked at
let nodes = []; // of all tokens
let lit = []; // nodes that are marked as looked at, with their class
const unpacked = new Map();

const find = (id) => document.getElementById(id);

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

async function unpack(number) {
  const packed = atob(find(`data${number}`).textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const content = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  let at = 4 + size;
  const take = (Kind, length) => {
    const array = new Kind(buffer, at, length);
    at += array.byteLength;
    return array;
  };
  content.size = content.pieces.length;
  content.losses = take(Uint16Array, content.size * content.lengths.length);
  content.back = take(Uint16Array, content.keys);
  content.count = take(Uint8Array, content.maps.length * content.attended);
  content.share = take(Uint8Array, content.keys);
  content.begin = new Uint32Array(content.count.length + 1);
  for (let k = 0; k < content.count.length; k++) {
    content.begin[k + 1] = content.begin[k] + content.count[k];
  }
  return content;
}

// figures

const loss = (i, length) => run.losses[run.lengths.indexOf(length) * run.size + i] / 1000;
const saved = (i) => loss(i, near) - loss(i, far);
const strength = (nats) => THRESHOLDS.filter((least) => Math.abs(nats) >= least).length;

function percent(nats) {
  const value = 100 * Math.exp(-nats);
  if (value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value < 10 ? 1 : 0)} %`;
}

// words

const memory = (length) => (length ? `memory ${length}` : "no memory");

function parts(piece) {
  const space = piece.match(/^ ?/)[0];
  const rest = piece.slice(space.length);
  if (rest) return [space, rest.replace(/\r?\n|\r/g, "⏎")];
  return ["", space || "·"];
}

function named(piece) {
  if (piece === undefined) return "(start)";
  if (piece === "") return "part of a character";
  if (/^\s*\n\s*$/.test(piece)) return "⏎ line end";
  if (/^\s+$/.test(piece)) return `${piece.length} × space`;
  return piece.trim();
}

function title(k) {
  const [layer, head] = run.maps[k];
  if (layer === null) return "all heads together";
  if (head === null) return `layer ${layer + 1}`;
  return `layer ${layer + 1}, head ${head + 1}`;
}

// the text

function write() {
  const box = document.createDocumentFragment();
  let line = make("p");
  let length = 0;
  nodes = run.pieces.map((piece, i) => {
    const [space, rest] = parts(piece);
    const node = make("span", "t", rest);
    node.index = i;
    if (space) line.append(space);
    line.append(node);
    length++;
    if (length >= LINE || /[\n\r]/.test(piece)) {
      if (i >= PRINTED) line.className = "past";
      box.append(line);
      line = make("p");
      length = 0;
    }
    return node;
  });
  if (length) box.append(line);
  for (const paragraph of box.children) paragraph.dir = "auto";
  find("text").replaceChildren(box);
}

function colour() {
  nodes.forEach((node, i) => {
    const nats = saved(i);
    const k = strength(nats);
    let name = "t";
    if (k) name += nats > 0 ? ` likelier${k}` : ` rarer${k}`;
    if (/^\s*$/.test(run.pieces[i]) && run.pieces[i] !== " ") name += " mark";
    node.className = name;
  });
  lit = [];
  find("which").textContent =
    `tokens ${run.first.toLocaleString("en")} to ${(run.first + run.size - 1).toLocaleString("en")}, ` +
    `${memory(far)} in place of ${near ? near : "none"}`;
  drawPlaces();
  drawStrip();
  if (here >= 0) show(here);
}

function gains() {
  const order = [...run.pieces.keys()].sort((a, b) => saved(b) - saved(a));
  const words = order.filter((i) => /^\p{L}{3,}$/u.test(run.pieces[i].trim()));
  const seen = new Set();
  const found = [];
  for (const i of words.length > N_PLACE ? words : order) {
    const name = run.pieces[i].trim();
    if (found.length < N_PLACE && saved(i) >= THRESHOLDS[0] && name && !(name.length > 2 && seen.has(name))) {
      seen.add(name);
      found.push(i);
    }
  }
  return found;
}

const before = (i, length) => run.pieces.slice(Math.max(0, i - length), i).join("");

function drawPlaces() {
  const found = gains();
  const buttons = found.map((i) => {
    const button = make("button");
    const name = named(run.pieces[i]);
    if (name.length < 3) button.append(before(i, 12).trimStart());
    button.append(make("b", "", name.slice(0, 30)), ` × ${Math.exp(saved(i)).toFixed(1)}`);
    button.title = before(i, 12) + run.pieces[i];
    button.onclick = () => go(i);
    return button;
  });
  find("places").replaceChildren(...(buttons.length ? [make("span", "soft", "saves most at"), ...buttons] : []));
}

function drawStrip() {
  const n = Math.min(N_BAR, Math.ceil(run.size / 25));
  const means = [];
  for (let k = 0; k < n; k++) {
    const begin = Math.floor((k * run.size) / n);
    const end = Math.floor(((k + 1) * run.size) / n);
    let sum = 0;
    for (let i = begin; i < end; i++) sum += saved(i);
    means.push([sum / (end - begin), begin, end]);
  }
  const most = Math.max(...means.map(([mean]) => Math.abs(mean)), 1e-6);
  const bars = means.map(([mean, begin, end]) => {
    const bar = make("i");
    const fill = make("b", mean > 0 ? "up" : "");
    const height = (50 * Math.abs(mean)) / most;
    fill.style.top = `${mean > 0 ? 50 - height : 50}%`;
    fill.style.height = `${height}%`;
    bar.append(fill);
    bar.title = `tokens ${run.first + begin} to ${run.first + end - 1}: ${mean.toFixed(3)} nats saved each`;
    bar.onclick = () => go(begin);
    return bar;
  });
  find("strip").replaceChildren(...bars);
}

// the panel

function row(name, label, share, value) {
  const line = make("div", `row ${name}`);
  const track = make("span");
  const fill = make("i");
  fill.style.width = `${Math.max(1, 100 * Math.min(1, share))}%`;
  track.append(fill);
  line.append(make("span", "", label), track, make("span", "", value));
  return line;
}

function verdict(nats) {
  if (near === far) return `read with ${memory(far)}`;
  const pair = `with ${memory(far)} as with ${memory(near)}`;
  if (!strength(nats)) return `much the same ${pair} (${nats.toFixed(3)} nats saved)`;
  const times = Math.exp(Math.abs(nats));
  const how = `${times.toFixed(times < 10 ? 1 : 0)} times ${nats > 0 ? "likelier" : "less likely"}`;
  const amount = `${Math.abs(nats).toFixed(3)} nats ${nats > 0 ? "saved" : "lost"}`;
  return `${how} with ${memory(far)} than with ${memory(near)}: ${amount}`;
}

function show(i) {
  const old = nodes[here];
  if (old) {
    old.classList.remove("here");
    for (const name of ["tabindex", "role", "aria-describedby"]) old.removeAttribute(name);
  }
  for (const [node, name] of lit) node.classList.remove(name);
  lit = [];
  here = i;
  const node = nodes[i];
  node.classList.add("here");
  node.tabIndex = 0;
  node.setAttribute("role", "button");
  node.setAttribute("aria-describedby", "said");
  const context = make("small", "", `… ${before(i, 5).slice(-60)}${/^\s/.test(run.pieces[i]) ? " " : ""}`);
  find("word").replaceChildren(context, named(run.pieces[i]).slice(0, 200));
  find("said").textContent = verdict(saved(i));
  const most = Math.max(...run.lengths.map((length) => loss(i, length)), 0.001);
  const bars = run.lengths.map((length) => {
    const name = length === near || length === far ? "ends" : "";
    const value = `${loss(i, length).toFixed(3)} · ${percent(loss(i, length))}`;
    return row(name, length ? String(length) : "none", loss(i, length) / most, value);
  });
  find("bars").replaceChildren(...bars);
  if (run.maps.length) {
    look(i);
    tint(i);
  }
}

function look(i) {
  find("whose").textContent = title(map);
  if (i >= run.attended) {
    find("keys").replaceChildren(make("p", "soft", `kept for the first ${run.attended} tokens of this text`));
    return;
  }
  const rows = [];
  const k = map * run.attended + i;
  for (let j = run.begin[k]; j < run.begin[k + 1]; j++) {
    const at = i - run.back[j];
    const share = run.share[j] / 255;
    if (at >= 0) {
      const name = `looked${1 + [0.06, 0.12, 0.3].filter((least) => share >= least).length}`;
      nodes[at].classList.add(name);
      lit.push([nodes[at], name]);
    }
    const piece = at >= 0 ? run.pieces[at] : run.before[run.before.length + at];
    rows.push(row("looked", named(piece), share, `${Math.round(100 * share)} % · ${run.back[j]} back`));
  }
  if (!rows.length) rows.push(make("p", "soft", "spread thinly: no token has 3 % of it"));
  find("keys").replaceChildren(...rows);
}

function tint(i) {
  for (const button of find("heads").querySelectorAll("button")) {
    let beyond = 0;
    if (i < run.attended) {
      const k = button.map * run.attended + i;
      for (let j = run.begin[k]; j < run.begin[k + 1]; j++) {
        if (run.back[j] > run.segment) beyond += run.share[j] / 255;
      }
    }
    button.style.setProperty("--beyond", `${Math.round(40 * Math.min(1, beyond))}%`);
  }
}

function drawHeads() {
  const rows = new Map();
  run.maps.forEach(([layer, head], k) => {
    if (!rows.has(layer)) rows.set(layer, make("div"));
    const button = make("button", head === null ? "layer" : "", head === null ? title(k) : `${head + 1}`);
    button.map = k;
    button.title = `${title(k)}; the darker, the more of it further back than a segment`;
    button.setAttribute("aria-label", `attention: ${title(k)}`);
    button.setAttribute("aria-pressed", k === map);
    button.onclick = () => {
      map = k;
      for (const one of find("heads").querySelectorAll("button")) one.setAttribute("aria-pressed", one.map === map);
      show(here);
    };
    rows.get(layer).append(button);
  });
  find("heads").replaceChildren(...rows.values());
  find("attention").hidden = !run.maps.length;
}

function furthest() {
  let best = 0;
  run.maps.forEach(([, head], k) => {
    const isHead = head !== null;
    if (isHead && (run.maps[best][1] === null || run.beyond[k] > run.beyond[best])) best = k;
  });
  return best;
}

// moving

function go(i, focus = true) {
  show(i);
  const box = find("text");
  const top = () => nodes[i].getBoundingClientRect().top - box.getBoundingClientRect().top;
  for (let k = 0; k < 3; k++) {
    // heights of lines that were not drawn yet are guesses
    if (top() >= 30 && top() <= box.clientHeight - 40) break;
    box.scrollTop += top() - box.clientHeight / 2;
  }
  if (focus) {
    nodes[i].focus({ preventScroll: true });
    box.scrollIntoView({ block: "nearest" });
  }
}

function byLine(i, step) {
  const from = nodes[i].getBoundingClientRect();
  let best = i;
  let apart = Infinity;
  let top = null;
  for (let j = i + step; j >= 0 && j < run.size && Math.abs(j - i) < 1000; j += step) {
    const place = nodes[j].getBoundingClientRect();
    if (Math.abs(place.top - from.top) < 8) continue;
    if (top === null) top = place.top;
    if (Math.abs(place.top - top) > 8) break;
    if (Math.abs(place.left - from.left) < apart) {
      best = j;
      apart = Math.abs(place.left - from.left);
    }
  }
  return best;
}

function byChange(i, step) {
  for (let j = i + step; j >= 0 && j < run.size; j += step) {
    if (strength(saved(j)) === THRESHOLDS.length) return j;
  }
  return i;
}

const KEYS = {
  ArrowRight: (i) => Math.min(run.size - 1, i + 1),
  ArrowLeft: (i) => Math.max(0, i - 1),
  ArrowDown: (i) => byLine(i, 1),
  ArrowUp: (i) => byLine(i, -1),
  Home: () => 0,
  End: () => run.size - 1,
  n: (i) => byChange(i, 1),
  p: (i) => byChange(i, -1),
};

// the beginning

function drawChoices() {
  for (const [id, value] of [["near", near], ["far", far]]) {
    const options = run.lengths.map((length) => {
      const option = make("option", "", memory(length));
      option.value = length;
      option.selected = length === value;
      return option;
    });
    find(id).replaceChildren(...options);
  }
  find("pair").hidden = run.lengths.length < 2;
}

async function choose(number) {
  if (!unpacked.has(number)) unpacked.set(number, await unpack(number));
  run = unpacked.get(number);
  near = run.compared[0];
  far = run.compared[run.compared.length - 1];
  map = furthest();
  here = -1;
  for (const heading of document.querySelectorAll(".where")) heading.hidden = heading.id !== `where${number}`;
  find("reader").hidden = false;
  drawChoices();
  drawHeads();
  write();
  colour();
  const [best] = gains().filter((i) => i < run.attended);
  go(best ?? 0, false);
  document.body.dataset.ready = number;
}

const of = (event) => event.target.closest(".t");

function begin() {
  const text = find("text");
  text.addEventListener("pointerover", (event) => {
    const node = of(event);
    if (node && node.index !== here) show(node.index);
  });
  text.addEventListener("click", (event) => {
    const node = of(event);
    if (node) go(node.index);
  });
  text.addEventListener("keydown", (event) => {
    const move = KEYS[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(move(here));
  });
  for (const id of ["near", "far"]) {
    find(id).onchange = () => {
      near = Number(find("near").value);
      far = Number(find("far").value);
      colour();
    };
  }
  const chooser = find("run");
  if (chooser) chooser.onchange = () => choose(Number(chooser.value));
  const first = document.querySelector("script[id^=data]");
  choose(Number(first.id.slice(4))).catch((error) => {
    find("reader").hidden = false;
    text.textContent = `This part needs a newer browser: ${error}`;
  });
}

if (find("reader")) begin();
