// A page: predictions, what opens with an outcome, figures that grow, the drawer, the switch.

const judged = reading(WORDS); // of predictions: reading.js, prediction_words.json

const foldAfter = form => { // the fold of the output that the prediction is about, if it has one
  const all = [...document.querySelectorAll("details.hide.below-input, form.predict")];
  const next = all[all.indexOf(form) + 1]; // in the order of the page
  return next?.matches("details") ? next : null;
};

const spoken = (words, labels) => words.split(", ").map(word => labels[word] ?? word).join(", ");

const judge = (form, guess) => {
  const asked = JSON.parse(form.dataset.answer);
  const { outcome, right, wrong, unread, why, labels } = asked;
  const verdict = judged(guess, asked); // null: it is no answer, and nothing opens
  const said = (verdict === null ? unread : verdict ? right : wrong)
    .replace("{outcome}", spoken(outcome, labels)).replace("{prediction}", spoken(guess, labels));
  const tempting = verdict !== false ? [] : Object.entries(why)
    .filter(([wrong]) => judged(guess, { ...asked, outcome: wrong })).slice(0, 1);
  const input = form.querySelector("input");
  if (input) input.value = guess;
  for (const button of form.querySelectorAll("[value]")) button.setAttribute("aria-pressed", button.value === guess);
  form.querySelector("output").textContent = [said, ...tempting.map(([, why]) => why)].join(" ");
  const fold = foldAfter(form);
  if (fold && verdict !== null) fold.open = true;
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

// The contents follow: the section that is read is marked, and in sight.
const setUpContents = () => {
  const links = [...document.querySelectorAll(".page-toc a[href^='#']")];
  let timer;
  addEventListener("scroll", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const isAbove = link => document.getElementById(decodeURIComponent(link.hash.slice(1)))?.getBoundingClientRect().top < 200;
      const here = links.findLast(isAbove), box = here?.closest(".bd-sidebar-secondary");
      for (const link of links) {
        link.classList.toggle("active", link === here);
        if (link === here) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      }
      if (!box) return;
      const { top, bottom } = here.getBoundingClientRect(), frame = box.getBoundingClientRect();
      if (top < frame.top || bottom > frame.bottom) box.scrollTop += top - frame.top - frame.height / 3;
    }, 100);
  });
};

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
  for (const link of document.querySelectorAll(".page-toc a code"))
    link.innerHTML = link.innerHTML.replace(/([_.(](?=[a-z_])|(?<=[a-z]{2})(?=[A-Z]))(?=[^<>]*(<|$))/g, "$1<wbr>");
};

// A table, a formula or the front page's code that goes on beyond the edge says so, and the keyboard
// reaches it.
const letScroll = () => {
  const all = document.querySelectorAll(".pst-scrollable-table-container, mjx-container, .pair pre");
  const mark = one => {
    one.classList.toggle("goes-on", one.scrollLeft + one.clientWidth < one.scrollWidth - 4);
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
  };
  const markAll = () => all.forEach(mark);
  for (const one of all) one.addEventListener("scroll", () => mark(one));
  for (const event of ["load", "resize"]) addEventListener(event, markAll);
  document.addEventListener("toggle", markAll, true); // of a fold
};

document.addEventListener("DOMContentLoaded", () => {
  letBreak();
  letScroll();
  setUpFolds();
  setUpPredictions();
  setUpFigures();
  setUpDrawer();
  setUpContents();
  setUpSwitch();
});
