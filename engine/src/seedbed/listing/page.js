"use strict";
// What records say reaches the page as text nodes and attributes of our choice, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
// Integers of records are BigInt, with all their digits, and floats are numbers.
function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (typeof value === "number") return Number.isInteger(value) ? BigInt(value) : value;
  if (value === null || typeof value !== "object") return value;
  if ("int" in value) return BigInt(value.int);
  return {"inf": Infinity, "-inf": -Infinity, "nan": NaN}[value.float] ?? Number(value.float);
}

const runs = data.runs.map((values, index) => ({
  values: new Map(Object.entries({...data.constant, ...values})
    .map(([key, value]) => [key, decoded(value)])),
  json: new Map(Object.entries({...data.constant, ...values})
    .map(([key, value]) => [key, JSON.stringify(value)])),
  group: data.groups[index],
  seed: data.seeds[index],
  fold: data.folds[index],
  curves: new Map(Object.entries(data.curves[index])),
  pictures: data.pictures[index],
}));
const keys = [...new Set(runs.flatMap((run) => [...run.values.keys()]))].sort();
const COLORS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b",
  "#e377c2", "#bcbd22", "#7f7f7f"];
const state = {
  columns: data.columns, filter: "", sort: null, descending: false, grouped: false,
  selected: new Set(), curve: null, byEpoch: false, log: false,
};

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

