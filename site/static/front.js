// The front page: log(1 + exp(x)) in float32, candidates for its backward, and the indexes.
const float = Math.fround; // every step is rounded, as in a tensor of float32
const exp = x => float(Math.exp(x));
const values = at => {
  const x = float(at), e = exp(x), sum = float(1 + e);
  return {
    value: float(Math.log(sum)),
    theirs: float(float(1 / sum) * e), // the chain rule, step by step
    ours: float(1 / float(1 + exp(-x))),
  };
};
const shown = number => Number.isNaN(number) ? "nan" : number === Infinity ? "inf" : number.toPrecision(6);

const setUpSlope = front => {
  const slider = front.querySelector("#x");
  const curve = key => {
    let path = "", pen = "M";
    for (let x = -20; x <= 120; x += 0.5) {
      const y = values(x)[key];
      if (Number.isNaN(y)) { pen = "M"; continue; }
      path += `${pen}${x + 20} ${(42 - 40 * y).toFixed(2)}`;
      pen = "L";
    }
    return path;
  };
  front.querySelector("#ours").setAttribute("d", curve("ours"));
  front.querySelector("#theirs").setAttribute("d", curve("theirs"));
  const show = () => {
    const x = Number(slider.value), now = values(x);
    front.querySelector("#x-is").textContent = `x = ${x}`;
    for (const [key, number] of Object.entries(now)) {
      const cell = front.querySelector(`#${key}-is`);
      cell.textContent = shown(number);
      cell.classList.toggle("lost", !Number.isFinite(number));
    }
    front.querySelector("#marker").setAttribute("transform", `translate(${x + 20} 0)`);
  };
  slider.addEventListener("input", show);
  show();
};

const setUpCandidates = front => front.querySelectorAll(".candidates button").forEach(button =>
  button.addEventListener("click", () => {
    for (const other of front.querySelectorAll(".candidates button"))
      other.setAttribute("aria-pressed", other === button);
    front.querySelector(".candidates output").textContent = button.dataset.verdict;
  }));

// English words without their endings, pairs of Chinese characters. What says nothing, the endings
// and what people use for one another are the search's.
const wordsIn = text => [
  ...(text.replace(/\bin[- ]place/g, "inplace").match(/[a-z\d_.]*[a-z\d_]/g) ?? [])
    .filter(word => !SAYS_NOTHING.has(word)).map(stem),
  ...(text.match(/\p{Script=Han}+/gu) ?? []).flatMap(run =>
    run.length === 1 ? run : [...run.slice(1)].map((second, place) => run[place] + second)),
];

// Rows of both indexes that hold what is typed, or most of it. A word counts the more, the fewer
// rows have it: a pasted message has many words that say nothing.
const setUpLookUp = front => {
  const field = front.querySelector("#look-up"), list = front.querySelector("#rows");
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
    const weight = having ? Math.log(rows.length / having) : 0;
    return ({ heading, words }) => weight * (among(heading) + among(words));
  };
  field.addEventListener("input", () => {
    const typed = [...new Set(wordsIn(field.value.toLowerCase()))], words = typed.map(asWeighed);
    const covered = ({ heading }) => heading.filter(word => typed.includes(word)).length / (heading.length || 1);
    const score = row => words.reduce((sum, weighed) => sum + weighed(row), 0) * (1 + covered(row) / 2);
    const asked = field.value.toLowerCase();
    const literally = row => { // a message that is pasted holds what its row says
      const said = row.querySelector("a").textContent.toLowerCase();
      return asked.includes(said) || said.includes(asked) ? Math.min(said.length, asked.length) / 3 : 0;
    };
    const scored = rows.map(one => ({ row: one.row, words: score(one), all: score(one) + literally(one.row) }));
    const enough = Math.max(...scored.map(one => one.words)) / 3;
    const found = scored.filter(one => one.words > 0 && one.words >= enough)
      .sort((one, other) => other.all - one.all).slice(0, 8).map(one => one.row);
    for (const { row } of rows) row.hidden = true;
    for (const row of found) { row.hidden = false; list.append(row); }
    front.querySelector("#none").hidden = found.length > 0 || !words.length;
  });
  field.addEventListener("keydown", event => {
    if (event.key === "Enter") list.querySelector("li:not([hidden]) a")?.click();
  });
};

const setUpWays = front => front.querySelectorAll(".through button").forEach(button =>
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of front.querySelectorAll(".through button"))
      other.setAttribute("aria-pressed", on && other === button);
    const wanted = on ? button.dataset.chapters.split(" ") : [];
    for (const card of front.querySelectorAll(".map a"))
      card.classList.toggle("aside", on && !wanted.includes(card.dataset.number));
  }));

document.addEventListener("DOMContentLoaded", () => {
  const front = document.querySelector(".front");
  front.classList.add("alive"); // without scripts, what needs them is not shown
  setUpSlope(front);
  setUpCandidates(front);
  setUpLookUp(front);
  setUpWays(front);
});
