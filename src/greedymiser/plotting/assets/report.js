"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const phone = matchMedia("(max-width: 40rem)");
const steps = data.steps;
// Which model is shown, and the budget that asked for it.
const state = { shown: data.recommended, budget: steps[data.recommended].cost };

// -- elements -----------------------------------------------------------------------------------

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  }));
}

function drawing(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// -- the choice ---------------------------------------------------------------------------------

// The steps rise with their cost, so the best affordable model is the last one.
function atBudget(budget) {
  const found = steps.findLastIndex((step) => step.cost <= budget);
  return found < 0 ? 0 : found;
}

function choose(index, source) {
  Object.assign(state, { shown: index, budget: steps[index].cost });
  if (source !== "slider") byId("slider").value = index;
  if (source !== "field") byId("budget").value = steps[index].budget;
  show();
}

function chooseBudget(budget) {
  Object.assign(state, { shown: atBudget(budget), budget });
  byId("slider").value = state.shown;
  show();
}

// -- the curve ----------------------------------------------------------------------------------

const margin = { left: 52, right: 14, top: 14, bottom: 42 };

function scales(width, height) {
  const { low, high, power, bottom, top } = data.axes;
  const [left, right] = [margin.left + 8, width - margin.right - 8];
  const share = (cost) => Math.sign(cost - low) * (Math.abs(cost - low) / (high - low)) ** power;
  return {
    x: (cost) => left + share(cost) * (right - left),
    y: (score) => height - margin.bottom - (score - bottom) / (top - bottom) * (height - margin.bottom - margin.top),
  };
}

function ticks(bottom, top, most) {
  const rough = (top - bottom) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let k = Math.ceil(bottom / step - 1e-9); k * step <= top + 1e-9 * step; k++) {
    const label = data.axes.is_total ? data.axes.currency + (-k * step || 0).toFixed(places) : (k * step).toFixed(places);
    found.push([k * step, label]);
  }
  return found;
}

function staircase(points, x, y) {
  return points.map(([cost, score], i) =>
    (i ? `H${x(cost)}V${y(score)}` : `M${x(cost)} ${y(score)}`)).join("");
}

