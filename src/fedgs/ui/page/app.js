// The page: listens to /stream, keeps what it was told, and draws what has changed, at most once a frame.
"use strict";

const COLOURS = ["#0b7fa5", "#c62f45", "#d99100", "#2f8a5f", "#6a5fc1", "#8b959d", "#a8578f", "#7a6a58"];
const DASHES = [[], [8, 4], [2, 3]];
const STATES = { selected: "selected now", idle: "idle", late: "late", quarantined: "quarantined", gone: "gone" };
const MOST_EVENTS = 500; // older ones are dropped, so that a day of them takes no memory
const MOST_ROUNDS = 1000; // of a longer run every second round is kept, then every fourth, …
const LINKS = {
  device_station_up: "devices → stations", device_station_down: "stations → devices",
  station_top_up: "stations → top", station_top_down: "top → stations",
};
const at = (id) => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const drawing = (name, attributes) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const runs = []; // a source each, see begin()
let chosen = 0; // whose factories are shown
let axis = "round";
let seen = null; // the round that is shown; null: the newest one
let events = [];
let serious = false; // of the events only warnings and errors are shown
let dirty = new Set();

// --- what the server says

function begin(facts) {
  return { facts, rounds: [], stride: 1, devices: null, stations: null, finished: false, lost: "", on: true };
}

// A kept round: its numbers, its team, and the turns and bytes of all rounds up to it, those that are not kept included.
// Tested and untested rounds are counted apart, so that thinning leaves as many of either.
function keep(run, line) {
  const { team, mix, turns, bytes, ...numbers } = line, before = run.rounds.at(-1), tested = line.score != null;
  const counts = { ...(before?.counts ?? { true: 0, false: 0 }) }, taken = before?.turns ?? new Uint32Array(0);
  const round = {
    ...numbers, counts, place: counts[tested], told: Boolean(turns),
    team: Uint32Array.from((team ?? []).flat()), mix: (mix ?? []).map((one) => Uint32Array.from(one)),
    turns: turns ? Uint32Array.from({ length: turns.length }, (_, device) => (taken[device] ?? 0) + turns[device]) : taken,
    bytes: Object.fromEntries(Object.keys(LINKS).map((link) => [link, (before?.bytes[link] ?? 0) + (bytes?.[link] ?? 0)])),
  };
  counts[tested] += 1;
  const stays = (one) => one.place % run.stride === 0;
  if (before && !stays(before)) run.rounds.pop(); // it was there as the newest round only
  run.rounds.push(round);
  if (run.rounds.length > MOST_ROUNDS) {
    run.stride *= 2;
    run.rounds = run.rounds.filter((one) => stays(one) || one === round);
  }
}

function take(run, news) {
  if (news.reset) Object.assign(run, begin({ ...run.facts, ...news }), { on: run.on });
  if (news.facts) meet(run, news.facts);
  for (const line of news.rounds ?? []) {
    keep(run, line);
    const told = Object.entries(line.events ?? {}).map(([what, times]) => `${what.replaceAll("_", " ")} ${times}`);
    if (told.length) say({ time: `round ${line.round}`, level: "info", what: told.join(", "), details: "", process: run.facts.name });
    dirty.add("lines");
  }
  for (const event of news.events ?? []) say(event);
  if (news.p_real) { run.facts.p_real = news.p_real; dirty.add("round"); }
  for (const key of ["devices", "stations"]) if (news[key]) { run[key] = news[key]; dirty.add("round"); }
  for (const key of ["finished", "lost"]) if (key in news) { run[key] = news[key]; dirty.add("runs"); }
  if (news.lost) say({ time: new Date().toISOString(), level: "error", what: news.lost, details: "", process: run.facts.name });
  if (news.error) say({ time: "", level: "error", what: news.error, details: "", process: run.facts.name });
}

// Stations and devices come and go; the device that is told about stays the same.
function meet(run, facts) {
  const before = runs[chosen] === run && asked !== null ? run.facts.devices[asked] : null;
  Object.assign(run.facts, facts);
  if (before) {
    const now = facts.devices.findIndex(([name, factory]) => name === before[0] && factory === before[1]);
    asked = now < 0 ? null : now;
  }
  dirty.add("cards");
}

function say(event) {
  events.push(event);
  if (events.length > MOST_EVENTS) events = events.slice(-MOST_EVENTS);
  dirty.add("events");
}

