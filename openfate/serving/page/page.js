// The page of a service: charts drawn as SVG, the status by server-sent events, nothing from elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const show = (value, digits = 3) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
const signed = (value) => (value >= 0 ? "+" : "−") + show(Math.abs(value));
const nameOf = (score) => (score === "auc" ? "AUC" : score.replaceAll("_", " "));
const LESS_IS_BETTER = /loss|brier|error/;

// WHY apart: a screen reader would read out every new figure of the verdict; it is told when the word changes.
function announce(word, figures = "") {
  $("verdict").textContent = word + figures;
  if ($("announced").textContent !== word) $("announced").textContent = word;
}

// ---- talking to the service ----------------------------------------------------------------------

const headers = () => {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
};

async function ask(path, body) {
  const options = { headers: headers() };
  if (body !== undefined) Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  const answer = await fetch(path, options);
  if (answer.status === 401) $("token-form").hidden = false;
  const told = await answer.json();
  if (!answer.ok) throw new Error(`${told.error.message}: ${told.error.remedy}.`);
  return told;
}

async function follow(path, each) {
  // WHY not EventSource: it cannot send a token.
  const answer = await fetch(path, { headers: headers() });
  if (answer.status === 401) $("token-form").hidden = false;
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) each(JSON.parse(rest.slice(6, end)));
  }
}

// ---- drawing -------------------------------------------------------------------------------------

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const W = 560, PAD = { left: 46, right: 10, top: 24, bottom: 22 };

function range(values, least = 1e-3) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (high - low < least) [low, high] = [low - least, high + least];
  return [low, high];
}

// A frame with axes, and functions from values to places in it: `names` of x and y, and how their ends are written.
function frame(into, height, xs, ys, about, names, { right = PAD.right, tell = (v) => String(+v.toPrecision(3)), ends = null } = {}) {
  const [x0, x1] = range(xs), [y0, y1] = range(ys);
  const x = (v) => PAD.left + ((v - x0) / (x1 - x0)) * (W - PAD.left - right);
  const y = (v) => height - PAD.bottom - ((v - y0) / (y1 - y0)) * (height - PAD.top - PAD.bottom);
  const svg = element("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", "aria-label": about });
  for (const share of [0, 0.5, 1]) {
    const v = y0 + share * (y1 - y0);
    svg.append(element("line", { class: "axis", x1: PAD.left, x2: W - right, y1: y(v), y2: y(v) }));
    svg.append(element("text", { x: 2, y: y(v) + 4 }, tell(v)));
  }
  const [first, last] = ends ?? [x0, x1].map((v) => String(+v.toPrecision(3)));
  svg.append(element("text", { x: PAD.left, y: height - 4 }, first));
  svg.append(element("text", { x: (PAD.left + W - right) / 2, y: height - 4, "text-anchor": "middle" }, names[0]));
  svg.append(element("text", { x: W - right, y: height - 4, "text-anchor": "end" }, last));
  svg.append(element("text", { x: 2, y: 12 }, names[1]));
  $(into).replaceChildren(svg);
  return { svg, x, y };
}

const line = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

const rates = [];

function drawNow(status) {
  $("rate").textContent = show(status.rate, 1);
  $("p50").textContent = `${show(status.p50_ms, 2)} ms`;
  $("p99").textContent = `${show(status.p99_ms, 2)} ms`;
  $("rows").textContent = status.rows.toLocaleString();
  $("new").textContent = status.new_features.toLocaleString();
  $("labels").textContent = status.labels.toLocaleString();
  rates.push(status.rate);
  if (rates.length > 120) rates.shift();
  const { svg, x, y } = frame("rate-chart", 110, [0, 119], [0, ...rates], "Predictions a second over the last two minutes", ["", "predictions a second"], { ends: ["two minutes ago", "now"] });
  svg.append(element("path", { class: "used", d: line(rates.map((v, at) => [x(at + 120 - rates.length), y(v)])) }));
}

