// A chart of one metric: curves, points, bands and stacked areas over an axis that counts a run's progress.
const AXES = {step: "steps", tokens: "tokens", hours: "hours of training", bytes: "bytes sent by a rank"};
const NAMESPACE = "http://www.w3.org/2000/svg";
const EVALUATIONS = {held_out_: "held out", probe_: "probe"};
const view = {axis: "step", smooth: false, logX: false, logY: false, seeds: true};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, text = "") {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const color = number => `var(--c${number % 6})`;
const dashes = number => ["", "6 3", "2 3", "8 3 2 3"][Math.floor(number / 6) % 4];
// A metric of one store among several bears its name behind a point, and only there: mlm_loss.own.
const baseOf = name => name.split(".")[0], storeOf = name => name.slice(baseOf(name).length + 1);
const words = name => [baseOf(name).replace("held_out_", "held-out ").replaceAll("_", " "),
                       storeOf(name) === "*" ? "by store" : storeOf(name)].filter(Boolean).join(", ");

function short(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  for (const [unit, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (size >= factor) return `${+(value / factor).toPrecision(digits)}${unit}`;
  return size < 1e-3 ? value.toExponential(digits - 2) : `${+value.toPrecision(digits)}`;
}

// Numbers with as many digits as make all of them different.
function labels(numbers) {
  for (let digits = 4; ; digits++) {
    const found = numbers.map(number => short(number, digits));
    if (new Set(found).size === found.length || digits === 12) return found;
  }
}

function ticks(low, high, count, log) {
  if (log) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const times of [1, 2, 5]) {
        const at = +(times * 10 ** power).toPrecision(12);
        if (at >= low && at <= high) found.push(at);
      }
    const every = Math.ceil(found.length / (2 * count));
    if (found.length > 1) return found.filter((_, i) => i % every === 0);
  }
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 2.5, 5, 10].map(times => times * power).find(each => each >= raw);
  if (Math.floor(high / step) <= Math.ceil(low / step)) step /= 2;  // a single number gives no scale
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(12));
  return found;
}

// A moving mean over a thirtieth of the curve.
function smoothed(values) {
  const reach = Math.max(1, Math.round(values.length / 60));
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter(each => each !== null);
    return near.reduce((sum, each) => sum + each, 0) / near.length;
  });
}

function seedless(run) {
  const {"data.seed": seed, ...others} = run.recipe;
  return JSON.stringify(others);
}

// What charts draw as one: runs that differ in nothing but the seed, or each run alone.
function units() {
  const groups = new Map();
  content.runs.forEach((run, number) => {
    const key = view.seeds ? seedless(run) : number;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(run);
  });
  return [...groups.values()].map(runs => ({
    runs, label: runs.length > 1 ? `${runs[0].name} (mean and range of ${runs.length} seeds)` : runs[0].name}));
}

// A column's value at a step, on a straight line between its neighbours; null outside.
function valueAt(steps, column, step) {
  if (!column || !steps.length || step < steps[0] || step > steps.at(-1)) return null;
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  if (steps[low] === step || low === 0) return column[low];
  const a = column[low - 1], b = column[low];
  return a === null || b === null ? null : a + (b - a) * (step - steps[low - 1]) / (steps[low] - steps[low - 1]);
}

// Mean, lowest and highest value of a metric over the runs of a unit; of a run alone its own values.
function curveOf(runs, kind, name, axis) {
  const tables = runs.map(run => run[kind]).filter(table => table[name]);
  if (!tables.length) return null;
  if (tables.length === 1) return {xs: tables[0][axis], ys: tables[0][name]};
  const steps = tables.map(table => table.step).reduce((a, b) => b.length > a.length ? b : a);
  const result = {xs: [], ys: [], low: [], high: []};
  for (const step of steps) {
    const there = tables.map(table => [valueAt(table.step, table[axis], step), valueAt(table.step, table[name], step)])
                        .filter(pair => pair[0] !== null && pair[1] !== null);
    if (!there.length) continue;
    const mean = column => there.reduce((sum, pair) => sum + pair[column], 0) / there.length;
    result.xs.push(mean(0)); result.ys.push(mean(1));
    result.low.push(Math.min(...there.map(pair => pair[1]))); result.high.push(Math.max(...there.map(pair => pair[1])));
  }
  return result;
}

