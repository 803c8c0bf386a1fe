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

// A sign stays with what it is of.
const tied = (text) => text.replace(/([+\u2212]) /g, "$1\u00a0");

// Text whose long words may be broken after their signs, and elsewhere if they have none.
function words(tag, text, className) {
  const made = element(tag, undefined, className);
  const parts = text.split(/(\s+)/).flatMap((word) => (word.length > 14 ? word.split(/(?<=[_./:-])/) : [word]));
  made.append(...parts.flatMap((part, i) => (i ? [element("wbr"), part] : [part])));
  if (parts.some((part) => part.length > 18)) made.classList.add("long");
  return made;
}

// -- the choice ---------------------------------------------------------------------------------

// The steps rise with their cost, so the best affordable model is the last one. A price is rounded
// where it is printed, and whoever types what is printed wants that model.
function atBudget(budget) {
  const found = steps.findLastIndex((step) => Math.min(step.cost, +step.printed) <= budget);
  return found < 0 ? 0 : found;
}

function choose(index, source) {
  Object.assign(state, { shown: index, budget: steps[index].cost });
  if (source !== "slider") byId("slider").value = index;
  if (source !== "field") byId("budget").value = steps[index].printed;
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

const kindOf = (other) => (other.ignores_prices ? "other ignored" : "other");

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
  const line = data.line;
  if (steps.every((step) => step.error !== null)) {
    const edge = (sign) => line.map(([cost, score], i) => [cost, score + sign * steps[i].error]);
    const lower = edge(-1).reverse().map(([cost, score]) => `V${y(score)}H${x(cost)}`).join("");
    const clip = drawing("clipPath", { id: "inside" });
    clip.append(drawing("rect", { x: margin.left, y: margin.top, width: end - margin.left, height: floor - margin.top }));
    svg.append(clip, drawing("path", { class: "band", d: `${staircase(edge(1), x, y)}H${end}${lower}Z`, "clip-path": "url(#inside)" }));
  }
  svg.append(drawing("path", { class: "steps", d: staircase(line, x, y) + `H${end}` }));
  line.forEach(([cost, score], i) => {
    const next = i + 1 < line.length ? line[i + 1] : null;
    taken.push(rect(x(cost), y(score) - 2, (next ? x(next[0]) : end) - x(cost), 4));
    if (next) taken.push(rect(x(next[0]) - 2, y(next[1]), 4, y(score) - y(next[1])));
  });
  for (const other of data.baselines) {
    const kind = kindOf(other);
    if (other.cost <= data.axes.high) {
      // Larger than a point, which is drawn on top of it.
      svg.append(drawing("path", { class: kind, d: cross(x(other.cost), y(other.score), 7) }));
      taken.push(rect(x(other.cost) - 8, y(other.score) - 8, 16, 16));
    } else {
      svg.append(drawing("line", { class: kind, "stroke-dasharray": "2 4", x1: margin.left, x2: end, y1: y(other.score), y2: y(other.score) }));
    }
  }
  const shown = steps[state.shown];
  if (state.budget <= data.axes.high) {
    svg.append(drawing("line", { class: "budget", x1: x(state.budget), x2: x(state.budget), y1: margin.top, y2: floor }));
  }
  const points = [];
  steps.forEach((step, i) => {
    if (!step.is_main && step !== shown) return;
    const [left, top] = [x(step.cost), y(step.score)];
    if (step.test !== null && step.test >= data.axes.bottom) {
      svg.append(drawing("path", { class: "test", d: diamond(left, y(step.test), 5) }));
      taken.push(rect(left - 6, y(step.test) - 6, 12, 12));
    }
    if (step.score < data.axes.bottom) return;
    const point = drawing("circle", { class: "point", cx: left, cy: top, r: 4.5 });
    point.append(drawing("title", {}, `${step.cost_text}: ${step.score_text}, ${step.adds}`));
    point.addEventListener("click", () => choose(i));
    svg.append(point);
    taken.push(rect(left - 6, top - 6, 12, 12));
    points.push([left, top]);
  });
  const best = steps[data.recommended];
  svg.append(drawing("circle", { class: "ring", cx: x(best.cost), cy: y(best.score), r: 9, "pointer-events": "none" }));
  if (shown !== best && shown.score >= data.axes.bottom) {
    svg.append(drawing("circle", { class: "shown", cx: x(shown.cost), cy: y(shown.score), r: 9, "pointer-events": "none" }));
  }
  writeLabels(svg, x, y, { taken, points, words: [] }, { left: margin.left + 2, right: width - 2, top: 2, bottom: floor - 2 });
}

