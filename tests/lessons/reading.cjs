// What site/static/reading.js says to the guesses that it is handed: true, false or null.
const { readFileSync } = require("node:fs");

const { script, table, asked } = JSON.parse(readFileSync(0, "utf-8"));
const judged = new Function(`${readFileSync(script, "utf-8")}; return reading`)()(table);
console.log(JSON.stringify(asked.map(([guess, question]) => judged(guess, question))));