const isAlias = name => name === "mlm_loss" && content.runs.every(
  run => run.curves.mlm_loss?.every((value, i) => value === run.curves.loss[i]) ?? true);

// Of one run: the training curve of each store, and its held-out points in the same colour.
function seriesOfStores(runs, base, axis) {
  return storesOf(base).flatMap((store, number) => [["curves", base, ""], ["points", `held_out_${base}`, ", held out"]]
    .map(([kind, metric, what]) => {
      const curve = curveOf(runs, kind, `${metric}.${store}`, axis), points = kind === "points";
      const ys = curve && (view.smooth && !points ? smoothed(curve.ys) : curve.ys);
      return curve && {label: store + what, xs: curve.xs, ys, points, color: color(number), dash: points ? "2 3" : dashes(number)};
    }).filter(each => each?.ys.some(value => value !== null)));
}

const storesOf = base => [...new Set(content.runs.flatMap(run => [...Object.keys(run.curves), ...Object.keys(run.points)]))]
  .filter(name => storeOf(name) && baseOf(name).replace(/^held_out_/, "") === base).map(storeOf)
  .filter((store, i, stores) => stores.indexOf(store) === i).sort();

// The series of a metric: curves, points for evaluations, expected bands, and its parts as areas, stacked from 0 up.
function seriesOf(name, axis) {
  const all = units(), several = all.length > 1, found = [];
  if (storeOf(name) === "*") return seriesOfStores(all[0].runs, baseOf(name), axis);
  all.forEach((unit, number) => {
    const label = what => [several && unit.label, what].filter(Boolean).join(", ");
    const add = (kind, metric, what, options) => {
      const curve = curveOf(unit.runs, kind, metric, axis);
      if (!curve) return;
      const {xs, ys, low, high} = curve, smooth = view.smooth && kind === "curves";
      const style = {color: color(number), dash: dashes(number), ...options};
      if (low) found.push({...style, label: label("range"), xs, ys: high, below: low, opacity: .18, range: true});
      found.push({...style, label: label(what), xs, ys: smooth ? smoothed(ys) : ys});
    };
    const seeds = unit.runs.length > 1 ? `, mean and range of ${unit.runs.length} seeds` : "";
    add("curves", name, several ? "" : `training${seeds}`, {});
    if (/^(held_out|probe)_/.test(name)) add("points", name, "", {points: true});
    else if (!several)
      for (const metric of [name, ...(name === "loss" && isAlias("mlm_loss") ? ["mlm_loss"] : [])])
        for (const [prefix, what] of Object.entries(EVALUATIONS))
          add("points", prefix + metric, what, {points: true, color: color(number + 1)});
    for (const run of axis === "step" || !several ? unit.runs : [])
      for (const band of run.bands.filter(each => each.metric === name))
        if (!found.some(each => each.label === band.label && each.xs.length >= band.step.length))
          found.push({label: band.label, color: "var(--faint)", xs: band[axis], ys: band.high, below: band.low,
                      opacity: .18});
    if (several || unit.runs.length > 1) return;
    const curves = unit.runs[0].curves;
    let below = curves.step.map(() => 0);
    Object.keys(content.metrics).filter(
      each => content.metrics[each].part_of === name && curves[each]?.some(value => value)
    ).forEach((part, i) => {
      const above = below.map((value, at) => value + (curves[part][at] ?? 0));
      found.push({label: words(part), color: color(i + 1), xs: curves[axis], ys: above, below});
      below = above;
    });
  });
  // Bands come first, so that curves are drawn over them.
  return found.filter(each => each.ys.some(value => value !== null))
              .sort((a, b) => (b.opacity ?? 0) - (a.opacity ?? 0));
}

