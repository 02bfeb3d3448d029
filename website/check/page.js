// The form, and what it shows of Python's answers.

import { decode, encode } from "./state.js";

const GIB = 2 ** 30;
const OWN = ["text", "name", "model_config", "runtime", "version"];
const START = {
  text: JSON.stringify({
    train_micro_batch_size_per_gpu: 1, gradient_accumulation_steps: 4, bf16: { enabled: true },
    optimizer: { type: "AdamW", params: { lr: 1e-5 } },
    zero_optimization: { stage: 2, overlap_com: true, reduce_bucket_size: 5e8 },
  }, null, 2) + "\n",
  model: "llama-3-8b", device: "a100-80gb", gpus: "8", seq_len: "4096",
};
const at = (id) => document.getElementById(id);
const fields = [...at("form").querySelectorAll("input[id], select[id], textarea[id]")];
const gib = (bytes, digits = 1) => (bytes / GIB).toFixed(digits);

function make(tag, content, attributes = {}) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else node.setAttribute(name, value);
  }
  node.append(...[content].flat().filter((each) => each !== null && each !== undefined));
  return node;
}

// Python

// A worker from a blob inherits the Content-Security-Policy of the page.
const code = `import ${JSON.stringify(new URL("worker.js", import.meta.url).href)};`;
const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
const waiting = new Map();
let last = 0;
worker.onmessage = ({ data }) => {
  if (data.step) at("verdict").textContent = `${data.step}…`;
  const done = waiting.get(data.id);
  waiting.delete(data.id);
  done?.(data.failure ? { error: `dsconfig failed: ${data.failure.split("\n").filter(Boolean).at(-1)}` } : data.answer);
};
worker.onerror = () => { at("verdict").textContent = "Python could not be started in this browser."; };
const ask = (request) => new Promise((done) => {
  waiting.set(++last, done);
  worker.postMessage({ id: last, request });
});

// State

const value = (field) => (field.type === "checkbox" ? (field.checked ? "1" : "") : field.value);
const state = () => Object.fromEntries(fields.map((each) => [each.id, value(each)]).filter(([, text]) => text));
function show(saved) {
  for (const each of fields) {
    if (each.type === "checkbox") each.checked = saved[each.id] === "1";
    else each.value = saved[each.id] ?? (each.tagName === "SELECT" ? each.options[0].value : "");
    if (value(each)) each.closest("details")?.setAttribute("open", "");
  }
}

function request(kind) {
  const { text = "", name, model_config = "", runtime = null, version = null, ...saved } = state();
  const number = (id) => at(id)?.type === "number";
  const entries = Object.entries(saved).map(([id, given]) => [id, number(id) ? Number(given) : given]);
  const flags = Object.fromEntries(entries.filter(([id]) => !OWN.includes(id)));
  if (flags.fused_kernels) flags.fused_kernels = true;
  return { kind, text, name, model_config, runtime, version, flags };
}

// Answers

let busy = false, again = false;
async function update() {
  if (busy) { again = true; return; }
  busy = true;
  at("results").setAttribute("aria-busy", "true");
  const started = performance.now();
  do {
    again = false;
    history.replaceState(null, "", `#${await encode(state())}`);
    render(await ask(request("check")));
  } while (again);
  busy = false;
  at("results").setAttribute("aria-busy", "false");
  performance.measure("answer", { start: started });
}

function render(answer) {
  const verdict = at("verdict");
  const { estimate = null, report } = answer;
  const errors = report?.summary.errors ?? 0;
  const stops = estimate?.prevents_start ? " The run stops at an error." : "";
  verdict.textContent = answer.error ?? (estimate?.verdict ? estimate.verdict + stops : counted(report.summary));
  const good = estimate?.verdict ? estimate.fits && !stops : false;
  verdict.className = good ? "good" : answer.error || estimate?.verdict || errors ? "bad" : "";
  at("target").textContent = answer.error ? "" : answer.target;
  at("tune").disabled = Boolean(answer.error);
  for (const id of ["ranking", "to-fit"]) at(id).hidden = true;
  if (answer.error) return;
  findings(report.files[0].diagnostics, answer.fixes);
  rows("resolved", answer.resolved, (each) => [
    make("code", each.pointer.slice(1).replaceAll("/", ".")), make("code", JSON.stringify(each.value)), each.rule]);
  at("resolved-part").hidden = !answer.resolved.length;
  at("memory").hidden = at("cards-part").hidden = !estimate?.options;
  if (estimate?.error) at("target").textContent += ` No estimate: ${estimate.error}`;
  if (!estimate?.options) return;
  memory(estimate);
  const fitting = estimate.cards.toReversed();
  rows("cards", fitting, (card) => [
    card.device, number(gib(card.memory_bytes)), number(gib(card.headroom_bytes)),
    make("span", card.fits ? "yes" : card.may_fit ? "may" : "no", { class: card.fits ? "yes" : "no" })]);
  at("cards-part").firstElementChild.textContent = `GPUs that fit (${fitting.filter((card) => card.fits).length} of ${fitting.length})`;
  if (!estimate.fits) suggest();
}

