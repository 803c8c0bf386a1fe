"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const phone = matchMedia("(max-width: 40rem)");

// A row says which model it is (trace, n_iter), and what that costs and scores.
const state = { row: null, budget: null, clicked: false, sort: "price", down: false };

// -- words and numbers --------------------------------------------------------------------------

function number(x, digits = 5) {
  if (x === null) return "–";
  if (Math.abs(x) >= 1e4) return x.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, 4) });
  return String(+x.toPrecision(digits));
}
const money = (x) => number(x, 6) + (data.unit ? " " + data.unit : "");
const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
// Plotly reads some HTML in labels; everything else goes through textContent.
const escape = (s) => s.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// A feature, and what it needs if that is not just itself.
function named(feature, resources) {
  const cell = element("td", feature);
  const obvious = resources.length === 0 || (resources.length === 1 && resources[0] === feature);
  if (!obvious) cell.append(element("small", resources.join(", ")));
  return cell;
}

function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells);
    return row;
  }));
}

// -- the budget ---------------------------------------------------------------------------------

const costs = data.traces.flatMap((trace) => trace.cost);
const positive = costs.filter((cost) => cost > 0);
const dearest = Math.max(...costs);
const cheapest = Math.min(...positive);
const isLog = positive.length > 0 && dearest > 10 * cheapest;

function budgetAt(position) {
  if (position >= 1000) return roundUp(dearest);
  if (position <= 0) return 0;
  const budget = isLog ? cheapest * (dearest / cheapest) ** ((position - 1) / 999) : dearest * position / 1000;
  return +budget.toPrecision(4);
}

// A short number that is not less than the cost, so that the model still fits.
function roundUp(cost) {
  const short = +cost.toPrecision(6);
  return short >= cost ? short : +(short + 10 ** (Math.floor(Math.log10(cost)) - 5)).toPrecision(6);
}

function positionOf(budget) {
  if (budget >= dearest) return 1000;
  if (!isLog) return 1000 * budget / dearest;
  if (budget < cheapest) return 0;
  return 1 + 999 * Math.log(budget / cheapest) / Math.log(dearest / cheapest);
}

// The front rises with the cost, so the best affordable model is the last one.
const best = (budget) => data.front.findLast((row) => row.cost <= budget) ?? null;

function setBudget(budget, source) {
  Object.assign(state, { budget, row: best(budget), clicked: false });
  if (source !== "slider") byId("slider").value = positionOf(budget);
  if (source !== "field") byId("budget").value = budget;
  show();
}

function choose(row) {
  Object.assign(state, { row, budget: roundUp(row.cost), clicked: true });
  byId("slider").value = positionOf(row.cost);
  byId("budget").value = roundUp(row.cost);
  show();
}

// -- the curve ----------------------------------------------------------------------------------

const dashes = ["dash", "dot", "longdash", "dashdot"];
const symbols = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right"];
// Zero has no logarithm, so it is drawn a little to the left of the cheapest.
const place = (cost) => (isLog && cost === 0 ? cheapest / Math.max(2, (dearest / cheapest) ** 0.1) : cost);
const drawn = (row) => (byId("test").checked ? row.test : row.score);

function theme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["ink", "faint", "line", "card", "accent", "low", "high"].map(
    (name) => [name, style.getPropertyValue("--" + name).trim()]));
}

function blend(low, high, share) {
  const parts = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const [a, b] = [parts(low), parts(high)];
  return `rgb(${a.map((x, i) => Math.round(x + share * (b[i] - x))).join(",")})`;
}

const isFound = (trace) => trace.found_by !== "path";
const origin = (trace) => (isFound(trace) ? "found by the search" : `tradeoff ${number(trace.tradeoff, 3)}`);

const hover = (row) => `cost ${escape(money(row.cost))}<br>validation ${number(row.score)}` +
  (data.has_test ? `<br>test ${number(row.test)}` : "") +
  `<br>${origin(data.traces[row.trace])}, ${count(row.n_iter, "round")}`;

