// Answer requests as the worker of the page does. Arguments: its folder, a file with a list of requests.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`).href;
const { loadPyodide } = await import(`${folder}pyodide/pyodide.mjs`);
const { start } = await import(`${folder}runtime.js`);
const packages = new Uint8Array(readFileSync(new URL("packages.zip", folder))).buffer;
const ask = await start(loadPyodide, new URL("pyodide/", folder).pathname, Promise.resolve(packages));
console.log(JSON.stringify(JSON.parse(readFileSync(process.argv[3], "utf8")).map(ask)));