const counted = ({ errors, warnings, notes }) => errors + warnings + notes
  ? [[errors, "error"], [warnings, "warning"], [notes, "note"]].filter(([n]) => n).map(([n, word]) => `${n} ${word}${n > 1 ? "s" : ""}`).join(", ")
  : "No findings.";
const number = (text) => make("span", text, { class: "n" });

function rows(id, entries, cells) {
  at(id).tBodies[0].replaceChildren(...entries.map((each) => make("tr", cells(each).map((cell) =>
    make("td", cell, cell?.className === "n" ? { class: "n" } : {})))));
}

function findings(list, fixes) {
  at("fix-all").hidden = !fixes.some((fix) => fix.safe);
  at("findings").replaceChildren(...list.map((each, index) => {
    const fix = fixes.find((one) => one.finding === index);
    const line = each.range && make("button", `line ${each.range.start.line}`, {
      type: "button", class: "link", onclick: () => select(each.range) });
    return make("li", [
      make("p", [make("b", each.severity), " ", make("a", each.code, { href: `../reference/rules/${each.code}/`, target: "_blank", rel: "noopener" }), " ", line]),
      make("p", each.message),
      each.help ? make("p", each.help, { class: "help" }) : null,
      fix ? make("button", fix.safe ? "Apply fix" : "Apply fix (changes what is trained)", {
        type: "button", "aria-label": `Apply fix: ${fix.title}`, onclick: () => write(fix.text) }) : null,
    ], { class: each.severity });
  }));
  if (!list.length) at("findings").append(make("p", "None.", { class: "note" }));
}

function memory(estimate) {
  const { device, fits } = estimate.options[0];
  const beside = Object.entries(estimate.beside);
  const capacity = fits[0]?.memory_bytes ?? 0;
  const longest = Math.max(device.needed_bytes, capacity);
  const parts = (phase) => device.components.filter((part) => part.phases.includes(phase)).sort((a, b) => b.bytes - a.bytes);
  const bar = (label, phase, more, total) => {
    const pieces = [...parts(phase).map((part) => [part.name, part.bytes, estimate.colors[part.name]]), ...more];
    const stack = make("div", pieces.map(([name, bytes, color], index) => {
      const piece = make("i", [], { title: `${name}: ${gib(bytes, 2)} GiB`, class: color ? "" : `plain${(index - parts(phase).length) % 2}` });
      piece.style.width = `${(100 * bytes) / longest}%`;
      if (color) piece.style.background = color;
      return piece;
    }), { class: "bar", role: "img", "aria-label": `${label}: ${gib(total)} GiB` });
    if (capacity) {
      const mark = make("span", [], { class: "mark", title: `${fits[0].device}: ${gib(capacity)} GiB` });
      mark.style.left = `calc(${(100 * capacity) / longest}% - 2px)`;
      stack.append(mark);
    }
    return make("div", [make("span", label), stack, make("span", `${gib(total)} GiB`)], { class: more.length ? "row main" : "row" });
  };
  const drawn = [bar("peak", device.peak_phase, beside, device.needed_bytes),
    ...Object.entries(device.phases).map(([phase, bytes]) => bar(phase, phase, [], bytes))];
  const before = at("bars").querySelectorAll("i");
  const widths = [...before].map((each) => each.style.width);
  at("bars").replaceChildren(...drawn);
  // Start each piece at its former width, so that the bars move.
  [...at("bars").querySelectorAll("i")].forEach((each, index) => {
    const width = each.style.width;
    if (widths.length && widths[index]) {
      each.style.width = widths[index];
      requestAnimationFrame(() => { each.style.width = width; });
    }
  });
  at("memory-title").textContent = `Memory per GPU: ${estimate.label}`;
  const range = `${gib(device.least_needed_bytes)} to ${gib(device.most_needed_bytes)} GiB`;
  const assumed = device.low_bytes ? `; the shape of the model is assumed: peak ${gib(device.low_bytes)} to ${gib(device.high_bytes)} GiB` : "";
  at("band").replaceChildren(`Required: ${gib(device.needed_bytes)} GiB, ${range} with the least and most published fragmentation${assumed}. `,
    make("a", "Compared with measured runs", { href: "../internals/memory-validation/" }), ".");
  const listed = [...parts(device.peak_phase).map((part) => [part.name, part.bytes, part.pointer]), ...beside.map(([name, bytes]) => [name, bytes, ""])];
  let plain = 0;
  rows("components", listed, ([name, bytes, pointer]) => {
    const color = estimate.colors[name];
    const swatch = make("span", [], { class: color ? "swatch" : `swatch plain${plain++ % 2}` });
    if (color) swatch.style.background = color;
    return [make("span", [swatch, name]), number(gib(bytes, 2)), make("code", pointer.slice(1).replaceAll("/", "."))];
  });
  const host = estimate.options[0].host.peak_bytes;
  at("notes").replaceChildren(...[...(host ? [`Host memory: ${gib(host)} GiB per node.`] : []), ...estimate.notes].map((note) => make("li", note)));
}

