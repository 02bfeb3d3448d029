// Processor time of the browser page's Python until the first answer, and of its updates. make site comes first.
//
// node benchmarks/browser_page.mjs

import { readFileSync } from "node:fs";

const folder = new URL("../runs/site/public/check/", import.meta.url);
const { loadPyodide } = await import(new URL("pyodide/pyodide.mjs", folder));
const { start } = await import(new URL("runtime.js", folder));
const seconds = () => process.cpuUsage().user / 1e6 + process.cpuUsage().system / 1e6;
const before = seconds();
const packages = new Uint8Array(readFileSync(new URL("packages.zip", folder))).buffer;
const ask = await start(loadPyodide, new URL("pyodide/", folder).pathname, Promise.resolve(packages));
const flags = { model: "llama-3-8b", gpus: 8, device: "a100-80gb", seq_len: 4096 };
const config = (stage, size) => JSON.stringify({
  train_micro_batch_size_per_gpu: 1, bf16: { enabled: true }, optimizer: { type: "AdamW", params: { lr: 1e-5 } },
  zero_optimization: { stage, reduce_bucket_size: size },
});
const update = (number) => {
  const from = seconds();
  ask({ kind: "check", text: config(number % 4, 1e8 + number), flags });
  return seconds() - from;
};
update(0);
console.log(`first answer: ${(seconds() - before).toFixed(1)} s`);
const times = Array.from({ length: 100 }, (_, number) => update(number)).sort((a, b) => a - b);
console.log(`update: median ${Math.round(1000 * times[50])} ms, p95 ${Math.round(1000 * times[95])} ms`);
