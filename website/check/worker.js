// Runs Python. Messages in: {id, request}. Messages out: {step}, {id, answer} or {id, failure}.

import { loadPyodide } from "./pyodide/pyodide.mjs";
import { start } from "./runtime.js";

const here = new URL(".", import.meta.url).href;
const packages = fetch(`${here}packages.zip`).then((response) => response.arrayBuffer());
const ready = start(loadPyodide, `${here}pyodide/`, packages, (step) => postMessage({ step }));

onmessage = async ({ data: { id, request } }) => {
  try {
    const ask = await ready;
    postMessage({ id, answer: ask(request) });
  } catch (error) {
    postMessage({ id, failure: String(error) });
  }
};