function listen() {
  const stream = new EventSource("stream");
  stream.addEventListener("source", (message) => {
    const { source, ...facts } = JSON.parse(message.data);
    const on = runs[source]?.on ?? true;
    runs[source] = { ...begin(facts), on }; // a stream that broke off begins again
    dirty.add("runs").add("cards").add("lines");
    schedule();
  });
  stream.addEventListener("news", (message) => {
    const { source, ...news } = JSON.parse(message.data);
    take(runs[source], news);
    schedule();
  });
  stream.onopen = () => { events = []; at("link").textContent = "connected"; };
  stream.onerror = () => {
    at("link").textContent = "the connection is lost; trying again …";
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 2000); // refused: the browser itself does not try again
  };
}

// --- drawing

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const what = dirty;
    dirty = new Set();
    if (!runs[chosen]) return;
    if (what.has("runs")) drawRuns();
    if (what.has("cards")) makeCards();
    if (what.has("lines") || what.has("cards")) { drawSlider(); drawPlots(); }
    else if (what.has("shown")) for (const { chart } of Object.values(plots)) chart.redraw(false);
    if (what.has("lines") || what.has("cards") || what.has("round")) { drawFacts(); drawCards(); }
    if (what.has("events")) drawEvents();
  });
}

const style = (number) => ({ stroke: COLOURS[number % COLOURS.length], dash: DASHES[Math.floor(number / COLOURS.length) % DASHES.length] });

function drawRuns() {
  const focused = document.activeElement?.id;
  at("runs").replaceChildren(...runs.map((run, number) => {
    const shown = make("input", { type: "checkbox", id: `on-${number}`, "aria-label": `curves of ${run.facts.name}` });
    shown.checked = run.on;
    shown.onchange = () => { run.on = shown.checked; dirty.add("lines"); schedule(); };
    const picked = make("input", { type: "radio", name: "chosen", id: `chosen-${number}` });
    picked.checked = number === chosen;
    picked.onchange = () => { chosen = number; seen = null; asked = null; dirty.add("cards").add("runs"); schedule(); };
    const swatch = make("span", { class: "swatch", style: `border-color:${style(number).stroke};border-top-style:${style(number).dash.length ? "dashed" : "solid"}` });
    const state = run.finished ? "finished" : run.lost ? "no answer" : run.facts.kind === "park" ? "park" : "running";
    const name = make("label", {}, ...(runs.length > 1 ? [picked] : []), run.facts.name);
    return make("div", { class: "run" }, ...(runs.length > 1 ? [shown] : []), swatch, name, make("small", run.lost && !run.finished ? { class: "error", title: run.lost } : {}, `${run.facts.algorithm} · ${state}`));
  }));
  if (focused) at(focused)?.focus();
}

function drawSlider() {
  const { rounds, stride } = runs[chosen];
  const slider = at("round");
  slider.max = Math.max(0, rounds.length - 1);
  slider.value = place();
  at("live").setAttribute("aria-pressed", seen === null);
  at("thinned").textContent = stride > 1 ? `(every ${ordinal(stride)} round is kept)` : "";
}

const ordinal = (stride) => `${stride}${stride % 10 === 2 ? "nd" : "th"}`; // of powers of two

// The kept round that is shown.
function place() {
  const { rounds } = runs[chosen];
  let row = rounds.length - 1;
  if (seen !== null) while (row > 0 && rounds[row].round > seen) row -= 1;
  return row;
}

const number = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
const share = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const isShare = (score) => ["accuracy", "auroc", "balanced_accuracy"].includes(score);
const shownScore = (facts, value) => (isShare(facts.score) ? share(value) : number(value));
const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return seconds < 3600 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
};
const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes >= 1000 && power < units.length - 1) { bytes /= 1000; power += 1; }
  return `${bytes.toFixed(power && bytes < 100 ? 1 : 0)} ${units[power]}`;
};