function line(name, rows, look) {
  return {
    name, x: rows.map((row) => place(row.cost)), y: rows.map(drawn), customdata: rows,
    text: rows.map(hover), hovertemplate: "%{text}<extra></extra>", type: "scatter", ...look,
  };
}

function rowsOf(trace, index) {
  return trace.cost.map((cost, i) => ({
    trace: index, cost, n_iter: trace.n_iter[i], n_trees: trace.n_trees[i], score: trace.score[i],
    test: trace.test ? trace.test[i] : null, n_features: trace.n_features[i],
  }));
}
const rows = data.traces.map(rowsOf);

function lines(colours) {
  const onPath = data.chosen.filter((row) => !isFound(data.traces[row.trace]));
  const found = data.chosen.filter((row) => isFound(data.traces[row.trace]));
  const many = onPath.length;
  const traces = onPath.map((row, i) => {
    const color = blend(colours.low, colours.high, many > 1 ? i / (many - 1) : 0);
    return line("λ = " + number(data.traces[row.trace].tradeoff, 3), rows[row.trace], {
      mode: "lines", line: { color, width: 1.6, dash: dashes[i % dashes.length] }, showlegend: many <= 12,
    });
  });
  const chosen = line("best per λ", onPath, {
    mode: "markers", marker: { size: 11, color: onPath.map((_, i) => traces[i].line.color),
      symbol: onPath.map((_, i) => symbols[i % symbols.length]), line: { width: 1.5, color: colours.ink } },
  });
  const sets = line("found by search", found, {
    mode: "markers", showlegend: found.length > 0,
    marker: { size: 10, color: colours.accent, symbol: "star", line: { width: 1, color: colours.ink } },
  });
  const front = line("best per budget", data.front, {
    mode: "lines+markers", line: { color: colours.ink, width: 1.6, shape: "hv" },
    marker: { size: 5, color: colours.ink },
  });
  const shown = line("shown model", state.row ? [state.row] : [], {
    mode: "markers", marker: { size: 20, color: colours.accent, symbol: "circle-open", line: { width: 3 } },
  });
  return [...traces, front, chosen, sets, shown];
}

function ticks() {
  if (!isLog) return {};
  const values = [];
  const few = Math.log10(dearest / cheapest) > 2.5;
  for (let power = Math.floor(Math.log10(cheapest)); power <= Math.log10(dearest); power++) {
    for (const step of few ? [1] : [1, 2, 5]) values.push(step * 10 ** power);
  }
  const kept = values.filter((x) => x >= cheapest * (1 - 1e-9) && x <= dearest * 1.2);
  const zero = costs.includes(0) ? [0] : [];
  return { tickvals: [...zero, ...kept].map(place), ticktext: [...zero, ...kept].map(
    (x) => (x < 1e4 ? number(x, 3) : x.toExponential().replace("+", ""))) };
}

function layout(colours) {
  const axis = { gridcolor: colours.line, linecolor: colours.line, zeroline: false, automargin: true };
  const budgetLine = {
    type: "line", x0: place(state.budget), x1: place(state.budget), y0: 0, y1: 1, yref: "paper",
    line: { color: colours.accent, width: 1.5, dash: "dot" },
  };
  const low = isLog && state.budget < cheapest; // between nothing and the cheapest there is nothing to see
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colours.ink, size: 13 },
    margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest", uirevision: byId("test").checked,
    // A finger on the plot scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches || phone.matches ? false : "zoom",
    hoverlabel: { bgcolor: colours.card, bordercolor: colours.line, font: { color: colours.ink } },
    legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", font: { size: 12 },
      entrywidthmode: "fraction", entrywidth: phone.matches ? 0.5 : 0.25 },
    xaxis: { ...axis, ...ticks(), ...(dearest === 0 ? { range: [-0.05, 1] } : {}), type: isLog ? "log" : "linear",
      title: { text: "cost of one prediction" + (data.unit ? ` (${escape(data.unit)})` : "") } },
    yaxis: { ...axis, title: { text: (byId("test").checked ? "test " : "validation ") + escape(data.scoring),
      font: { size: phone.matches ? 11 : 14 } } },
    shapes: low ? [] : [budgetLine],
  };
}