const diamond = (x, y, r) => `M${x - r} ${y}L${x} ${y - r}L${x + r} ${y}L${x} ${y + r}Z`;
const cross = (x, y, r) => `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;

function drawCurve() {
  const box = byId("curve");
  const [width, height] = [box.clientWidth, box.clientHeight];
  if (!width || !height) return;
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}` });
  box.replaceChildren(svg);
  const { x, y } = scales(width, height);
  const floor = height - margin.bottom;
  const taken = [];
  for (const [value, label] of ticks(data.axes.bottom, data.axes.top, 6)) {
    svg.append(drawing("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }));
    svg.append(drawing("text", { class: "tick", x: margin.left - 6, y: y(value) + 4, "text-anchor": "end" }, label));
  }
  let free = -Infinity;
  for (const [cost, label] of data.axes.ticks) {
    const text = drawing("text", { class: "tick", x: x(cost), y: floor + 16, "text-anchor": "middle" }, label);
    svg.append(text);
    const place = text.getBBox();
    if (place.x < free || place.x + place.width > width) { text.remove(); continue; }
    free = place.x + place.width + 8;
    svg.append(drawing("line", { class: "grid", x1: x(cost), x2: x(cost), y1: margin.top, y2: floor }));
  }
  svg.append(drawing("text", { x: (margin.left + width) / 2, y: height - 6, "text-anchor": "middle" }, data.axes.title));
  const end = width - margin.right;
  const line = data.line.map(([cost, score]) => [cost, score]);
  const errors = steps.every((step) => step.error !== null);
  if (errors) {
    const upper = staircase(steps.map((step) => [step.cost, step.score + step.error]), x, y) + `H${end}`;
    const lower = [...steps].reverse().map((step, i) =>
      `${i ? "" : `V${y(step.score - step.error)}`}${i ? `V${y(step.score - step.error)}` : ""}H${x(step.cost)}`).join("");
    const clip = drawing("clipPath", { id: "inside" });
    clip.append(drawing("rect", { x: margin.left, y: margin.top, width: end - margin.left, height: floor - margin.top }));
    svg.append(clip, drawing("path", { class: "band", d: upper + lower + "Z", "clip-path": "url(#inside)" }));
  }
  svg.append(drawing("path", { class: "steps", d: staircase(line, x, y) + `H${end}` }));
  line.forEach(([cost, score], i) => {
    const next = i + 1 < line.length ? line[i + 1] : null;
    taken.push(rect(x(cost), y(score) - 2, (next ? x(next[0]) : end) - x(cost), 4));
    if (next) taken.push(rect(x(next[0]) - 2, y(next[1]), 4, y(score) - y(next[1])));
  });
  for (const other of data.baselines) {
    if (other.cost <= data.axes.high) {
      svg.append(drawing("path", { class: "other", d: cross(x(other.cost), y(other.score), 5) }));
      taken.push(rect(x(other.cost) - 6, y(other.score) - 6, 12, 12));
    } else {
      svg.append(drawing("line", { class: "other", "stroke-dasharray": "2 4", x1: margin.left, x2: end, y1: y(other.score), y2: y(other.score) }));
    }
  }
  const shown = steps[state.shown];
  if (state.budget <= data.axes.high) {
    svg.append(drawing("line", { class: "budget", x1: x(state.budget), x2: x(state.budget), y1: margin.top, y2: floor }));
  }
  steps.forEach((step, i) => {
    if (step.test !== null && step.test >= data.axes.bottom) {
      svg.append(drawing("path", { class: "test", d: diamond(x(step.cost), y(step.test), 5) }));
      taken.push(rect(x(step.cost) - 6, y(step.test) - 6, 12, 12));
    }
    if (step.score < data.axes.bottom) return;
    const point = drawing("circle", { class: "point", cx: x(step.cost), cy: y(step.score), r: phone.matches ? 5 : 4.5 });
    point.append(drawing("title", {}, `${step.cost_text}: ${step.score_text}${step.change ? ", " + step.change : ""}`));
    point.addEventListener("click", () => choose(i));
    svg.append(point);
    taken.push(rect(x(step.cost) - 6, y(step.score) - 6, 12, 12));
  });
  const best = steps[data.recommended];
  svg.append(drawing("circle", { class: "ring", cx: x(best.cost), cy: y(best.score), r: 9, "pointer-events": "none" }));
  if (shown !== best && shown.score >= data.axes.bottom) {
    svg.append(drawing("circle", { class: "shown", cx: x(shown.cost), cy: y(shown.score), r: 9, "pointer-events": "none" }));
  }
  writeLabels(svg, x, y, taken, { left: margin.left + 2, right: width - 2, top: 2, bottom: floor - 2 });
}

const rect = (x, y, width, height) => ({ x, y, width, height });
const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

// What steps add, those that matter most first, each where it covers nothing.
function writeLabels(svg, x, y, taken, room) {
  const gain = (i) => steps[i].score - (i ? steps[i - 1].score : steps[0].score);
  const order = steps.map((_, i) => i).filter((i) => i && steps[i].score >= data.axes.bottom)
    .sort((a, b) => (b === data.recommended) - (a === data.recommended) || gain(b) - gain(a));
  const words = [];
  for (const i of order) {
    for (const label of steps[i].labels) {
      if (writeLabel(svg, x(steps[i].cost), y(steps[i].score), label, i === data.recommended, taken, words, room)) break;
    }
  }
}

function writeLabel(svg, x, y, label, strong, taken, words, room) {
  const text = drawing("text", { class: strong ? "label strong" : "label", x: 0, y: 0 }, label);
  svg.append(text);
  const { width, height } = text.getBBox();
  for (let away = 0; away < 7; away++) {
    const shift = 8 + away * height;
    for (const [left, top, side] of [[x + 9, y + shift - 4, 1], [x - 9 - width, y - shift - height + 8, -1],
      [x + 9, y - shift - height + 4, 1], [x - 9 - width, y + shift - 4, -1]]) {
      const place = rect(left, top, width, height);
      const inside = left >= room.left && left + width <= room.right && top >= room.top && top + height <= room.bottom;
      if (!inside || taken.some((other) => overlap(place, other))) continue;
      const start = [side > 0 ? left : left + width, top + height / 2];
      const leader = away ? Array.from({ length: 12 }, (_, k) => rect(
        start[0] + (k + 0.5) / 12 * (x - start[0]) - 1, start[1] + (k + 0.5) / 12 * (y - start[1]) - 1, 2, 2)) : [];
      if (leader.some((part) => words.some((other) => overlap(part, other)))) continue;
      text.setAttribute("x", left);
      text.setAttribute("y", top + 0.78 * height);
      if (away) svg.append(drawing("line", { class: "leader", x1: start[0], y1: start[1], x2: x, y2: y, "pointer-events": "none" }));
      taken.push(place, ...leader);
      words.push(place);
      return true;
    }
  }
  text.remove();
  return false;
}

function writeLegend() {
  const has_test = steps.some((step) => step.test !== null);
  const entries = [
    ["line", { class: "steps", x1: 0, x2: 22, y1: 7, y2: 7 }, "best for each budget" + (has_test ? " (validation rows)" : "")],
    ...(steps.every((step) => step.error !== null) ? [["rect", { class: "band", x: 0, y: 1, width: 22, height: 12 }, "± 1 standard error"]] : []),
    ...(has_test ? [["path", { class: "test", d: diamond(11, 7, 5) }, "the same models, test rows"]] : []),
    ["circle", { class: "ring", cx: 11, cy: 7, r: 6 }, "recommended"],
    ["circle", { class: "shown", cx: 11, cy: 7, r: 6 }, "shown"],
    ...data.baselines.map((other) => ["path", { class: "other", d: cross(11, 7, 5) }, `${other.name}: ${other.score_text} for ${other.cost_text}`]),
  ];
  byId("legend").replaceChildren(...entries.map(([tag, attributes, words]) => {
    const entry = element("span");
    const sign = drawing("svg", { viewBox: "0 0 22 14" });
    sign.append(drawing(tag, attributes));
    entry.append(sign, words);
    return entry;
  }));
}

// -- the model ----------------------------------------------------------------------------------

function showModel() {
  const step = steps[state.shown];
  const place = state.shown === data.recommended ? "Recommended: " : "";
  byId("model-heading").textContent = `${place}${data.by_row ? "on average " : ""}${step.cost_text} a prediction`;
  const facts = [
    [data.scoring, step.score_text + (step.error_text ? ` ± ${step.error_text}` : ""), "score"],
    ...(step.test !== null ? [["on test rows", step.test_text, "test-score"]] : []),
    [data.by_row ? "mean cost" : "cost", step.cost_text, "cost"],
    ["features", step.n_features, "n-features"],
    ["trees", step.n_trees, "trees"],
  ];
  byId("facts").replaceChildren(...facts.map(([name, value, id]) => {
    const both = element("div");
    const told = element("dd", value);
    told.id = "model-" + id;
    both.append(element("dt", name), told);
    return both;
  }));
  byId("snippet").textContent = `model = curve.best(budget=${step.budget}, train=False)`;
  showList(step);
  showChanges();
  showProtocol(step);
}

function showList(step) {
  byId("list-heading").textContent = data.by_row ? "What some rows are asked for" : "Shopping list";
  fill(byId("list").tBodies[0], step.list.map((line) => [
    element("td", line.name, line.is_part ? "part" : ""), element("td", line.price_text, "number"),
    element("td", line.total_text, "number"), element("td", line.share_text, "number"),
  ]));
  // Cascades have no gains of their own.
  byId("list").classList.toggle("no-gain", step.list.every((line) => !line.share_text));
  byId("list").hidden = step.list.length === 0;
  byId("list-note").textContent = step.note;
}

function showChanges() {
  const at = state.shown;
  const says = (step, from, how) => {
    const more = step.score_difference_from[from];
    return element("li", `${how} (${step.cost_text}): ${more.change}; ${more.score}`);
  };
  const changes = [];
  if (at > 0) changes.push(says(steps[at - 1], at, "Cheaper"));
  if (at + 1 < steps.length) changes.push(says(steps[at + 1], at, "More expensive"));
  for (const other of data.baselines) {
    changes.push(element("li", `Beside ${other.name} (${other.score_text} for ${other.cost_text}): ` + other.beside[at]));
  }
  if (!changes.length) changes.push(element("li", "There is no other model."));
  byId("changes").replaceChildren(...changes);
}

// What is asked of whom, question by question, where rows pay for themselves.
function showProtocol(step) {
  const protocol = step.protocol;
  byId("protocol-part").hidden = protocol === null;
  if (protocol === null) return;
  const share = (part) => `${+(100 * part).toPrecision(3)}%`;
  byId("protocol").replaceChildren(...protocol.steps.map((question) => {
    const item = element("li");
    item.style.paddingLeft = `${Math.min(question.depth, 8) * (phone.matches ? 0.6 : 1.2)}rem`;
    const head = element("div", undefined, "head");
    head.append(element("span", `${question.name} (${question.price_text})`), element("span", share(question.share), "number"));
    const bar = element("div", undefined, "bar");
    const [asked, ends] = [element("i"), element("b")];
    asked.style.width = share(question.share);
    ends.style.width = share(question.ends);
    bar.append(asked, ends);
    item.append(head);
    if (question.conditions) item.append(element("small", "if " + question.conditions));
    item.append(bar);
    return item;
  }));
  byId("protocol-note").textContent =
    `${count(protocol.n_rows, "row")} cost ${protocol.mean_text} on average, ${protocol.max_text} at most. Bars: the share of rows that is asked; the dark part is asked nothing more.` +
    (protocol.rare ? ` Rarer questions to ${share(protocol.rare)} of the rows are left out.` : "") +
    (protocol.far ? ` ${share(protocol.far)} of the rows are asked more than is shown.` : "");
}

// -- the tables ---------------------------------------------------------------------------------

function makeMatrix() {
  const columns = data.columns;
  const head = element("tr");
  head.append(element("th", "", "name"));
  for (const i of columns) {
    const cell = element("th");
    cell.append(element("span", steps[i].cost_text));
    cell.dataset.step = i;
    head.append(cell);
  }
  byId("matrix").tHead.replaceChildren(head);
  byId("matrix").tBodies[0].replaceChildren(...data.lines.map((line) => {
    const row = element("tr");
    const name = element("th", line.name + " ", line.is_part ? "name part" : "name");
    name.append(element("small", line.price_text));
    row.append(name, ...columns.map((i) => {
      const bought = steps[i].resources.includes(line.name);
      const cell = element("td", "", bought ? "bought" : "");
      cell.dataset.step = i;
      cell.ariaLabel = bought ? "bought" : "not bought";
      return cell;
    }));
    return row;
  }));
  byId("matrix").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-step]");
    if (cell) choose(+cell.dataset.step);
  });
  byId("matrix-section").hidden = data.lines.length === 0;
}

