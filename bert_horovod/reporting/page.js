// The page: tiles and the loss first, then the charts that matter; what is about machines is folded.
const MATTERS = ["loss", "learning_rate", "gradient_norm", "exchange_norm", "tokens_per_s"];
const opened = new Set();  // identifiers of the folded parts that are open

// Metrics that are drawn: the loss first, then those of the task; a metric of no schema is a task's own.
function names() {
  const found = new Set(), several = units().length > 1;
  for (const run of content.runs) {
    for (const name of Object.keys(run.curves)) found.add(name);
    for (const name of Object.keys(run.points)) found.add(several ? name : name.replace(/^(held_out|probe)_/, ""));
  }
  for (const name of Object.keys(AXES)) found.delete(name);
  if (isAlias("mlm_loss")) found.delete("mlm_loss");
  // Of one run the stores share a figure, as the runs do if there are several.
  if (!several)
    for (const name of [...found].filter(storeOf)) { found.delete(name); found.add(`${baseOf(name)}.*`); }
  const own = [...found].filter(name => !(name in content.metrics));
  const loss = name => /loss$/.test(baseOf(name)) ? 0 : /accuracy$/.test(baseOf(name)) ? 1 : 2;
  const known = [...found].filter(name => name in content.metrics && !content.metrics[name].part_of);
  const ofTask = own.sort((a, b) => loss(a) - loss(b));
  return {matter: [...ofTask, ...MATTERS.slice(1).filter(name => found.has(name))],
          rest: known.filter(name => !MATTERS.includes(name))};
}

function folded(id, title, ...children) {
  const made = element("details", {id}, element("summary", {}, title), ...children);
  made.open = opened.has(id);
  made.ontoggle = () => {
    if (made.open) opened.add(id); else opened.delete(id);
    made.querySelectorAll("figure").forEach(each => each.draw());
  };
  return made;
}

function table(head, rows) {
  const line = (kind, cells) => element("tr", {}, ...cells.map(cell => element(kind, {}, String(cell))));
  return element("div", {class: "wide"}, element("table", {}, line("th", head), ...rows.map(row => line("td", row))));
}

function settings() {
  const keys = [...new Set(content.runs.flatMap(run => Object.keys(run.recipe)))];
  const rows = keys.map(key => [key, ...content.runs.map(run => run.recipe[key] ?? "not there")]);
  return folded("settings", "Recipe: all settings", table(["setting", ...content.runs.map(run => run.name)], rows));
}

function incidents() {
  const found = content.runs.flatMap(run => [
    ...run.incidents.map(each => [each.step, run.name, each.text]),
    ...run.pauses.map(each => [each.step, run.name,
                               `nothing for ${short(each.seconds)} s before this step: a restart or a pause`]),
  ]).sort((a, b) => a[0] - b[0]);
  return found.length ? [element("h2", {}, "Incidents and pauses"), table(["step", "run", "what"], found)] : [];
}

function machine(charts) {
  const cards = content.runs.map(run => element("section", {class: "run"},
    ...(content.runs.length > 1 ? [element("h3", {}, run.name)] : []),
    element("dl", {}, ...run.figures.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)]))));
  return folded("machine", "Machine: seconds of a step, bytes, memory, host",
                element("div", {class: "charts"}, ...charts), element("div", {class: "runs"}, ...cards));
}

// Held-out loss by what a run costs, if several runs are compared.
function costs() {
  const name = evaluated(content.runs).find(each => /^held_out_.*loss$/.test(each));
  if (!name || units().length < 2) return [];
  return ["hours", ...(hasBytes() ? ["bytes"] : [])].filter(axis => axis !== view.axis).map(axis => chart(name, axis));
}

const hasBytes = () => content.runs.some(run => run.totals.bytes > 0);

function show() {
  controls();
  const scroll = window.scrollY, several = content.runs.length > 1, [run] = content.runs;
  const title = several ? `${content.runs.length} runs` : run?.name ?? "no run";
  document.getElementById("title").textContent = title;
  document.title = `Report: ${title}`;
  document.getElementById("notes").textContent = several ? "" : run?.notes ?? "";
  document.getElementById("notice").textContent = content.left_out.map(reason => `left out: ${reason}`).join("\n");
  document.getElementById("tiles").replaceChildren(...(several || !run ? [] : run.tiles.map(([label, value, note]) =>
    element("div", {}, element("span", {}, label), element("b", {}, value), element("small", {}, note)))));
  const {matter, rest} = names(), first = chart("loss");
  document.getElementById("first").replaceChildren(...(first ? [first] : []));
  document.getElementById("comparison").replaceChildren(...comparison());
  const drawings = matter.map(name => chart(name)), others = rest.map(name => chart(name));
  document.getElementById("charts").replaceChildren(...[...costs(), ...drawings].filter(each => each?.draw));
  const constant = [...drawings, ...others].filter(each => typeof each === "string");
  const told = constant.length ? [element("p", {id: "constant"}, `The same throughout: ${constant.join(", ")}.`)] : [];
  const extra = content.tables.flatMap(({title, head, rows}) => [element("h2", {}, title), table(head, rows)]);
  document.getElementById("more").replaceChildren(
    ...incidents(), ...extra, machine(others.filter(each => each?.draw)), ...told, settings());
  document.querySelectorAll("figure").forEach(each => each.draw());
  document.getElementById("footer").textContent = `bert_horovod ${content.version}, ${content.made}`;
  window.scrollTo(0, scroll);
}

// Choices are made anew only when there are others, so that a page that follows a run keeps the reader's place.
let offered = "";
function controls() {
  const hasSeeds = new Set(content.runs.map(seedless)).size < content.runs.length;
  if (offered === `${hasBytes()} ${hasSeeds}`) return;
  offered = `${hasBytes()} ${hasSeeds}`;
  const choices = Object.entries(AXES).filter(([name]) => name !== "bytes" || hasBytes()).map(([name, text]) => {
    const input = element("input", {type: "radio", name: "axis", value: name});
    input.checked = name === view.axis;
    input.onchange = () => { view.axis = name; show(); };
    return element("label", {}, input, ` by ${text}`);
  });
  const seeds = hasSeeds ? [["seeds", "mean over seeds"]] : [];
  const switches = [["smooth", "smoothed"], ["logX", "log x"], ["logY", "log y"], ...seeds].map(([name, text]) => {
    const input = element("input", {type: "checkbox", name});
    input.checked = view[name];
    input.onchange = () => { view[name] = input.checked; show(); };
    return element("label", {}, input, ` ${text}`);
  });
  document.getElementById("controls").replaceChildren(...choices, ...switches);
}

async function news() {
  const notice = document.getElementById("notice");
  try {
    const answer = await fetch("report.json", {cache: "no-store"});
    if (!answer.ok) throw new Error(await answer.text());
    content = await answer.json();
    show();
  } catch (error) {
    notice.textContent = `no news: ${error.message}`;
  }
  setTimeout(news, 5000);
}

show();
let pending = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(pending);
  pending = requestAnimationFrame(() => document.querySelectorAll("figure").forEach(each => each.draw()));
});
if (content.watched) setTimeout(news, 5000);