function drawWorth(worth) {
  const points = worth.points;
  if (!points.length) return void ($("worth-chart").textContent = "No labels yet: points appear with every fiftieth.");
  const known = Object.keys(points[0].used), select = $("score");
  if (select.options.length !== known.length) {
    select.replaceChildren(...known.map((name) => new Option(nameOf(name), name)));
    select.value = known.includes("auc") ? "auc" : known[0];
  }
  const score = select.value;
  const there = points.filter((p) => p.used[score] !== null && p.ignored[score] !== null);
  if (!there.length) return;
  const last = there[there.length - 1], used = last.used[score], ignored = last.ignored[score];
  const about = `${nameOf(score)} over ${last.labels} labels: ${show(used)} with what is new used, ${show(ignored)} with it ignored`;
  const ys = there.flatMap((p) => [p.used[score], p.ignored[score]]);
  const { svg, x, y } = frame("worth-chart", 240, there.map((p) => p.labels), ys, about, ["labels so far", nameOf(score)], { right: 62 });
  for (const way of ["ignored", "used"]) {
    svg.append(element("path", { class: way, d: line(there.map((p) => [x(p.labels), y(p[way][score])])) }));
    svg.append(element("text", { class: way, x: W - 56, y: y(last[way][score]) + 4 }, way));
  }
  const gain = LESS_IS_BETTER.test(score) ? ignored - used : used - ignored;
  const word = gain > 0.002 ? "Using what is new pays here" : gain < -0.002 ? "Using what is new does not pay here" : "Using what is new makes no difference yet";
  announce(word, `: ${nameOf(score)} ${show(used)} used, ${show(ignored)} ignored, over the last ${Math.min(2000, last.labels)} labels.`);
}

