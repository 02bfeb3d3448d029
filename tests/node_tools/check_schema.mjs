// Check schemas with ajv in strict mode. Arguments: node_modules, keywords, schema, positive and negative folder.

import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";

const [modules, keywords, schema, positive, negative] = process.argv.slice(2);
const Ajv = createRequire(`${modules}/`)("ajv").default;
const read = (path) => JSON.parse(readFileSync(path, "utf8"));
const ajv = new Ajv({ strict: true, allErrors: true });
ajv.addVocabulary(read(keywords));
const validate = ajv.compile(read(schema));
const wrong = (folder, expected) =>
  readdirSync(folder).filter((name) => validate(read(`${folder}/${name}`)) !== expected);
console.log(JSON.stringify({ rejected: wrong(positive, true), accepted: wrong(negative, false) }));
