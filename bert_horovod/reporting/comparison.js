// The table of several runs: a line for each, or for the seeds of a recipe; it sorts, marks the best, and can be kept.
const sorting = {key: "", down: false};
// Totals of a run: heading, which values are best, and whether a run must have done all its steps to be the best.
const TOTALS = {
  mlm_loss: ["training mlm loss", "low"], loss: ["training loss", "low"], hours: ["hours", "low", true], bytes: ["bytes sent by a rank", "low", true],
  tokens: ["tokens"], tokens_per_s: ["tokens a second", "high"],
};

const plain = value => value === undefined ? "" : /^".*"$/.test(value) ? JSON.parse(value) : value;
const numeric = value => typeof value === "number" ? value : value !== "" && isFinite(value) ? +value : null;

function differing(runs) {
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.recipe)))];
  return keys.filter(key => new Set(runs.map(run => run.recipe[key])).size > 1);
}

function evaluated(runs) {
  return [...new Set(runs.flatMap(run => Object.keys(run.totals)))].filter(name => /^(held_out|probe)_/.test(name));
}

// Columns: key, heading, values(unit) as a list over its runs, best ("low", "high" or none), whether only of whole runs
function columns(all) {
  const first = all.map(unit => unit.runs[0]), runs = content.runs;
  const settings = differing(first).map(key => ({
    key, heading: key, values: unit => [plain(unit.runs[0].recipe[key])]}));
  const total = (key, heading, best, whole) => ({
    key, heading, best, whole, values: unit => unit.runs.map(run => run.totals[key])});
  const scores = evaluated(runs).map(name => total(name, words(name), /loss$/.test(baseOf(name)) ? "low" : "high"));
  // Where the loss is a sum, that of masked tokens is shown, as the held-out one is.
  const masked = runs.every(run => run.totals.mlm_loss !== null) && runs.some(run => run.totals.mlm_loss !== run.totals.loss);
  const kept = Object.entries(TOTALS).filter(([key]) => key !== (masked ? "loss" : "mlm_loss"));
  const [loss, ...others] = kept.map(([key, about]) => total(key, ...about));
  const isKnown = (value, key) => value || value === 0 && key !== "bytes";
  const known = column => all.some(unit => column.values(unit).some(value => isKnown(value, column.key)));
  return [total("step", "step"), ...scores, loss, ...others, ...settings].filter(known);
}

function cell(column, unit) {
  const values = column.values(unit).filter(value => value !== null && value !== undefined);
  const numbers = values.map(numeric);
  if (!values.length || numbers.includes(null)) return {text: String(values[0] ?? "-"), order: values[0] ?? ""};
  const mean = numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
  const squares = numbers.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const spread = Math.sqrt(squares / Math.max(1, numbers.length - 1));
  const form = value => /loss$/.test(column.key) ? value.toFixed(3) : short(value);
  return {text: form(mean) + (spread ? ` \u00b1 ${form(spread)}` : ""), order: mean, number: true};
}

function bestOf(column, all, cells) {
  if (!column.best) return null;
  const whole = all.map(unit => !column.whole || unit.runs.every(run => run.totals.done));
  const orders = cells.filter((each, i) => each.number && whole[i]).map(each => each.order);
  if (orders.length < 2 || new Set(orders).size < 2) return null;
  return column.best === "low" ? Math.min(...orders) : Math.max(...orders);
}

function comparison() {
  if (content.runs.length < 2) return [];
  const all = units(), shown = columns(all);
  const grid = shown.map(column => all.map(unit => cell(column, unit)));
  const whole = unit => unit.runs.every(run => run.totals.done);
  const rows = all.map((unit, number) => {
    const notes = [...new Set(unit.runs.map(run => run.notes).filter(Boolean))];
    const swatch = element("span", {class: "swatch", style: `background:${color(number)}`});
    const seeds = unit.runs.length > 1 ? [`${unit.runs.length} seeds`] : [];
    const below = [...seeds, ...notes].map(text => element("small", {}, text));
    const name = element("td", {class: "name"}, swatch, unit.runs[0].name, ...below);
    const cells = shown.map((column, i) => {
      const {text, order, number: isNumber} = grid[i][number], best = bestOf(column, all, grid[i]);
      const isBest = isNumber && order === best && (!column.whole || whole(unit));
      const kind = [isNumber && "number", isBest && "best"].filter(Boolean).join(" ");
      return element("td", {class: kind}, text + (isBest ? " \u2605" : ""));
    });
    const place = shown.findIndex(column => column.key === sorting.key);
    const order = sorting.key === "name" ? unit.label : place < 0 ? number : grid[place][number].order;
    return {row: element("tr", {}, name, ...cells), order};
  });
  if (sorting.key) rows.sort((a, b) => {
    const numbers = typeof a.order === "number" && typeof b.order === "number";
    const sign = numbers ? a.order - b.order : String(a.order).localeCompare(String(b.order));
    return sorting.down ? -sign : sign;
  });
  const head = element("tr", {}, ...[{key: "name", heading: "run"}, ...shown].map(({key, heading}) => {
    const button = element("button", {type: "button"});
    for (const part of heading.split(/(?<=[._])/)) button.append(part, element("wbr"));  // long names break here alone
    button.onclick = () => {
      sorting.down = sorting.key === key && !sorting.down;
      sorting.key = key;
      document.getElementById("comparison").replaceChildren(...comparison());
    };
    const sorted = sorting.key === key ? {"aria-sort": sorting.down ? "descending" : "ascending"} : {};
    return element("th", {scope: "col", "data-key": key, ...sorted}, button);
  }));
  const keep = element("button", {type: "button", id: "csv"}, "Save as CSV");
  keep.onclick = save;
  const same = differing(content.runs).length ? "" : "The recipes are the same. ";
  return [element("h2", {}, "Runs"), element("div", {class: "wide"}, element("table", {id: "compared"},
            element("thead", {}, head), element("tbody", {}, ...rows.map(each => each.row)))),
          element("p", {}, same, "\u2605 best of its column; hours and bytes: of runs that did all their steps; ",
                  "\u00b1 standard deviation over seeds. ", keep)];
}

// A table of all runs, seeds apart, with values as they were measured.
function csv() {
  const settings = differing(content.runs);
  const totals = ["state", "step", "steps", ...evaluated(content.runs), ...Object.keys(TOTALS)];
  // A spreadsheet would compute a text that begins like a formula.
  const field = value => typeof value === "number" ? `${value}`
    : `"${String(value ?? "").replace(/^(?=[=+\-@\t\r])(?!-?[\d.]+(e[+-]?\d+)?$)/i, "'").replaceAll('"', '""')}"`;
  const lines = [["run", "directory", "notes", ...settings, ...totals], ...content.runs.map(run => [
    run.name, run.directory, run.notes, ...settings.map(key => plain(run.recipe[key])),
    ...totals.map(key => run.totals[key])])];
  return lines.map(line => line.map(field).join(",") + "\r\n").join("");
}

function save() {
  const address = URL.createObjectURL(new Blob([csv()], {type: "text/csv"}));
  element("a", {href: address, download: "runs.csv"}).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