function drawFacts() {
  const run = runs[chosen], here = place(), line = run.rounds[here] ?? {};
  const last = (key) => { for (let row = here; row >= 0; row -= 1) if (run.rounds[row][key] != null) return run.rounds[row][key]; return null; };
  at("shown").textContent = `${line.round ?? 0} of ${Math.max(run.facts.of_rounds, run.rounds.at(-1)?.round ?? 0)}`;
  at("round").setAttribute("aria-valuetext", `round ${line.round ?? 0}`);
  const facts = [
    [run.facts.score, shownScore(run.facts, last("score"))], ["test loss", number(last("loss"))],
    ["training loss", number(line.train_loss)], ["divergence", number(line.divergence)],
    ["time here", duration(line.seconds)],
  ];
  if (line.simulated != null) facts.push(["time in the plant", duration(line.simulated)]);
  if (last("balanced_accuracy") !== null) facts.splice(1, 0, ["balanced accuracy", share(last("balanced_accuracy"))]);
  const sent = run.stations && !past(run, line) ? stationBytes(run.stations) : line.bytes;
  for (const [link, title] of Object.entries(LINKS)) if (sent?.[link]) facts.push([title, size(sent[link])]);
  for (const [key, title] of [["epsilon", "privacy spent (ε)"], ["rejected", "rejected updates"]]) {
    if (last(key) !== null) facts.push([title, number(last(key), key === "epsilon" ? 2 : 0)]);
  }
  at("now").replaceChildren(...facts.map(([title, value]) => make("div", { class: "fact" }, make("b", {}, value), make("span", {}, title))));
}

const FIELDS = { device_station_up: "received_bytes", device_station_down: "sent_bytes", station_top_up: "top_sent_bytes", station_top_down: "top_received_bytes" };
const stationBytes = (stations) => Object.fromEntries(Object.entries(FIELDS).map(([link, field]) => [link, stations.reduce((sum, one) => sum + (one?.[field] ?? 0), 0)]));

// --- curves

const plots = {};
const CURVES = [["score", (run) => run.facts.score], ["loss", () => "test loss"], ["train_loss", () => "training loss"], ["divergence", () => "divergence ‖P − P_real‖₂"]];

function drawPlots() {
  document.querySelector("[data-axis=simulated]").hidden = !runs.some((run) => run.rounds.some((line) => line.simulated != null));
  const shown = runs.map((run, number) => ({ run, number })).filter(({ run }) => run.on);
  for (const [key, title] of CURVES) {
    const known = shown.map(({ run, number }) => ({ run, number, points: run.rounds.filter((line) => line[key] != null && line[axis] != null) }));
    const drawn = known.filter(({ points }) => points.length);
    const xs = [...new Set(drawn.flatMap(({ points }) => points.map((line) => line[axis])))].sort((one, other) => one - other);
    const data = [xs, ...drawn.map(({ points }) => {
      const values = new Map(points.map((line) => [line[axis], line[key]]));
      return xs.map((x) => values.get(x) ?? null);
    })];
    const kept = `${axis} ${document.documentElement.dataset.theme} ${darkSystem.matches} ${drawn.map(({ number, run }) => `${number}${run.facts.name}`)}`;
    if (!plots[key]) {
      const box = make("div", { class: "plot" }, make("h3", {}, title(runs[chosen])));
      at("plots").append(box);
      plots[key] = { box };
    }
    const plot = plots[key];
    plot.box.hidden = !drawn.length;
    if (plot.kept !== kept) {
      plot.chart?.destroy();
      plot.chart = new uPlot(options(plot.box, key, drawn), data, plot.box);
      plot.kept = kept;
    } else plot.chart?.setData(data);
  }
}

// Where the round that is shown lies on the axis; no limit while the newest one is followed.
const reached = () => (seen === null ? Infinity : runs[chosen].rounds[place()]?.[axis] ?? Infinity);

// Unless somebody points at the curves, the legend tells each run's numbers up to there. uPlot empties it when it draws.
function tellShown(chart) {
  if (chart.cursor.idx != null) return;
  const xs = chart.data[0], last = reached();
  chart.setLegend({ idxs: chart.data.map((values) => values.findLastIndex((value, row) => value != null && xs[row] <= last)) });
}

// A line at the round that the slider has gone back to.
function drawShown(chart, colour) {
  const x = chart.valToPos(reached(), "x", true), { ctx, bbox } = chart;
  if (seen === null || !(x >= bbox.left && x <= bbox.left + bbox.width)) return;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.restore();
}