let waiting = false;
function draw() {
  if (waiting) return; // once per frame is enough, however fast the slider moves
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    redraw();
  });
}

function redraw() {
  const colours = theme();
  const config = { responsive: true, displaylogo: false, displayModeBar: false };
  Plotly.react("curve", lines(colours), layout(colours), config);
}

// -- the model ----------------------------------------------------------------------------------

function showModel() {
  const row = state.row;
  showProtocol();
  byId("model-heading").textContent = state.clicked ? "The model at this point" : "The best model within the budget";
  byId("receipt-note").textContent = "";
  if (row === null) {
    byId("facts").replaceChildren();
    byId("snippet").textContent = "";
    byId("model-note").textContent = `No model is that cheap; the cheapest costs ${money(Math.min(...costs))}.`;
    fill(byId("receipt").tBodies[0], []);
    return;
  }
  const trace = data.traces[row.trace];
  const facts = [
    ["score", number(row.score), "score"],
    ...(data.has_test ? [["test score", number(row.test), "test-score"]] : []),
    ["cost", money(row.cost), "cost"],
    ["trees", row.n_trees, "trees"],
    ["features", row.n_features, "n-features"],
    isFound(trace) ? ["found by", "search", "tradeoff"] : ["tradeoff λ", number(trace.tradeoff, 3), "tradeoff"],
    ["rounds", row.n_iter, "rounds"],
  ];
  byId("facts").replaceChildren(...facts.map(([name, value, id]) => {
    const both = document.createElement("div");
    const told = element("dd", value);
    told.id = "model-" + id;
    both.append(element("dt", name), told);
    return both;
  }));
  byId("model-note").textContent = row.n_iter === 0 ? "It asks for nothing, and always predicts the same." : "";
  // A curve that has searched might train another model for a budget than the one shown here.
  const asked = `budget=${state.budget}` + (data.traces.some(isFound) ? ", train=False" : "");
  byId("snippet").textContent = state.clicked
    ? `curve.models[${row.trace}].truncate(${row.n_iter})` : `curve.best(${asked})`;
  const bought = data.receipts[row.trace].filter((purchase) => purchase.round < row.n_iter);
  fill(byId("receipt").tBodies[0], bought.map((purchase) => [
    element("td", purchase.round, "number"), named(purchase.feature, purchase.resources),
    element("td", number(purchase.price), "number"),
    element("td", number(purchase.spent, 6), "number"), element("td", number(purchase.gain, 3), "number wide"),
  ]));
  const trees = data.tree_cost * row.n_trees;
  byId("receipt-note").textContent = (bought.length ? "" : "Nothing was bought. ") +
    (trees ? `${count(row.n_trees, "tree")} cost ${money(trees)} more.` : "");
}

// What is asked of whom, question by question, where rows pay for themselves.
function showProtocol() {
  const row = state.row;
  const known = row && data.front.find((other) => other.trace === row.trace && other.n_iter === row.n_iter);
  const protocol = known ? known.protocol : null;
  byId("protocol-part").hidden = protocol === null;
  if (protocol === null) return;
  const share = (x) => number(100 * x, 3) + "%";
  fill(byId("protocol").tBodies[0], protocol.steps.map((step) => {
    const asked = element("td", step.name);
    asked.style.paddingLeft = `${0.5 + Math.min(step.depth, 12)}rem`;
    if (step.conditions) asked.append(element("small", "if " + step.conditions));
    return [asked, element("td", number(step.price), "number"), element("td", share(step.share), "number"),
      element("td", share(step.ends), "number wide")];
  }));
  byId("protocol-note").textContent =
    `${count(protocol.n_rows, "row")} cost ${money(protocol.mean_cost)} on average, ${money(protocol.max_cost)} at most.` +
    (protocol.rare ? ` Rarer questions to ${share(protocol.rare)} of the rows are left out.` : "") +
    (protocol.far ? ` ${share(protocol.far)} of the rows are asked more than is shown.` : "");
}