function drawing(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function isNumber(value) {
  return typeof value === "bigint" || (typeof value === "number" && !Number.isNaN(value));
}

// The text that conditions are about, the same as of `runs.py --where`: all digits.
function textOf(value) {
  if (value == null) return "null";
  if (Array.isArray(value)) return `[${value.map(textOf).join(", ")}]`;
  // Of a stranger's record: an object's own toString may be anything.
  if (typeof value === "object") {
    return JSON.stringify(value, (_, part) => typeof part === "bigint" ? String(part) : part);
  }
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf").replace("NaN", "nan");
  const [digits, exponent] = value.toExponential().split("e");
  if (exponent < -4 || exponent >= 16) {
    return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  }
  return Number.isInteger(value) ? `${value}.0` : String(value);
}

// The text of a cell: floats with six significant digits, integers with all.
function shown(value) {
  if (value === undefined) return "-";
  if (Array.isArray(value)) return `[${value.map(shown).join(", ")}]`;
  if (typeof value !== "number" || !Number.isFinite(value)) return textOf(value);
  const rounded = Number(value.toPrecision(6));
  return Math.abs(rounded) < 1e6 ? String(rounded) : rounded.toExponential();
}

// The number that a text is, integers with all their digits; null if it is none.
function numberOf(word) {
  if (!new RegExp(`^(?:${data.grammar.number})$`).test(word)) return null;
  return /^[+-]?[0-9]+$/.test(word) ? BigInt(word) : Number(word);
}

function unquoted(word) {
  return /^["']/.test(word) ? word.slice(1, -1) : word;
}

// The conditions in a text, as of `runs.py --where`: KEY=VALUE, !=, <, <=, >, >=, KEY or !KEY.
function conditionsOf(words) {
  const conditions = [];
  let rest = words;
  while (rest.trim()) {
    const found = new RegExp(`^${data.grammar.condition}`).exec(rest);
    if (!found || (found[1] && found[3])) throw new Error(`expected KEY=VALUE, got ${rest}`);
    const [whole, not, key, relation, value] = found;
    conditions.push(condition(not, unquoted(key), relation, unquoted(value || "")));
    rest = rest.slice(whole.length);
  }
  return conditions;
}

function condition(not, key, relation, asked) {
  if (!keys.includes(key)) {
    throw new Error(`no run has the key ${key}${relation ? "" : "; a value with spaces needs quotes"}`);
  }
  if (!relation) {
    return (run) => {
      const value = run.values.get(key);
      const has = !(value == null || value === false || value === "" || value.length === 0);
      return has !== Boolean(not);
    };
  }
  const number = numberOf(asked);
  const pattern = new RegExp(`^${asked.split("*").map((part) =>
    part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".*")}$`, "s");
  const is = (value) => {
    if (Array.isArray(value) && value.some(is)) return true;
    // A BigInt can equal a number by == alone.
    return isNumber(value) && number !== null ? value == number : pattern.test(textOf(value));
  };
  if (relation === "=") return (run) => is(run.values.get(key));
  if (relation === "!=") return (run) => !is(run.values.get(key));
  const holds = {"<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b,
    ">=": (a, b) => a >= b}[relation];
  return (run) => {
    const value = run.values.get(key);
    if (typeof value === "string") return holds(value, asked);
    return isNumber(value) && number !== null && holds(value, number);
  };
}

function filtered() {
  const conditions = conditionsOf(state.filter);
  return runs.filter((run) => conditions.every((holds) => holds(run)));
}

// Runs that differ in seeds alone are one row: means of numbers, and what all have in common.
function grouped(members) {
  const groups = new Map();
  for (const run of members) {
    if (!groups.has(run.group)) groups.set(run.group, []);
    groups.get(run.group).push(run);
  }
  return [...groups.values()].map((several) => ({
    runs: several,
    values: new Map(state.columns.map((key) => [key, summary(several, key)])),
    text: (key) => summaryText(several, key),
  }));
}

function valuesOf(several, key) {
  return several.map((run) => run.values.get(key)).filter((value) => value != null);
}

function isMean(key, values) {
  return !data.seed_keys.includes(key) && values.length > 0 && values.every(isNumber);
}

// Values that are independent, as in sweep_report.py: one of each seed, which is the mean of its
// repetitions and folds. Seeds that lack folds are left out; with one seed, its folds are the values.
function bySeed(several, key) {
  const table = new Map();
  for (const run of several.filter((member) => member.values.get(key) != null)) {
    if (!table.has(run.seed)) table.set(run.seed, new Map());
    const folds = table.get(run.seed);
    folds.set(run.fold, [...(folds.get(run.fold) || []), run.values.get(key)]);
  }
  const seeds = [...table.values()].map((folds) =>
    new Map([...folds].map(([fold, values]) => [fold, mean(values)])));
  if (seeds.length === 1) return [...seeds[0].values()];
  const most = seeds.reduce((a, b) => (b.size > a.size ? b : a));
  const whole = seeds.filter((folds) =>
    folds.size === most.size && [...most.keys()].every((fold) => folds.has(fold)));
  return whole.map((folds) => mean([...folds.values()]));
}

function mean(values) {
  return values.reduce((sum, value) => sum + Number(value), 0) / values.length;
}

function summary(several, key) {
  const values = valuesOf(several, key);
  if (key === "run") return several.length;
  if (isMean(key, values)) return mean(bySeed(several, key));
  return summaryText(several, key);
}

function summaryText(several, key) {
  const values = valuesOf(several, key);
  if (key === "run") {
    const repeated = several.length - new Set(several.map((run) => `${run.seed} ${run.fold}`)).size;
    const note = repeated ? `, ${repeated} repeated` : "";
    return `${several.length} run${several.length === 1 ? "" : "s"}${note}`;
  }
  const distinct = [...new Set(values.map(shown))];
  if (distinct.length <= 1) return distinct.length ? distinct[0] : "-";
  if (!isMean(key, values)) return distinct.join(", ");
  const independent = bySeed(several, key);
  const center = mean(independent);
  if (independent.length === 1) return `${shown(center)} (1)`;
  const squares = independent.reduce((sum, value) => sum + (value - center) ** 2, 0);
  const deviation = Math.sqrt(squares / (independent.length - 1));
  return `${shown(center)} \u00b1 ${Number(deviation.toPrecision(2))} (${independent.length})`;
}

function compare(a, b) {
  const [one, other] = [a, b].map((row) => row.values.get(state.sort));
  const missing = [one, other].map((value) => value == null || value === "-" || Number.isNaN(value));
  if (missing[0] || missing[1]) return missing[0] - missing[1];
  const texts = [one, other].map((value) => !isNumber(value));
  const [low, high] = texts[0] && texts[1] ? [textOf(one), textOf(other)] : [one, other];
  const order = texts[0] - texts[1] || (low > high) - (low < high);
  return state.descending ? -order : order;
}

function tableOf(rows) {
  const header = element("tr", {}, element("th", {}, ""), ...state.columns.map((key) => {
    const arrow = state.sort === key ? (state.descending ? " \u25be" : " \u25b4") : "";
    const remove = element("button", {title: "hide this column", onclick: (event) => {
      event.stopPropagation();
      state.columns = state.columns.filter((other) => other !== key);
      draw();
    }}, "\u00d7");
    return element("th", {onclick: () => {
      state.descending = state.sort === key && !state.descending;
      state.sort = key;
      draw();
    }}, key + arrow, remove);
  }));
  const body = rows.map((row) => {
    const isSelected = row.runs.every((run) => state.selected.has(run));
    const box = element("input", {type: "checkbox", checked: isSelected, onchange: () => {
      for (const run of row.runs) {
        if (isSelected) state.selected.delete(run); else state.selected.add(run);
      }
      draw();
    }});
    const cells = state.columns.map((key) => {
      const kind = isNumber(row.values.get(key)) ? "number" : "long";
      const status = key === "status" ? ` status-${String(row.values.get(key)).match(/^\w*/)[0]}` : "";
      const text = row.text(key);
      return element("td", {className: kind + status, title: text}, text);
    });
    return element("tr", {className: isSelected ? "selected" : ""},
      element("td", {}, box), ...cells);
  });
  return element("table", {}, element("thead", {}, header), element("tbody", {}, ...body));
}

function curveOf(selected) {
  const names = [...new Set(selected.flatMap((run) => [...run.curves.keys()]))].sort();
  if (!names.length) return [];
  const preferred = names.find((name) => name === "validation loss") || names[0];
  const name = names.includes(state.curve) ? state.curve : preferred;
  const choice = element("select", {onchange: (event) => {
    state.curve = event.target.value;
    draw();
  }}, ...names.map((other) => element("option", {selected: other === name}, other)));
  const toggle = (label, key) => element("label", {}, element("input", {
    type: "checkbox", checked: state[key], onchange: () => { state[key] = !state[key]; draw(); },
  }), ` ${label}`);
  const lines = selected.map((run, index) => {
    const [steps, epochs, values] = run.curves.get(name) || [[], [], []];
    const points = values.map((y, at) => [(state.byEpoch ? epochs : steps)[at], y])
      .filter(([x, y]) => x != null && y != null && !(state.log && y <= 0))
      .map(([x, y]) => [x, state.log ? Math.log10(y) : y]);
    return {run, points, color: COLORS[index % COLORS.length]};
  });
  const legend = lines.map(({run, color}) => {
    const key = element("span", {className: "key"});
    key.style.background = color;
    return element("div", {}, key, shown(run.values.get("run")));
  });
  const bar = element("div", {className: "bar"}, choice, toggle("by epoch", "byEpoch"),
    toggle("logarithmic", "log"));
  return [element("h2", {}, "Curves"), bar, plot(lines),
    element("div", {className: "legend"}, ...legend)];
}

function plot(lines) {
  const [width, height, left, bottom] = [760, 340, 70, 30];
  const points = lines.flatMap((line) => line.points);
  const range = (axis) => {
    const [least, most] = points.reduce(([low, high], point) =>
      [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]);
    return least < most ? [least, most] : [least - 0.5, most + 0.5];
  };
  const canvas = drawing("svg", {viewBox: `0 0 ${width} ${height}`, width, height});
  if (!points.length) return canvas;
  const [xs, ys] = [range(0), range(1)];
  const x = (value) => left + (value - xs[0]) / (xs[1] - xs[0]) * (width - left - 15);
  const y = (value) => height - bottom - (value - ys[0]) / (ys[1] - ys[0]) * (height - bottom - 15);
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const [atX, atY] = [xs, ys].map(([least, most]) => least + part * (most - least));
    const label = state.log ? 10 ** atY : atY;
    canvas.append(
      drawing("line", {x1: left, x2: width - 15, y1: y(atY), y2: y(atY), stroke: "#eee"}),
      drawing("text", {x: left - 6, y: y(atY) + 4, "text-anchor": "end"},
        String(Number(label.toPrecision(4)))),
      drawing("text", {x: x(atX), y: height - 8, "text-anchor": "middle"},
        String(Number(atX.toPrecision(4)))));
  }
  for (const {run, points: own, color} of lines) {
    const title = drawing("title", {}, shown(run.values.get("run")));
    const path = own.map((point) => `${x(point[0])},${y(point[1])}`).join(" ");
    canvas.append(drawing("polyline", {points: path, fill: "none", stroke: color,
      "stroke-width": 1.6}, title));
    if (own.length === 1) {
      canvas.append(drawing("circle", {cx: x(own[0][0]), cy: y(own[0][1]), r: 3, fill: color}));
    }
  }
  return canvas;
}

function differences(selected) {
  if (selected.length !== 2) return [];
  const [a, b] = selected;
  const differing = keys.filter((key) => a.json.get(key) !== b.json.get(key));
  const cell = (value) => {
    const text = value === undefined ? "-" : textOf(value);
    return element("td", {className: "long", title: text}, text);
  };
  const rows = differing.map((key) => element("tr", {},
    element("td", {}, key), cell(a.values.get(key)), cell(b.values.get(key))));
  return [element("h2", {}, "Differences"), element("div", {className: "scroll"},
    element("table", {id: "differences"}, element("tbody", {}, ...rows)))];
}

function pictures(selected) {
  const figures = selected.flatMap((run) => run.pictures.map(([name, source]) =>
    element("figure", {}, element("img", {src: source, alt: name}),
      element("figcaption", {}, `${shown(run.values.get("run"))}/${name}`))));
  const note = data.pictures_left_out ? [element("p", {},
    `${data.pictures_left_out} pictures are left out of this page: it would be too large`)] : [];
  return figures.length ? [element("h2", {}, "Pictures"), ...figures, ...note] : [];
}

const top_ = element("div", {className: "bar"},
  element("input", {type: "text", id: "filter", placeholder: "filter: optimizer.lr<0.01 model.name=cnn !tags",
    oninput: (event) => { state.filter = event.target.value; draw(); }}),
  element("input", {type: "text", id: "column", className: "short", placeholder: "add a column: any key",
    onchange: (event) => {
      const key = event.target.value;
      if (keys.includes(key) && !state.columns.includes(key)) state.columns = [...state.columns, key];
      event.target.value = "";
      draw();
    }}),
  element("datalist", {id: "keys"}, ...keys.map((key) => element("option", {value: key}))),
  element("label", {}, element("input", {type: "checkbox", id: "grouped", onchange: (event) => {
    state.grouped = event.target.checked;
    draw();
  }}), " group by everything but the seeds"),
  element("button", {id: "none", onclick: () => { state.selected.clear(); draw(); }}, "select none"),
  element("span", {id: "count"}));
const table = element("div", {className: "scroll", id: "runs"});
const below = element("div", {id: "selected"});
document.body.append(top_, table, below);
document.getElementById("column").setAttribute("list", "keys");

function draw() {
  const count = document.getElementById("count");
  let members;
  try {
    members = filtered();
    count.className = "";
  } catch (error) { // a condition that is being typed
    count.textContent = error.message;
    count.className = "error";
    return;
  }
  let rows = state.grouped ? grouped(members) : members.map((run) => ({
    runs: [run], values: run.values, text: (key) => shown(run.values.get(key)),
  }));
  if (state.sort !== null) rows = rows.sort(compare);
  count.textContent = `${members.length} of ${runs.length} runs`;
  table.replaceChildren(tableOf(rows));
  const selected = members.filter((run) => state.selected.has(run));
  const hint = element("p", {}, "Select runs to see their curves and pictures; two, also what differs.");
  below.replaceChildren(...(selected.length
    ? [...curveOf(selected), ...differences(selected), ...pictures(selected)] : [hint]));
}

draw();
