// What the pages' scripts say of lines: [mark, sentence] of each.
const { readFileSync } = require("node:fs");

const { scripts, lines, asked } = JSON.parse(readFileSync(0, "utf-8"));
const source = scripts.map(script => readFileSync(script, "utf-8")).join("\n");
const { judged } = new Function(`${source}; return attempts`)();
console.log(JSON.stringify(lines.map(([number, line]) => judged(line, asked[number]).slice(0, 2))));