async function suggest() {
  const asked = location.hash;
  const { changes = [] } = await ask(request("changes"));
  if (asked !== location.hash) return;
  at("to-fit").hidden = !changes.length;
  at("changes").replaceChildren(...changes.map((each) => make("li", [
    make("p", [make("b", each.what), `: ${gib(each.needed_bytes)} GiB, ${each.slowdown.toFixed(2)}x step time${each.fits ? "" : ", still does not fit"}`]),
    ...each.steps.map((step) => make("p", [`${step.where}: `, make("code", step.text)], { class: "help" })),
    each.diff.length ? make("button", "Apply to the file", { type: "button", "aria-label": `Apply: ${each.what}`, onclick: () => write(each.text) }) : null,
  ])));
}

async function tune() {
  at("tune").disabled = true;
  at("ranking").hidden = false;
  at("candidates").replaceChildren(make("p", "Searching…", { role: "status" }));
  const { error, candidates = [] } = await ask(request("tune"));
  at("tune").disabled = false;
  at("candidates").replaceChildren(...(error ? [make("p", error, { role: "status" })] : candidates.slice(0, 8).map((each) => make("li", [
    `${each.label}: ${each.seconds_per_step.toFixed(2)} s per step, ${gib(each.needed_bytes)} GiB`,
    each.reason ? make("span", ` (${each.reason})`, { class: "help" }) : null,
    make("button", "Use", { type: "button", "aria-label": `Use ${each.label}`, onclick: () => write(each.text) }),
  ]))));
  at("ranking-title").scrollIntoView({ block: "nearest" });
}

// Actions

function write(text) {
  at("text").value = text;
  at("text").focus();
  update();
}

function select({ start, end }) {
  const lines = at("text").value.split("\n");
  const offset = ({ line, column }) => lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0)
    + [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length;
  at("text").focus();
  at("text").setSelectionRange(offset(start), offset(end));
}

let timer;
at("form").addEventListener("submit", (event) => event.preventDefault());
at("form").addEventListener("input", () => {
  at("results").setAttribute("aria-busy", "true");
  clearTimeout(timer);
  timer = setTimeout(update, 120);
});
at("fix-all").addEventListener("click", async () => write((await ask(request("fix_all"))).text));
at("tune").addEventListener("click", tune);
at("share").addEventListener("click", async () => {
  history.replaceState(null, "", `#${await encode(state())}`);
  const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
  at("copied").textContent = copied ? "Link copied." : "The link is in the address bar.";
});
addEventListener("hashchange", async () => {
  const saved = await decode(location.hash.slice(1));
  if (saved) { show(saved); update(); }
});

show((location.hash && await decode(location.hash.slice(1))) || START);
const choices = await ask({ kind: "choices" });
if (!choices.error) {
  const saved = state();
  const options = (id, names) => at(id).append(...names.map((name) => make("option", [name], { value: name })));
  options("models", choices.models);
  options("devices", choices.devices.map((each) => each.name));
  options("runtime", choices.runtimes);
  options("version", choices.releases);
  show({ ...(await decode(location.hash.slice(1)) ?? {}), ...saved });
}
at("verdict").textContent = choices.error ?? "Checking…";
await update();
