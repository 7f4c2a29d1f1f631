// A page: predictions, what opens with an outcome, figures that grow, the drawer, the switch.

// "w1 and W2", [3, 4] and (3,4): what counts is what stands between the marks.
const parts = text => text.replace("⁻", "^-").replace("**", "^").normalize("NFKC").replace(/["'()[\]]/g, "")
  .replace(/−/g, "-").replace(/^(none|nothing|都?没有|无)$/i, "")
  .split(/[,、;和]| and /)
  .map(part => part.trim().toLowerCase().replace(/^(?:(?:and|only|an?|the) |只有|仅)+| only$|\.$/g, ""))
  .filter(Boolean);
const letters = text =>
  [...text.normalize("NFKC").toUpperCase().replace(/\b(AND|ONLY)\b|[\s"'()[\],.、;和]/g, "")].sort().join("");
// 4, 4/5, 2^8 and 10^-5, also with a unit or a word beside it: "near 0.6", "18.8 µs".
const numberIn = text => {
  const found = text.replace(/(\d+)\s*\^\s*(-?\d+)/, (_, base, power) => base ** power)
    .match(/^[^\d.-]*(-?\d*\.?\d+(?:e-?\d+)?)(?:\s*\/\s*(\d+))?[^\d.]*$/);
  return found ? found[1] / (found[2] ?? 1) : NaN;
};
const SAID = { // in other words than a notebook's
  t: "true", yes: "true", 真: "true", 对: "true", 是: "true", f: "false", no: "false", 假: "false", 错: "false", 否: "false",
  zero: "0", one: "1", two: "2", three: "3", four: "4", 零: "0", 一: "1", 两: "2", 二: "2", 三: "3", 四: "4",
};
const plain = name => name.replace(/(?<=[a-z])[-_\s]+(?=[a-z])/g, "").replace(/(?<=.)error$/, ""); // reduce_scatter, FileNotFound
const alike = (one, other, within) => {
  if (one === other || plain(one) === plain(other)) return true;
  const said = SAID[one] ?? one;
  const right = Number(other), given = Number.isNaN(right) ? NaN : numberIn(said);
  if (Number.isNaN(given)) return said === other;
  return Math.abs(given - right) <= Math.max(within, 6e-4) * Math.abs(right); // shown to 4 digits
};
// labels: {what the notebook says: the same in Chinese}
const same = (guess, outcome, within, labels) => {
  if (/^[A-Z]{1,6}$/.test(outcome)) return letters(guess) === letters(outcome); // a set: AD
  const right = parts(outcome);
  const english = part => {
    const key = Object.keys(labels).find(key => labels[key] === part);
    return key === undefined ? part : parts(key)[0] ?? "";
  };
  const apart = parts(guess).length === 1; // "3 4" for 3, 4
  const both = guess.trim().match(/^(?:both|all|都)\s*(.+)$/i); // "both larger"
  const all = both ? right.map(() => both[1]).join(", ") : guess.trim().replace(/\s+/g, ", ");
  const given = parts(right.length > 1 && apart ? all : guess).map(english);
  if (given.length !== right.length) return false;
  const isSet = / and /.test(outcome); // "a and b" has no order
  return right.every((part, n) => (isSet ? given : [given[n]]).some(one => alike(one, part, within)));
};

const foldAfter = form => { // the fold of the output that the prediction is about, if it has one
  const all = [...document.querySelectorAll("details.hide.below-input, form.predict")];
  const next = all[all.indexOf(form) + 1]; // in the order of the page
  return next?.matches("details") ? next : null;
};

const spoken = (words, labels) => words.split(", ").map(word => labels[word] ?? word).join(", ");

const judge = (form, guess) => {
  const { outcome, within, right, wrong, why, labels } = JSON.parse(form.dataset.answer);
  const correct = same(guess, outcome, within, labels);
  const said = (correct ? right : wrong)
    .replace("{outcome}", spoken(outcome, labels)).replace("{prediction}", spoken(guess, labels));
  const tempting = correct ? [] : Object.entries(why).filter(([wrong]) => same(guess, wrong, within, labels)).slice(0, 1);
  const input = form.querySelector("input");
  if (input) input.value = guess;
  for (const button of form.querySelectorAll("[value]")) button.setAttribute("aria-pressed", button.value === guess);
  form.querySelector("output").textContent = [said, ...tempting.map(([, why]) => why)].join(" ");
  const fold = foldAfter(form);
  if (fold) fold.open = true;
};

const setUpPredictions = () => document.querySelectorAll("form.predict").forEach((form, number) => {
  const key = `prediction ${location.pathname} ${number}`; // stays in this browser
  form.addEventListener("submit", event => {
    event.preventDefault();
    const guess = event.submitter?.value || form.querySelector("input")?.value || "";
    if (!guess.trim()) return form.querySelector("input").focus();
    localStorage.setItem(key, guess);
    judge(form, guess);
  });
  const before = localStorage.getItem(key);
  if (before !== null) judge(form, before);
});

// What follows from an outcome opens with it.
const setUpFolds = () => {
  for (const fold of document.querySelectorAll("details.hide.below-input")) {
    const why = fold.closest(".cell")?.nextElementSibling;
    if (!why?.matches("details:not([class])")) continue;
    why.hidden = true;
    fold.addEventListener("toggle", () => { why.hidden = !fold.open; why.open = fold.open; });
  }
};

const setUpFigures = () => {
  const dialog = document.createElement("dialog");
  dialog.id = "figure";
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", event => event.key === "Escape" && dialog.close());
  document.body.append(dialog);
  for (const picture of document.querySelectorAll(".cell_output img")) {
    (picture.closest("a") ?? picture).addEventListener("click", event => {
      event.preventDefault(); // Sphinx makes a link of it, to the picture alone
      dialog.replaceChildren(picture.cloneNode());
      dialog.style.setProperty("--filter", getComputedStyle(picture).filter);
      dialog.showModal();
    });
  }
};

// On a phone, the contents are a drawer: it closes when a section is chosen.
const setUpDrawer = () => document.querySelectorAll(".page-toc a").forEach(link =>
  link.addEventListener("click", () => link.closest("dialog")?.close()));

// The switch of editions keeps the section: the n-th heading is the n-th there, too.
const setUpSwitch = () => {
  const headings = () => [...document.querySelectorAll(".bd-article section[id]")];
  document.querySelector("a.switch")?.addEventListener("click", ({ currentTarget: link }) => {
    const above = headings().filter(section => section.getBoundingClientRect().top < 200);
    if (above.length > 1) link.hash = `section-${above.length}`;
  });
  const found = location.hash.match(/^#section-(\d+)$/);
  const land = () => headings()[found[1] - 1]?.scrollIntoView({ behavior: "instant" });
  if (found) addEventListener("load", land);
};

// A long name breaks between its words: torch.func, save_for_backward, DataParallel, f(create_graph).
const letBreak = () => {
  for (const link of document.querySelectorAll(".page-toc a"))
    link.innerHTML = link.innerHTML.replace(/([_.(](?=[a-z_])|(?<=[a-z])(?=[A-Z]))(?=[^<>]*(<|$))/g, "$1<wbr>");
};

// The keyboard reaches a formula that is wider than its place, and so can scroll it.
const letScroll = () => {
  const mark = () => {
    for (const formula of document.querySelectorAll("mjx-container:not([tabindex])"))
      if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
  };
  for (const event of ["load", "resize"]) addEventListener(event, mark);
  document.addEventListener("toggle", mark, true); // of a fold
};

// A table that goes on beyond the edge says so.
const markTables = () => {
  const tables = document.querySelectorAll(".pst-scrollable-table-container");
  const mark = table => table.classList.toggle(
    "goes-on", table.scrollLeft + table.clientWidth < table.scrollWidth - 4);
  for (const table of tables) table.addEventListener("scroll", () => mark(table));
  for (const event of ["load", "resize"]) addEventListener(event, () => tables.forEach(mark));
};

document.addEventListener("DOMContentLoaded", () => {
  letBreak();
  markTables();
  letScroll();
  setUpFolds();
  setUpPredictions();
  setUpFigures();
  setUpDrawer();
  setUpSwitch();
});