function drawCalibration(bins) {
  if (!bins.length) return void ($("calibration").textContent = "Shown for two classes, once labels come.");
  const about = `Calibration: ${bins.map((b) => `${show(b.predicted, 2)} predicted, ${show(b.happened, 2)} happened`).join("; ")}`;
  const { svg, x, y } = frame("calibration", 240, [0, 1], [0, 1], about, ["predicted", "happened"]);
  svg.append(element("line", { class: "axis", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  for (const bin of bins) svg.append(element("circle", { class: "dot served", cx: x(bin.predicted), cy: y(bin.happened), r: 3 + Math.log10(1 + bin.labels) * 2 }));
}

const known = new Set();

function drawMap({ axes, points }) {
  const about = `Map of ${points.length} features, ${points.filter((p) => p.new).length} of them new`;
  $("map-about").textContent = axes[0] === "effect"
    ? "To the right: features that raise the prediction. Up: those that more rows have. New ones are in colour."
    : "Features that mean the same lie together. New ones are in colour.";
  if (!points.length) return;
  // The height of a point is the logarithm of its rows, the scale tells the rows.
  const options = axes[1] === "rows" ? { tell: (v) => Math.round(10 ** v - 1).toLocaleString() } : {};
  const { svg, x, y } = frame("map", 360, points.map((p) => p.x), points.map((p) => p.y), about, axes, options);
  svg.setAttribute("role", "group");
  const first = !known.size;
  for (const p of [...points].sort((a, b) => a.new - b.new)) {
    const name = `${p.field}=${p.value}`;
    const told = `${name}: ${p.new ? "new" : "observed"}, ${p.rows} rows, moves ${describe(p.effect)}`;
    const appeared = p.new && !first && !known.has(name);
    known.add(name);
    const dot = element("circle", { class: `dot${p.new ? " new" : ""}${appeared ? " appeared" : ""}`, cx: x(p.x), cy: y(p.y), r: p.new ? 6 : 4, tabindex: -1, role: "img", "aria-label": told }, element("title", {}, told));
    for (const event of ["pointerenter", "focus"]) dot.addEventListener(event, () => ($("map-hover").textContent = told));
    svg.append(dot);
  }
  // One stop of the tab key, as a list has one: the newest feature; arrows go to the others.
  svg.lastElementChild.setAttribute("tabindex", 0);
}

function walk(event) {
  const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }, step = steps[event.key];
  const dots = [...$("map").querySelectorAll("circle")], at = dots.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  dots[(at + step + dots.length) % dots.length].focus();
}

function describe(effect) {
  const [name, by] = Object.entries(effect).pop();
  return `${name === "prediction" ? "the prediction" : `the probability of ${name}`} by ${signed(by)}`;
}

function drawTable(features) {
  const [output] = features.length ? Object.keys(features[0].effect).slice(-1) : ["prediction"];
  const near = features.some((f) => f.nearest.length);  // a model without embeddings of new features knows none
  $("near").hidden = !near;
  $("moved").textContent = output === "prediction" ? "the prediction" : `the probability of ${output}`;
  const rows = features.map((f) => {
    const row = document.createElement("tr");
    const nearest = f.nearest.map((n) => `${n.field}=${n.value}`).join(", ") || "–";
    const said = f.labels ? `${show(f.happened, 2)} of ${f.labels.toLocaleString()}` : "–";
    const without = f.labels ? show(f.ignored, 2) : "–";
    for (const text of [`${f.field}=${f.value}`, f.rows.toLocaleString(), signed(f.effect[output]), said, without, ...(near ? [nearest] : [])]) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  });
  if (!rows.length) {
    const row = document.createElement("tr"), cell = document.createElement("td");
    cell.colSpan = 6;
    cell.textContent = "Nothing new yet.";
    row.append(cell);
    rows.push(row);
  }
  $("table").replaceChildren(...rows);
}

// ---- trying a row --------------------------------------------------------------------------------

let fields = [];

async function makeForm() {
  const schema = await ask("/schema");
  const names = schema.fields.map((f) => f.name);
  if (names.join() === fields.map((f) => f.name).join()) return;
  const before = Object.fromEntries(fields.map((f) => [f.name, $(`field-${f.at}`).value]));
  fields = schema.fields.map((f, at) => ({ ...f, at }));
  $("fields").replaceChildren(...fields.map((f) => {
    const label = document.createElement("label"), input = document.createElement("input");
    label.textContent = f.name + (f.observed_features ? "" : " (new)");
    Object.assign(input, { id: `field-${f.at}`, value: before[f.name] || "", placeholder: f.kind });
    label.append(input);
    return label;
  }));
}

const cell = (text, kind) => (kind === "numeric" && text.trim() !== "" && !Number.isNaN(Number(text)) ? Number(text) : text);

async function tryRow(event) {
  event.preventDefault();
  const row = {};
  for (const f of fields) if ($(`field-${f.at}`).value !== "") row[f.name] = cell($(`field-${f.at}`).value, f.kind);
  if ($("extra-name").value) row[$("extra-name").value] = $("extra-value").value;
  const answer = $("answer");
  try {
    const told = await ask("/predict", { row, reasons: true });
    const [p] = told.predictions, last = told.classes.length - 1;
    const of = (P) => show(Array.isArray(P) ? P[last] : P);
    const what = told.classes.length ? `probability of ${told.classes[last]}` : "prediction";
    const sides = document.createElement("div");
    sides.className = "sides";
    for (const [way, P] of [["used", p.probabilities ?? p.value], ["ignored", p.ignored]]) {
      const side = document.createElement("div"), number = document.createElement("b");
      number.className = way;
      number.textContent = of(P);
      side.append(`${what}, what is new ${way}: `, document.createElement("br"), number);
      sides.append(side);
    }
    const list = document.createElement("table");
    const about = list.createCaption();
    about.textContent = told.classes.length ? "What each feature adds to the log-odds, left out alone" : "What each feature adds, left out alone";
    const numeric = new Set(fields.filter((f) => f.kind === "numeric").map((f) => f.name));
    const most = Math.max(...p.reasons.map((r) => Math.abs(r.effect)), 1e-9);
    for (const reason of p.reasons.slice(0, 12)) {
      const line = list.insertRow();
      // A number lies between two places of its scale, which are its features.
      const is = numeric.has(reason.field) ? " near " : "=";
      line.insertCell().textContent = `${reason.field}${is}${reason.value}${reason.new ? " (new)" : ""}`;
      line.insertCell().textContent = signed(reason.effect);
      const bar = document.createElement("div");
      bar.className = `bar${reason.new ? " new" : ""}${reason.effect < 0 ? " less" : ""}`;
      bar.style.width = `${(50 * Math.abs(reason.effect)) / most}%`;
      const place = line.insertCell();
      place.style.width = "50%";
      place.append(bar);
    }
    const unknown = document.createElement("p");
    if (p.unknown.length) unknown.textContent = `Never met before, and so without effect: ${p.unknown.join(", ")}.`;
    answer.replaceChildren(sides, unknown, list);
  } catch (error) {
    const note = document.createElement("p");
    note.className = "error";
    note.textContent = error.message;
    answer.replaceChildren(note);
  }
}

// ---- the story -----------------------------------------------------------------------------------

let seen = -1, busy = false;

async function refresh(status) {
  drawNow(status);
  if (busy || status.position === seen) return;
  busy = true;
  try {
    const [worth, map, listed] = await Promise.all([ask("/worth"), ask("/map"), ask("/features?new=true&limit=40"), makeForm()]);
    drawWorth(worth);
    drawCalibration(worth.calibration);
    if (!$("map").contains(document.activeElement)) drawMap(map);
    drawTable(listed.features);
    if (!worth.points.length) announce("Serving. Whether using what is new pays is told once labels come.");
    seen = status.position;
    document.body.dataset.ready = "true";
  } finally {
    setTimeout(() => (busy = false), 1500);
  }
}

async function watch() {
  for (;;) {
    try {
      await follow("/events", (status) => refresh(status).catch((error) => announce(error.message)));
    } catch (error) {
      announce(`The service cannot be reached (${error.message}); trying again …`);
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token-form").hidden = true;
});
$("score").addEventListener("change", () => ask("/worth").then(drawWorth));
$("try").addEventListener("submit", tryRow);
$("map").addEventListener("keydown", walk);
watch();
