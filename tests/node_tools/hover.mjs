// Ask VS Code's JSON language service about a config. Arguments: node_modules, schema, config, key.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [modules, schema, config, key] = process.argv.slice(2);
const { getLanguageService, TextDocument } = createRequire(`${modules}/`)("vscode-json-languageservice");
const text = readFileSync(config, "utf8");
const service = getLanguageService({});
service.configure({
  schemas: [{ uri: "urn:test", fileMatch: ["*"], schema: JSON.parse(readFileSync(schema, "utf8")) }],
});
const document = TextDocument.create("file:///ds_config.json", "json", 1, text);
const parsed = service.parseJSONDocument(document);
const hover = await service.doHover(document, document.positionAt(text.indexOf(key) + 1), parsed);
const inside = document.positionAt(text.indexOf('"stage"'));
const completed = await service.doComplete(document, inside, parsed);
const problems = await service.doValidation(document, parsed);
console.log(JSON.stringify({
  hover: hover?.contents ?? null,
  completed: completed.items.map((item) => item.label),
  problems: problems.map((problem) => problem.message),
}));