function options(box, key, drawn) {
  const colours = getComputedStyle(document.documentElement);
  const ink = colours.getPropertyValue("--faint"), line = colours.getPropertyValue("--line");
  const axes = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui" };
  const target = key === "score" ? runs[chosen].facts.target : null;
  const percent = key === "score" && isShare(runs[chosen].facts.score);
  const shown = (value) => (value == null ? "–" : percent ? share(value) : number(value));
  return {
    width: Math.max(260, box.clientWidth - 14), height: 210, cursor: { points: { size: 6 } },
    scales: { x: { time: false }, y: { range: (_, low, high) => bounds(low, high, target) } },
    axes: [{ ...axes, values: (_, ticks) => ticks.map((tick) => (axis === "round" ? (Number.isInteger(tick) ? tick : "") : duration(tick))) },
           { ...axes, size: 52, values: (_, ticks) => ticks.map((tick) => (percent ? `${Math.round(100 * tick)} %` : String(+tick.toPrecision(3)))) }],
    series: [{ label: axis === "round" ? "round" : "time", value: (_, value) => (value == null ? "–" : axis === "round" ? value : duration(value)) },
             ...drawn.map(({ run, number }) => ({ label: run.facts.name, width: 1.8, spanGaps: true, points: { show: run.rounds.length < 3 }, value: (_, value) => shown(value), ...style(number) }))],
    hooks: { ready: [tellShown], setCursor: [tellShown], draw: [
      tellShown, (chart) => drawShown(chart, ink), (chart) => target != null && drawTarget(chart, target, colours.getPropertyValue("--target"))] },
  };
}

function bounds(low, high, target) {
  if (low == null) return [0, 1];
  const from = Math.min(low, target ?? low), to = Math.max(high, target ?? high), room = (to - from || Math.abs(to) || 1) * 0.06;
  return [from - room < 0 && from >= 0 ? 0 : from - room, to + room];
}

function drawTarget(chart, target, colour) {
  const { ctx, bbox } = chart, y = chart.valToPos(target, "y", true);
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([6, 5]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textAlign = "right";
  ctx.fillText("target", bbox.left + bbox.width - 4, y - 4);
  ctx.restore();
}

// --- factories

let cards = [];
let rows = []; // where lines of rounds count each device, and each factory
let homes = [];
function makeCards() {
  const { facts } = runs[chosen];
  const listed = (names) => names && new Map(names.map((name, row) => [name, row])), roster = listed(facts.roster), known = listed(facts.homes);
  rows = facts.devices.map(([name], device) => (roster ? roster.get(name) : device));
  homes = facts.factories.map((name, factory) => (facts.baseline ? 0 : known ? known.get(name) : factory));
  const places = facts.factories.map(() => []);
  facts.devices.forEach(([, factory], device) => places[factory]?.push(device));
  cards = facts.factories.map((name, factory) => {
    const tiles = places[factory].map((device, position) => {
      const tile = make("button", { class: "tile", type: "button", tabindex: position ? -1 : 0, "data-device": device });
      tile.onclick = tile.onfocus = tile.onmouseenter = () => about(device);
      return tile;
    });
    const grid = make("div", { class: "tiles", role: "group", "aria-label": `devices of ${name}` }, ...tiles);
    grid.onkeydown = (event) => move(event, tiles);
    const said = make("span"), mix = drawing("svg", { role: "img" }), turns = drawing("svg", { role: "img" });
    const links = make("p", { class: "links", title: "bytes since the station's start, from (↑) and to (↓) its devices, to (↑) and from (↓) the top server" });
    const card = make("article", { class: "card" }, make("header", {}, make("h3", {}, name), said), grid);
    card.append(make("h4", {}, "classes of its teams; line: P_real"), mix, make("h4", {}, "turns of its devices; line: fair share"), turns, links);
    return { node: card, places: places[factory], tiles, said, mix, turns, links };
  });
  at("factories").replaceChildren(...cards.map(({ node }) => node));
}

function move(event, tiles) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(tiles), ArrowUp: -columns(tiles) }[event.key];
  if (!step) return;
  event.preventDefault();
  const from = tiles.indexOf(document.activeElement), to = Math.min(tiles.length - 1, Math.max(0, from + step));
  tiles[from].tabIndex = -1;
  tiles[to].tabIndex = 0;
  tiles[to].focus();
}

const columns = (tiles) => tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;

