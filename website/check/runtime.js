// Start Python with dsconfig in it; used by the worker of the page, and by the tests in Node.

/**
 * @param {Function} loadPyodide of pyodide.mjs
 * @param {string} indexURL folder of pyodide.mjs, ending in a slash
 * @param {Promise<ArrayBuffer>} packages content of packages.zip
 * @param {(step: string) => void} [report] receives the name of each step
 * @returns {Promise<(request: object) => object>} dsconfig.browser.answer
 */
export async function start(loadPyodide, indexURL, packages, report = () => {}) {
  report("Loading Python");
  const pyodide = await loadPyodide({ indexURL, checkIntegrity: false });
  report("Loading dsconfig");
  pyodide.unpackArchive(await packages, "zip", {
    extractDir: pyodide.runPython("import site; site.getsitepackages()[0]"),
  });
  pyodide.runPython("import importlib; importlib.invalidate_caches()");
  const answer = pyodide.pyimport("dsconfig.browser").answer;
  return (request) => JSON.parse(answer(JSON.stringify(request)));
}