function makeTable() {
  const has_test = steps.some((step) => step.test !== null);
  const heads = ["cost", data.axes.is_total ? "total" : "score", ...(has_test ? ["test"] : []), "what it adds"];
  fill(byId("table").tHead, [heads.map((head) => element("th", head, head === "what it adds" ? "" : "number"))]);
  fill(byId("table").tBodies[0], steps.map((step) => [
    element("td", step.cost_text, "number"),
    element("td", step.score_text + (step.error_text ? ` ± ${step.error_text}` : ""), "number"),
    ...(has_test ? [element("td", step.test_text, "number")] : []),
    element("td", step.adds.replace(/([+\u2212]) /g, "$1\u00a0")),
  ]));
  [...byId("table").tBodies[0].rows].forEach((row, i) => row.addEventListener("click", () => choose(i)));
  byId("copy").addEventListener("click", async () => {
    const lines = [["cost", "score", "standard error", "test score", "what it adds"],
      ...steps.map((step) => [step.cost, step.score, step.error ?? "", step.test ?? "", step.adds])];
    const text = lines.map((cells) => cells.join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      byId("copy").textContent = "copied";
    } catch {
      getSelection().selectAllChildren(byId("table"));
    }
  });
}

// Sections go where there is room, so that neither column ends in a void.
function balanceColumns() {
  const columns = document.querySelectorAll(".column");
  for (const section of sections) section.remove();
  const bottoms = [...columns].map((column) => column.lastElementChild.getBoundingClientRect().bottom);
  columns[0].append(...sections);
  const heights = sections.map((section) => section.getBoundingClientRect().height);
  // Of all ways to share them out, the one with the least uneven columns.
  const uneven = (way) => {
    const ends = [...bottoms];
    heights.forEach((height, i) => { ends[way >> i & 1] += height; });
    return Math.abs(ends[0] - ends[1]);
  };
  const ways = [...Array(2 ** sections.length).keys()];
  const best = ways.reduce((one, other) => (uneven(other) < uneven(one) ? other : one));
  sections.forEach((section, i) => columns[best >> i & 1].append(section));
}
const sections = ["matrix-section", "table-section", "settings-section"].map(byId);