// Whether a round is shown, and not how things are now.
const past = (run, line) => !run.devices || (line.told && (seen !== null || run.finished));

function stateOf(run, line, device, team) {
  if (!past(run, line)) return run.devices[device][0];
  return team.has(rows[device]) ? "selected" : "idle";
}

function turnsOf(run, line) {
  return past(run, line) ? rows.map((row) => line.turns?.[row] ?? 0) : run.devices.map(([, turns]) => turns);
}

function drawCards() {
  const run = runs[chosen], line = run.rounds[place()] ?? {}, turns = turnsOf(run, line), team = new Set(line.team);
  cards.forEach((card, factory) => {
    const own = card.places.map((device) => turns[device] ?? 0);
    const fair = own.reduce((sum, count) => sum + count, 0) / Math.max(1, own.length);
    card.places.forEach((device, position) => {
      const state = stateOf(run, line, device, team), tile = card.tiles[position];
      const label = `${run.facts.devices[device][0]}: ${STATES[state] ?? state}, ${own[position]} turns`;
      if (tile.dataset.state !== state) tile.dataset.state = state;
      if (tile.ariaLabel !== label) tile.ariaLabel = tile.title = label;
    });
    const station = run.stations && !past(run, line) ? run.stations[factory] : null, score = line.factory_scores?.[factory];
    const mix = station?.mix?.length ? station.mix : line.mix?.[homes[factory]];
    const known = mix?.length === run.facts.p_real.length;
    card.mix.parentNode.querySelectorAll("h4")[0].hidden = !known;
    card.mix.toggleAttribute("hidden", !known); // a drawing has no property of this name
    if (known) drawMix(card.mix, mix, run.facts);
    card.links.hidden = !station?.iterations && !station?.sent_bytes;
    if (!card.links.hidden) card.links.replaceChildren(...[["devices", "device_station"], ["top", "station_top"]].map(([whom, link]) => make("span", {}, `${whom} ↑ ${size(station[FIELDS[`${link}_up`]])} ↓ ${size(station[FIELDS[`${link}_down`]])}`)));
    drawTurns(card.turns, own, fair);
    const far = station?.divergence ?? line.factory_divergence?.[homes[factory]];
    const said = [];
    if (station && !station.silent) said.push(station.iterations ? `iteration ${station.iteration}/${station.iterations}` : "waiting");
    const silent = run.finished ? "" : station?.silent ?? ""; // at the end of a run, stations may be switched off
    card.node.classList.toggle("silent", Boolean(silent));
    card.said.title = silent;
    if (silent) said.push("no answer");
    else if (far != null) said.push(`divergence ${number(far)}`);
    if (score != null) said.push(shownScore(run.facts, score));
    card.said.textContent = said.join(" · ");
  });
  about();
}

function drawMix(svg, counts, facts) {
  const total = counts.reduce((sum, count) => sum + count, 0) || 1, shares = Array.from(counts, (count) => count / total);
  const wanted = facts.p_real, most = Math.max(...shares, ...wanted);
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  const furthest = shares.reduce((best, one, row) => (Math.abs(one - wanted[row]) > Math.abs(shares[best] - wanted[best]) ? row : best), 0);
  svg.setAttribute("aria-label", `furthest from the target: ${facts.classes[furthest]}, ${share(shares[furthest])} instead of ${share(wanted[furthest])}`);
  drawBars(svg, "bar", shares.map((one) => one / most), wanted.map((one) => one / most));
}

// One path for all bars and one for all marks: hundreds of elements a card would be made anew with every round.
function drawBars(svg, kind, heights, marks) {
  const width = 100 / Math.max(1, heights.length), wide = (width * 0.84).toFixed(2);
  const bars = heights.map((one, row) => `M${(row * width + width * 0.08).toFixed(2)} 40v${(-38 * one).toFixed(2)}h${wide}V40z`).join("");
  const lines = marks.map((one, row) => `M${((100 / marks.length) * row).toFixed(2)} ${(40 - 38 * one).toFixed(2)}h${(100 / marks.length).toFixed(2)}`).join("");
  if (!svg.firstChild) svg.append(drawing("path", { class: kind }), drawing("path", { class: "mark", fill: "none", "vector-effect": "non-scaling-stroke" }));
  svg.firstChild.setAttribute("d", bars);
  svg.lastChild.setAttribute("d", lines);
}