// Returns a figure; text if all values of the metric are equal; null if there are none.
function chart(name, axis = view.axis) {
  const series = seriesOf(name, axis), first = name === "loss";
  const logX = view.logX && series.every(each => each.xs.some(x => x > 0));
  const pairs = series.flatMap(each => [...each.ys.map((y, i) => [each.xs[i], y]),
                                        ...(each.below ?? []).map((y, i) => [each.xs[i], y])])
                      .filter(pair => pair[1] !== null && (!logX || pair[0] > 0));
  if (!pairs.length) return null;
  if (!first && pairs.length > 1 && pairs.every(pair => equal(pair[1], pairs[0][1])))
    return `${words(name)} ${short(pairs[0][1])}`;
  const logY = view.logY && pairs.every(pair => pair[1] > 0);
  // What follows a semicolon explains a missing value: docs/metrics.md has it.
  const unit = (content.metrics[name]?.unit ?? (/loss$/.test(baseOf(name)) ? "nats" : "")).split(";")[0];
  const edges = limits(series, pairs, name, logY), above = pairs.filter(pair => pair[1] > edges[3]).map(pair => pair[1]);
  const cut = above.length ? `values up to ${short(above.reduce((a, b) => Math.max(a, b)))} are at the upper edge` : "";
  const by = axis === view.axis ? "" : `by ${AXES[axis]}`;
  const why = first && units().length === 1 ? content.runs[0].without_band : "";
  const sums = first ? [...new Set(content.runs.map(run => run.loss_parts.map(words).join(" + ")))] : [];
  const about = [unit, sums.length === 1 ? sums[0] : "", cut, why, view.logY && !logY ? "linear, because not all values are above 0" : ""];
  const caption = element("figcaption", {}, `${words(name)} ${by} `, element("small", {}, about.filter(Boolean).join("; ")));
  const svg = drawn("svg", {role: "img", "aria-label": `${words(name)} by ${AXES[axis]}`});
  const value = element("div", {class: "value"}), legend = element("div", {class: "legend"});
  // In a comparison all charts share the colours of the first one's legend.
  const told = units().length > 1 && !first ? series.filter(each => each.color === "var(--faint)") : series;
  if (series.length > 1)
    for (const each of told.filter(each => !each.range)) {
      const swatch = element("span", {class: "swatch", style: `background:${each.color}`});
      legend.append(element("span", {}, swatch, each.label + (each.points ? " (points)" : "")));
    }
  const figure = element("figure", {"data-metric": by ? `${name} by ${axis}` : name}, caption, svg, value, legend);
  figure.draw = () => draw(svg, series, edges, value, axis, logX, logY);
  return figure;
}

// Means of equal numbers differ in their last bits.
const equal = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));

// The largest value of a curve without spikes: of medians over a few neighbours, and of the first values, which a loss
// falls from.
function largest(ys) {
  const reach = Math.max(2, Math.round(ys.length / 100));
  return ys.reduce((most, value, i) => {
    const near = (i < reach ? [value] : ys.slice(i - reach, i + reach + 1)).filter(each => each !== null);
    return near.length ? Math.max(most, near.sort((a, b) => a - b)[near.length >> 1]) : most;
  }, -Infinity);
}

// Limits of both axes. Few measured values far above all others, such as the seconds of a step that compiles, and
// spikes of a loss or a norm are drawn at the upper edge. Exact ones, such as the bytes of a few dense steps, are not.
function limits(series, pairs, name, logY) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of pairs) {
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
  }
  const high = pairs.map(pair => pair[1]).sort((a, b) => a - b)[Math.floor(.94 * pairs.length)];
  const measured = /^seconds/.test(content.metrics[name]?.unit) || /(loss|norm)$/.test(baseOf(name));
  if (measured && !logY && high > 0 && y1 > 4 * high) y1 = 1.3 * high;
  if (/(loss|norm)$/.test(baseOf(name)) && !logY) {
    const tops = series.flatMap(each => each.points || each.below ? each.ys : [largest(each.ys)]);
    const top = tops.reduce((a, b) => Math.max(a, b ?? -Infinity), -Infinity), room = .1 * (top - y0);
    if (y1 > top + 2 * room) y1 = top + room;
  }
  if (equal(x0, x1)) { x1 += Math.abs(x1) / 2 || .5; x0 /= 2; }
  if (equal(y0, y1)) { const room = Math.abs(y0) * .05 || .5; y0 -= room; y1 += room; }
  return [x0, x1, y0, y1];
}