// -- the tables ---------------------------------------------------------------------------------

const uses = (feature) => data.chosen.map((row, i) => feature.first[i] !== null && feature.first[i] < row.n_iter);
for (const feature of data.features) {
  feature.used = uses(feature);
  feature.uses = feature.used.filter(Boolean).length;
}

let listed = [];
function listFeatures() {
  const sign = state.down ? -1 : 1;
  const compare = state.sort === "name"
    ? (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })
    : (a, b) => a[state.sort] - b[state.sort];
  listed = [...data.features].sort((a, b) => sign * compare(a, b) || a.index - b.index);
  fill(byId("features").tBodies[0], listed.map((feature) => {
    const dots = element("td", feature.used.map((used) => (used ? "●" : "○")).join(""), "dots");
    dots.title = `used by ${feature.uses} of ${count(data.chosen.length, "model")}`;
    return [named(feature.name, feature.needs), element("td", number(feature.price), "number"), dots];
  }));
  markFeatures();
}

function markFeatures() {
  const row = state.row;
  listed.forEach((feature, i) => {
    const first = row === null ? null : feature.first[row.trace];
    byId("features").tBodies[0].rows[i].classList.toggle("used", first !== null && first < row.n_iter);
  });
}

function sortBy(key) {
  state.down = state.sort === key ? !state.down : key === "uses";
  state.sort = key;
  for (const button of document.querySelectorAll("#features th button")) {
    const head = button.parentElement;
    if (button.dataset.key === key) head.ariaSort = state.down ? "descending" : "ascending";
    else head.removeAttribute("aria-sort");
  }
  listFeatures();
}

function show() {
  byId("slider").ariaValueText = money(state.budget);
  showModel();
  markFeatures();
  draw();
}

function start() {
  const path = data.traces.filter((trace) => !isFound(trace));
  const [first, last] = [path[0], path.at(-1)].map((trace) => number(trace.tradeoff, 3));
  const searched = data.traces.length - path.length;
  const order = first === last ? first : `${first} to ${last}`;
  byId("summary").textContent = `${count(path.length, "tradeoff")}, ` +
    (searched ? `${count(searched, "set")} of features found by the search, ` : "") +
    `${count(data.features.length, "feature")}; everything together costs ${money(data.total)}.`;
  byId("features-note").textContent =
    (searched ? `One dot per model: by tradeoff, from ${order}, those that the search has found with those of tradeoff 0, ` +
      "the dearest first" : `One dot per tradeoff, from ${order}`) +
    "; it is full if the best round of that model uses the feature. Features of the model shown are highlighted.";
  byId("unit").textContent = data.unit;
  byId("test-choice").hidden = !data.has_test;
  fill(byId("settings").tBodies[0], data.settings.map(({ name, value, is_default }) =>
    [element("td", name, is_default ? "" : "own"), element("td", value, is_default ? "" : "own")]));
  setBudget(roundUp(dearest));
  listFeatures();
  redraw(); // at once, since only a drawn curve can be listened to

  byId("slider").addEventListener("input", (event) => setBudget(budgetAt(+event.target.value), "slider"));
  byId("budget").addEventListener("input", (event) => {
    if (event.target.value !== "" && event.target.validity.valid) setBudget(+event.target.value, "field");
  });
  byId("curve").on("plotly_click", (event) => choose(event.points[0].customdata));
  byId("test").addEventListener("change", draw);
  for (const button of document.querySelectorAll("#features th button")) {
    button.addEventListener("click", () => sortBy(button.dataset.key));
  }
  for (const query of [dark, phone]) query.addEventListener("change", draw);
}
start();
})();