const rect = (x, y, width, height) => ({ x, y, width, height });
const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

// What steps add, those that matter most first, each where it covers nothing.
function writeLabels(svg, x, y, used, room) {
  const labelled = steps.map((_, i) => i).filter((i) => steps[i].labels.length && steps[i].score >= data.axes.bottom);
  const gain = (i) => steps[i].score - steps[labelled[labelled.indexOf(i) - 1] ?? 0].score;
  labelled.map((i) => [i, gain(i)])
    .sort(([a, one], [b, other]) => (b === data.recommended) - (a === data.recommended) || other - one)
    .forEach(([i]) => {
      const place = [x(steps[i].cost), y(steps[i].score)];
      steps[i].labels.some((label) => writeLabel(svg, place, label, i === data.recommended, used, room));
    });
}

// How far a box is from a point.
const away = (box, [x, y]) => Math.hypot(
  Math.max(box.x - x, 0, x - box.x - box.width), Math.max(box.y - y, 0, y - box.y - box.height));

function writeLabel(svg, [x, y], label, strong, used, room) {
  const text = drawing("text", { class: strong ? "label strong" : "label", x: 0, y: 0 }, label);
  svg.append(text);
  const { width, height } = text.getBBox();
  for (let lines = 0; lines < 5; lines++) {
    const shift = 8 + lines * height;
    for (const [left, top, side] of [[x + 9, y + shift - 4, 1], [x - 9 - width, y - shift - height + 8, -1],
      [x + 9, y - shift - height + 4, 1], [x - 9 - width, y + shift - 4, -1]]) {
      const place = rect(left, top, width, height);
      const inside = left >= room.left && left + width <= room.right && top >= room.top && top + height <= room.bottom;
      if (!inside || used.taken.some((other) => overlap(place, other))) continue;
      // Words that are nearer to another point would be read as about that one.
      if (lines && used.points.some((point) => away(place, point) + 1 < away(place, [x, y]))) continue;
      const start = [side > 0 ? left : left + width, top + height / 2];
      const leader = lines ? Array.from({ length: 12 }, (_, k) => rect(
        start[0] + (k + 0.5) / 12 * (x - start[0]) - 1, start[1] + (k + 0.5) / 12 * (y - start[1]) - 1, 2, 2)) : [];
      if (leader.some((part) => used.words.some((other) => overlap(part, other)))) continue;
      text.setAttribute("x", left);
      text.setAttribute("y", top + 0.78 * height);
      if (lines) svg.append(drawing("line", { class: "leader", x1: start[0], y1: start[1], x2: x, y2: y, "pointer-events": "none" }));
      used.taken.push(place, ...leader);
      used.words.push(place);
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
    ...data.baselines.map((other) => ["path", { class: kindOf(other), d: cross(11, 7, 5) }, `${other.name}: ${other.score_text} for ${other.cost_text}`]),
    ["circle", { class: "shown", cx: 11, cy: 7, r: 6 }, "shown"],
  ];
  byId("legend").replaceChildren(...entries.map(([tag, attributes, said]) => {
    const entry = element("span", undefined, `entry entry-${attributes.class}`);
    const sign = drawing("svg", { viewBox: "0 0 22 14" });
    sign.append(drawing(tag, attributes));
    entry.append(sign, said);
    return entry;
  }));
}

// -- the model ----------------------------------------------------------------------------------

function showModel() {
  const step = steps[state.shown];
  const mean = data.by_row ? " on average" : "";
  const place = state.shown === data.recommended ? "Recommended: " : "";
  byId("model-heading").textContent = `${place}${step.cost_text} a prediction${mean}`;
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

// The bill of every row, or what rows are asked for on average; both add up to the cost.
function showList(step) {
  const kind = !data.by_row ? "flat" : step.asked ? "asked" : "plain";
  byId("list-heading").textContent = kind === "flat" ? "Shopping list" : "What rows are asked for";
  const has_gain = kind === "flat" && (step.free.share_text || step.list.some((cells) => cells[2]));
  const heads = { flat: ["price", "total", ...(has_gain ? ["gain"] : [])], asked: ["price", "of the rows", "mean cost"], plain: ["price"] }[kind];
  const row = (name, cells) => [name, ...heads.map((_, i) => element("td", cells[i] ?? "", "number"))];
  fill(byId("list").tHead, [[element("th", "what"), ...heads.map((head) => element("th", head, "number"))]]);
  byId("list").tHead.rows[0].lastElementChild.title = has_gain ? "share of what the trees gained in training" : "";
  const rows = step.list.map(([line, ...cells]) => row(
    words("td", data.lines[line].name, data.lines[line].is_part ? "part" : ""), [data.lines[line].price_text, ...cells]));
  if (step.free.n) rows.push(row(words("td", step.free.names), ["free", "", kind === "flat" ? step.free.share_text : ""]));
  if (step.asked?.trees_text) rows.push(row(element("td", "trees"), ["", "", step.asked.trees_text]));
  if (step.asked && rows.length) rows.push(row(element("td", "mean of all rows", "sum"), ["", "", step.asked.mean_text]));
  fill(byId("list").tBodies[0], rows);
  byId("list").hidden = rows.length === 0;
  byId("list-note").textContent = step.note;
}

function showChanges() {
  const at = state.shown;
  const changes = steps[at].beside.map((other) => {
    const how = other.step < at ? "Cheaper" : "More expensive";
    return words("li", tied(`${how} (${steps[other.step].cost_text}): ${other.change}; ${other.score}`));
  });
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
  byId("protocol").replaceChildren(...protocol.steps.map((question) => {
    const item = element("li");
    item.style.paddingLeft = `${Math.min(question.depth, 8) * (phone.matches ? 0.6 : 1.2)}rem`;
    const head = element("div", undefined, "head");
    head.append(words("span", `${question.name} (${question.price_text})`), element("span", question.share_text, "number"));
    const bar = element("div", undefined, "bar");
    const [asked, ends] = [element("i"), element("b")];
    asked.style.width = `${100 * question.share}%`;
    ends.style.width = `${100 * question.ends}%`;
    bar.append(asked, ends);
    item.append(head);
    if (question.conditions) item.append(words("small", "with " + question.conditions));
    item.append(bar);
    return item;
  }));
  const { none_text, n_hidden, rare_text, far_text } = protocol;
  byId("protocol-note").textContent = [
    "Bars: the share of rows that is asked; the solid part is asked for nothing more that costs.",
    none_text !== "0%" ? `${none_text} of the rows are asked for nothing that costs.` : "",
    n_hidden ? `Questions to fewer rows are left out: ${n_hidden}.` : "",
    rare_text !== "0%" ? `Rare questions to ${rare_text} of the rows are left out.` : "",
    far_text !== "0%" ? `${far_text} of the rows are asked more than is counted.` : "",
  ].filter(Boolean).join(" ");
}

// -- the tables ---------------------------------------------------------------------------------

// Tables have the models that matter most, and the one that is shown.
function mark(cell, i) {
  cell.dataset.step = i;
  if (!steps[i].is_main) cell.classList.add("minor");
  return cell;
}

function makeMatrix() {
  const head = element("tr");
  head.append(element("th", "", "name"), ...steps.map((step, i) => {
    const cell = mark(element("th"), i);
    cell.append(element("span", step.cost_text));
    return cell;
  }));
  byId("matrix").tHead.replaceChildren(head);
  const row = (name, is_bought) => {
    const made = element("tr");
    made.append(name, ...steps.map((step, i) => {
      const cell = mark(element("td", "", is_bought(step) ? "bought" : ""), i);
      cell.ariaLabel = is_bought(step) ? "bought" : "not bought";
      return cell;
    }));
    return made;
  };
  const rows = data.lines.map((line, k) => {
    const name = words("th", line.name + " ", line.is_part ? "name part" : "name");
    name.append(element("small", line.price_text));
    return row(name, (step) => step.bought.includes(k));
  });
  if (steps.some((step) => step.free.n)) rows.push(row(element("th", "what is free", "name"), (step) => step.free.n > 0));
  byId("matrix").tBodies[0].replaceChildren(...rows);
  byId("matrix").addEventListener("click", (event) => {
    const cell = event.target.closest("[data-step]");
    if (cell) choose(+cell.dataset.step);
  });
  byId("matrix-section").hidden = rows.length === 0;
}

function makeTable() {
  const has_test = steps.some((step) => step.test !== null);
  const heads = [data.by_row ? "mean cost" : "cost", data.axes.is_total ? "total" : data.scoring, ...(has_test ? ["on test rows"] : []), "what it adds"];
  fill(byId("table").tHead, [heads.map((head) => element("th", head, head === "what it adds" ? "" : "number"))]);
  fill(byId("table").tBodies[0], steps.map((step) => [
    element("td", step.cost_text, "number"),
    element("td", step.score_text + (step.error_text ? ` ± ${step.error_text}` : ""), "number"),
    ...(has_test ? [element("td", step.test_text, "number")] : []),
    words("td", tied(step.adds)),
  ]));
  [...byId("table").tBodies[0].rows].forEach((row, i) => {
    mark(row, i);
    row.addEventListener("click", () => choose(i));
  });
  const n_main = steps.filter((step) => step.is_main).length;
  byId("table-note").textContent = n_main === steps.length ? "" :
    `${n_main} of ${steps.length} models that no other beats, and the one that is shown; the slider has them all, and so has the copy.`;
  byId("copy").addEventListener("click", async () => {
    const lines = [["cost", "score", "standard error", "test score", "what it buys"],
      ...steps.map((step) => [step.cost, step.score, step.error ?? "", step.test ?? "", step.names.join(", ")])];
    const text = lines.map((cells) => cells.join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      byId("copy").textContent = "copied";
    } catch {
      getSelection().selectAllChildren(byId("table"));
    }
  });
}

// Sections go where there is room, and the curve is as high as to fill what is left, so that neither
// column ends in a void.
function balanceColumns() {
  const columns = [...document.querySelectorAll(".column")];
  const height = (part) => part.getBoundingClientRect().height;
  byId("curve").style.height = "";
  // Columns are not equally wide, so a section is higher in one of them.
  const heights = columns.map((column) => {
    column.append(...sections);
    return sections.map(height);
  });
  const tops = columns.map((column) => height(column.firstElementChild));
  const lacks = (way) => {
    const ends = [...tops];
    sections.forEach((_, i) => { ends[way >> i & 1] += heights[way >> i & 1][i]; });
    return ends[1] - ends[0];
  };
  const filled = (way) => Math.min(Math.max(lacks(way), 0), MOST_HIGHER);
  const rest = (way) => Math.abs(lacks(way) - filled(way));
  const best = [...Array(2 ** sections.length).keys()].reduce((one, other) => (rest(other) < rest(one) ? other : one));
  sections.forEach((section, i) => columns[best >> i & 1].append(section));
  if (getComputedStyle(columns[0]).display === "contents") return;
  const ends = columns.map((column) => column.lastElementChild.getBoundingClientRect().bottom);
  byId("curve").style.height = `${height(byId("curve")) + Math.min(Math.max(ends[1] - ends[0], 0), MOST_HIGHER)}px`;
}
const sections = ["matrix-section", "table-section"].map(byId);
const MOST_HIGHER = 260;

function show() {
  byId("slider").ariaValueText = steps[state.shown].cost_text;
  for (const cell of document.querySelectorAll("[data-step]")) {
    cell.classList.toggle("chosen", +cell.dataset.step === state.shown);
  }
  byId("legend").querySelector(".entry-shown").hidden = state.shown === data.recommended;
  showModel();
  drawCurve();
}

function start() {
  byId("lead").textContent = data.lead;
  byId("provenance").textContent = data.provenance;
  byId("curve-heading").textContent = data.heading;
  byId("unit").textContent = data.unit;
  byId("slider").max = steps.length - 1;
  byId("slider").disabled = steps.length === 1;
  byId("settings").replaceChildren(...data.settings.map(({ name, value, is_default }) => {
    const both = element("div", undefined, is_default ? "" : "own");
    both.append(words("span", name), words("span", value));
    return both;
  }));
  writeLegend();
  makeMatrix();
  makeTable();
  choose(data.recommended);
  balanceColumns();
  byId("slider").addEventListener("input", (event) => choose(+event.target.value, "slider"));
  byId("budget").addEventListener("input", (event) => {
    if (event.target.value !== "" && event.target.validity.valid) chooseBudget(+event.target.value);
  });
  const columns = matchMedia("(min-width: 60rem)");
  columns.addEventListener("change", balanceColumns);
  new ResizeObserver(drawCurve).observe(byId("curve"));
}
start();
})();