function draw(svg, series, [x0, x1, y0, y1], value, axis, logX, logY) {
  svg.replaceChildren();
  const width = svg.clientWidth, height = svg.clientHeight, right = 10, top = 8, bottom = 30;
  if (!width) return;  // folded away: drawn when it is opened
  const ys = ticks(y0, y1, Math.max(4, Math.floor(height / 60)), logY), toldY = labels(ys);
  const left = Math.max(52, ...toldY.map(text => 7 * text.length));
  const fx = logX ? Math.log10 : x => x, fy = logY ? Math.log10 : y => y;
  const atX = x => left + (fx(x) - fx(x0)) / (fx(x1) - fx(x0)) * (width - left - right);
  const atY = y => height - bottom - (fy(Math.min(y, y1)) - fy(y0)) / (fy(y1) - fy(y0)) * (height - top - bottom);
  ys.forEach((y, i) => {
    svg.append(drawn("line", {x1: left, x2: width - right, y1: atY(y), y2: atY(y), stroke: "var(--line)"}));
    svg.append(drawn("text", {x: left - 6, y: atY(y) + 4, "text-anchor": "end"}, toldY[i]));
  });
  const xs = ticks(x0, x1, Math.max(2, Math.floor(width / 110)), logX), toldX = labels(xs);
  xs.forEach((x, i) => {
    const anchor = atX(x) > width - 30 ? "end" : atX(x) < left + 10 ? "start" : "middle";
    svg.append(drawn("text", {x: atX(x), y: height - bottom + 15, "text-anchor": anchor}, toldX[i]));
  });
  svg.append(drawn("text", {x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle"}, AXES[axis]));
  for (const pause of content.runs.flatMap(run => run.pauses)) {
    const x = pause[axis] ?? null;
    if (x !== null && x >= x0 && x <= x1)
      svg.append(drawn("line", {x1: atX(x), x2: atX(x), y1: top, y2: height - bottom, stroke: "var(--faint)",
                                "stroke-dasharray": "2 4", class: "pause"}));
  }
  for (const each of series) {
    const path = ys => ys.map((y, i) => y === null || logX && !(each.xs[i] > 0) ? "" :
                              `${atX(each.xs[i]).toFixed(1)},${atY(y).toFixed(1)}`).filter(Boolean);
    if (each.below) {
      const shape = [...path(each.ys), ...path(each.below).reverse()].join(" ");
      // A band has an edge, so that one around a single published value is seen.
      svg.append(drawn("polygon", {points: shape, fill: each.color, "fill-opacity": each.opacity ?? .45,
                                   stroke: each.color, "stroke-opacity": each.opacity ? .6 : 0}));
      continue;
    }
    svg.append(drawn("polyline", {points: path(each.ys).join(" "), fill: "none", stroke: each.color,
                                  "stroke-width": each.points ? 1 : 1.7, "stroke-linejoin": "round",
                                  "stroke-dasharray": each.dash ?? ""}));
    if (each.points)
      for (const place of path(each.ys)) {
        const [cx, cy] = place.split(",");
        svg.append(drawn("circle", {cx, cy, r: 2.8, fill: each.color}));
      }
  }
  svg.onpointermove = event => {
    const share = Math.max(0, Math.min(1, (event.offsetX - left) / (width - left - right)));
    const place = fx(x0) + share * (fx(x1) - fx(x0)), pointed = logX ? 10 ** place : place;
    // The nearest place of a measurement; curves and bands have values between theirs too, points have not.
    const near = series.filter(each => !each.opacity).flatMap(each => each.xs.filter((_, i) => each.ys[i] !== null))
                       .reduce((a, b) => Math.abs(b - pointed) < Math.abs(a - pointed) ? b : a, Infinity);
    const told = series.map(each => {
      const at = ys => each.points ? ys[each.xs.indexOf(near)] ?? null : valueAt(each.xs, ys, near);
      const y = at(each.ys), low = each.below && at(each.below);
      if (y === null) return "";
      const text = !each.below ? short(y) : each.opacity ? `${short(low)} to ${short(y)}` : short(y - low);
      return (series.length > 1 ? `${each.label} ` : "") + text;
    }).filter(Boolean);
    value.textContent = `at ${axis === "step" ? `step ${near.toLocaleString("en")}` : short(near)}: ${told.join("; ")}`;
  };
  svg.onpointerleave = () => { value.textContent = ""; };
}