function markChosen() {
  for (const cell of byId("matrix").querySelectorAll("[data-step]")) {
    cell.classList.toggle("chosen", +cell.dataset.step === state.shown);
  }
  [...byId("table").tBodies[0].rows].forEach((row, i) => row.classList.toggle("chosen", i === state.shown));
}

function show() {
  byId("slider").ariaValueText = steps[state.shown].cost_text;
  showModel();
  markChosen();
  drawCurve();
}

function start() {
  byId("lead").textContent = data.lead;
  byId("provenance").textContent = data.provenance;
  byId("curve-heading").textContent = data.heading;
  byId("unit").textContent = data.unit;
  byId("slider").max = steps.length - 1;
  byId("slider").disabled = steps.length === 1;
  fill(byId("settings").tBodies[0], data.settings.map(({ name, value, is_default }) =>
    [element("td", name, is_default ? "" : "own"), element("td", value, is_default ? "" : "own")]));
  writeLegend();
  makeMatrix();
  makeTable();
  choose(data.recommended);
  balanceColumns();
  byId("slider").addEventListener("input", (event) => choose(+event.target.value, "slider"));
  byId("budget").addEventListener("input", (event) => {
    if (event.target.value !== "" && event.target.validity.valid) chooseBudget(+event.target.value);
  });
  new ResizeObserver(drawCurve).observe(byId("curve"));
}
start();
})();