function drawTurns(svg, turns, fair) {
  const sorted = [...turns].sort((one, other) => other - one), most = Math.max(1, fair, ...sorted);
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-label", `turns of its devices: at most ${sorted[0] ?? 0}, at least ${sorted.at(-1) ?? 0}, fair share ${number(fair, 1)}`);
  drawBars(svg, "turn", sorted.map((count) => count / most), [fair / most]);
}

let asked = null; // the device that is told about
function about(device = asked) {
  asked = device;
  if (asked === null || !runs[chosen].facts.devices[asked]) return;
  const run = runs[chosen], line = run.rounds[place()] ?? {}, turns = turnsOf(run, line), team = new Set(line.team);
  const [name, factory] = run.facts.devices[device];
  const own = run.facts.devices.map((_, other) => other).filter((other) => run.facts.devices[other][1] === factory);
  const fair = own.reduce((sum, other) => sum + (turns[other] ?? 0), 0) / own.length, state = stateOf(run, line, device, team);
  const [, , failures, failure] = run.devices ? run.devices[device] : [];
  at("about").textContent = `${name} in ${run.facts.factories[factory]}: ${STATES[state] ?? state}, ${turns[device] ?? 0} turns (fair share ${number(fair, 1)})${failures ? `, ${failures} failures, the last: ${failure}` : ""}`;
}

function drawLegend() {
  const line = drawing("svg", { viewBox: "0 0 18 14", "aria-hidden": "true" });
  line.append(drawing("line", { class: "mark", x1: 0, x2: 18, y1: 7, y2: 7 }));
  at("legend").replaceChildren(
    ...Object.entries(STATES).map(([state, title]) => make("li", {}, make("span", { class: "tile", "data-state": state, "aria-hidden": "true" }), title)),
    make("li", {}, line, "what it should be"));
}

// The time of day; the date too, where it is not today's.
function clock(time) {
  const when = new Date(time);
  if (!/^\d{4}-/.test(time) || isNaN(when)) return time;
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString()} `;
  return day + when.toLocaleTimeString([], { hour12: false });
}

function drawEvents() {
  const list = at("events"), stays = list.scrollTop > 4;
  const wanted = serious ? events.filter((event) => event.level !== "info") : events;
  const shown = [...wanted].reverse().map((event) => make("li", { class: event.level },
    make("time", { title: event.time }, clock(event.time)), `${event.what} `, make("small", {}, [event.process, event.details].filter(Boolean).join(" · "))));
  if (!stays) list.replaceChildren(...shown); // whoever reads further down is left in peace
}

// --- what the user does

at("round").oninput = () => {
  const { rounds } = runs[chosen], row = Number(at("round").value);
  seen = row < rounds.length - 1 ? rounds[row].round : null;
  at("live").setAttribute("aria-pressed", seen === null);
  dirty.add("round").add("shown");
  schedule();
};
at("serious").onclick = () => { serious = !serious; at("serious").setAttribute("aria-pressed", serious); at("events").scrollTop = 0; dirty.add("events"); schedule(); };
at("live").onclick = () => { seen = null; dirty.add("lines"); schedule(); };
let playing = null;
at("play").onclick = () => {
  if (playing) { clearInterval(playing); playing = null; } else {
    seen ??= runs[chosen].rounds[0]?.round ?? null;
    playing = setInterval(() => {
      at("round").value = place() + 1;
      at("round").oninput();
      if (seen === null) at("play").onclick();
    }, Math.max(40, 12000 / runs[chosen].rounds.length));
  }
  at("play").textContent = playing ? "pause" : "play";
  at("play").setAttribute("aria-pressed", Boolean(playing));
};
for (const button of document.querySelectorAll("[data-axis]")) {
  button.onclick = () => {
    axis = button.dataset.axis;
    for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", other === button);
    dirty.add("lines");
    schedule();
  };
}
darkSystem.onchange = () => {
  dirty.add("lines");
  schedule();
};
at("theme").onclick = () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : darkSystem.matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  dirty.add("lines");
  schedule();
};
new ResizeObserver(() => {
  for (const plot of Object.values(plots)) if (!plot.box.hidden) plot.chart?.setSize({ width: Math.max(260, plot.box.clientWidth - 14), height: 210 });
}).observe(at("plots"));
drawLegend();
listen();
