// A field that looks up the rows of chapter 19's indexes.

// English words without their endings, pairs of Chinese characters. What says nothing, the endings
// and what people use for one another are the search's.
const wordsIn = text => [
  ...(text.replace(/\bin[- ]place/g, "inplace").match(/[a-z\d_.]*[a-z\d_]/g) ?? [])
    .flatMap(word => /[._]/.test(word) ? [word, ...word.split(/[._]+/)] : [word]) // a name, and its words
    .filter(word => word.length > 1 && !SAYS_NOTHING.has(word)).map(stem),
  ...(text.match(/\p{Script=Han}+/gu) ?? []).flatMap(run =>
    run.length === 1 ? run : [...run.slice(1)].map((second, place) => run[place] + second)),
];

const ASIDE = 0.9; // what stands beside the way through a chapter comes after it
const ENOUGH = 0.6; // a row that has less of the words than this share is only the nearest
// The front page holds all rows, and is loaded where somebody wants to look one up.
const rowsOf = async front => {
  if (!front) return document.querySelector("template.rows").content.cloneNode(true);
  const address = new URL(front, location.href), text = await (await fetch(address)).text();
  const rows = new DOMParser().parseFromString(text, "text/html").querySelector("template.rows").content;
  for (const link of rows.querySelectorAll("a")) link.href = new URL(link.getAttribute("href"), address);
  return document.importNode(rows, true);
};

// Rows of both indexes that hold what is typed, or most of it. A word counts the more, the fewer
// rows have it: a pasted message has many words that say nothing.
const setUpLookUp = async box => {
  const [field, results, list, none, nearest] = ["input", ".results", "ul", ".none", ".nearest"].map(part => box.querySelector(part));
  const { front } = box.dataset; // the address of the front page, from another one
  if (front) await new Promise(resolve => field.addEventListener("focus", resolve, { once: true }));
  list.append(await rowsOf(front));
  const rows = [...list.children].map(row => ({
    row,
    heading: wordsIn(row.querySelector("a").textContent.toLowerCase()),
    words: wordsIn(row.dataset.words.toLowerCase()),
  }));
  const holds = (words, asked) => words.some(word =>
    word === asked || asked.length > 2 && word.startsWith(asked));
  const asWeighed = word => {
    const alike = alikeOf(word).map(stem);
    const among = words => holds(words, word) ? 1 : alike.some(other => holds(words, other)) ? FOR_ANOTHER : 0;
    const having = rows.filter(({ words }) => among(words)).length;
    const weight = Math.log(rows.length / (having || 1));
    return Object.assign(({ heading, words }) => weight * (among(heading) + among(words)), { weight });
  };
  field.addEventListener("input", () => {
    const [, message] = /.*\b\w*(?:Error|Exception): (.+)$/s.exec(field.value) ?? [null, field.value]; // the end of a traceback
    const asked = message.toLowerCase(), typed = [...new Set(wordsIn(asked))], words = typed.map(asWeighed);
    const covered = ({ heading }) => heading.filter(word => typed.includes(word)).length / (heading.length || 1);
    const score = row => words.reduce((sum, weighed) => sum + weighed(row), 0) * (1 + covered(row) / 2);
    const literally = row => // a message that is pasted holds what its row says, or what else finds the row
      Math.max(...[row.querySelector("a").textContent, ...row.dataset.words.split("\n").slice(1)].map(text => {
        const said = text.toLowerCase();
        if (asked.trim() === said) return Infinity;
        return asked.includes(said) || said.includes(asked) ? Math.min(said.length, asked.length) / 3 : 0;
      }));
    const isDeeper = row => /^\d+ (Deeper|选读)/.test(row.querySelector("span").textContent);
    const scored = rows.map(one => ({ one, words: score(one), all: (score(one) + literally(one.row)) * (isDeeper(one.row) ? ASIDE : 1) }));
    const enough = Math.max(...scored.map(one => one.words)) / 2;
    const found = scored.filter(one => one.all === Infinity || one.words > 0 && one.words >= enough)
      .sort((one, other) => other.all - one.all).slice(0, 8).map(({ one }) => one);
    const [best] = found, weightOf = some => some.reduce((sum, one) => sum + one.weight, 0);
    const isAll = best && (literally(best.row) || weightOf(words.filter(one => one(best))) >= ENOUGH * weightOf(words));
    for (const { row } of rows) { row.hidden = true; row.classList.toggle("first", row === best?.row); }
    const told = isAll ? found : found.slice(0, 3);
    for (const { row } of told) { row.hidden = false; list.append(row); }
    none.hidden = found.length > 0;
    nearest.hidden = !best || isAll;
    results.hidden = !words.length;
    results.scrollIntoView({ block: "nearest" });
    if (!front) history.replaceState(null, "", `?${new URLSearchParams({ q: field.value })}`); // for who comes back
  });
  const ask = text => { field.value = text; field.dispatchEvent(new Event("input")); field.focus(); };
  for (const button of box.querySelectorAll(".example button")) button.addEventListener("click", () => ask(button.textContent));
  document.addEventListener("click", ({ target }) => { if (!box.contains(target)) results.hidden = true; });
  none.querySelector("button").addEventListener("click", () => { // the search of all chapters, with the same words
    document.querySelector(".search-button").click();
    const search = document.querySelector("#pst-search-dialog input");
    search.value = field.value;
    search.dispatchEvent(new Event("input"));
  });
  const asked = new URLSearchParams(location.search).get("q"); // of search.html
  if (!front && asked) ask(asked);
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") results.hidden = true;
    if (event.key === "Enter") list.querySelector("li:not([hidden]) a")?.click();
  });
  box.addEventListener("keydown", event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || results.hidden) return;
    const places = [field, ...list.querySelectorAll("li:not([hidden]) > a:first-child")];
    places[places.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  });
  if (front && field.value) field.dispatchEvent(new Event("input")); // typed meanwhile
};

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".look-up").forEach(setUpLookUp));
