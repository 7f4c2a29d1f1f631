// The front page: log(1 + exp(x)) in float32, and a line for its backward.
const LINES = { // each step is rounded, as in a tensor of float32
  value: "torch.log(1 + torch.exp(x))",
  theirs: "1 / (1 + torch.exp(x)) * torch.exp(x)", // the chain rule, step by step
  ours: "torch.sigmoid(x)",
};
const RANGE = Array.from({ length: 281 }, (_, n) => n / 2 - 20);
const BEYOND = [-800, -300, -100, 130, 200, 400, 800]; // is judged, but has no place in the picture
const shown = number => Number.isNaN(number) ? "nan" : number === Infinity ? "inf" : number === 0 ? "0" : number.toPrecision(6);
const inFloat32 = (line, points, g = 1, shape = [points.length]) => { // what a line gives where grad_output is g, or null
  const { Tensor } = evaluated, tensor = of => new Tensor(shape, of.map(Math.fround), "float32");
  try {
    const made = evaluated(line, { x: tensor(points), grad_output: tensor(points.map((_, n) => g[n] ?? g)) });
    return String(made.shape) === String(shape) ? made.data : null;
  } catch { return null; }
};
const MIXED = [[-2, -1, 0.5, 1, 2, 3], [0.5, -1, 200, -300, 1.5, -0.25], [2, 3]]; // x, grad_output, their shape

const RIGHT = inFloat32(LINES.ours, RANGE), RIGHT_BEYOND = inFloat32(LINES.ours, BEYOND);
const RIGHT_MIXED = inFloat32(`grad_output * ${LINES.ours}`, ...MIXED);

const setUpSlope = front => {
  const { filled } = attempts;
  const slider = front.querySelector("#x"), form = front.querySelector(".slope form");
  let yours = null; // the line in the field, if it has a curve
  const write = (key, number) => {
    const cell = front.querySelector(`#${key}-is`);
    cell.textContent = shown(number);
    cell.classList.toggle("lost", !Number.isFinite(number));
  };
  const show = () => {
    const x = Number(slider.value);
    front.querySelector("#x-is").textContent = x;
    for (const [key, line] of Object.entries(LINES)) write(key, inFloat32(line, [x])[0]);
    front.querySelector("#yours-is").parentElement.hidden = !yours;
    if (yours) write("yours", inFloat32(yours, [x])?.[0] ?? NaN);
    front.querySelector("#marker").setAttribute("transform", `translate(${x + 20} 0)`);
  };
  slider.addEventListener("input", show);
  const draw = (line, mark, said) => {
    const slopes = inFloat32(line, RANGE), halved = inFloat32(line, RANGE, 0.5);
    let path = "", pen = "M";
    for (const [n, y] of (slopes ?? []).entries()) {
      const seen = Math.min(Math.max(1 - y, -9), 9); // far outside: what is larger is not drawn
      path += Number.isNaN(y) ? "" : `${pen}${RANGE[n] + 20} ${seen.toFixed(4)}`;
      pen = Number.isNaN(y) ? "M" : "L";
    }
    front.querySelector("#yours").setAttribute("d", path);
    yours = slopes && line;
    const slopeAt = (line, x) => inFloat32(line, [x])?.[0] ?? NaN;
    const differ = (some, right, at) => (some ?? []).flatMap((y, n) => Math.abs(y - right[n]) < 0.01 ? [] : at[n]);
    const wrong = differ(slopes, RIGHT, RANGE), far = inFloat32(line, BEYOND);
    const away = x => Math.abs(x - slider.value);
    // the slider goes where the line is seen failing, or where only a right one goes on
    slider.value = wrong.length ? wrong.reduce((near, x) => away(x) < away(near) ? x : near) : slopes ? 100 : slider.value;
    const at = Number(/x = (-?[\d.]+)/.exec(mark === "✗" ? said : "")?.[1] ?? NaN); // or where the sentence looks
    if (wrong.includes(Math.round(at))) slider.value = at;
    show();
    if (!slopes) return null;
    const near = (some, right) => some?.every((y, n) => Math.abs(y - right[n]) <= 1e-6 * Math.abs(right[n]));
    if (mark === "✗" && near(slopes, RIGHT) && near(far, RIGHT_BEYOND) && near(inFloat32(line, ...MIXED), RIGHT_MIXED))
      return ["○", filled(form.dataset.single, { said })];
    // in float32, the smallest slopes may be lost on the way: near 1e-9, or near 1e-26
    for (const x of mark !== "✗" && !wrong.length ? [-20, -60] : []) {
      const [value, right] = [line, LINES.ours].map(one => slopeAt(one, x));
      if (Math.abs(value - right) > right / 2) return ["○", filled(form.dataset.lost, { x, value: shown(value), right: shown(right) })];
    }
    // a line that is right until a step overflows is told so, if it is proportional to grad_output
    const beyond = differ(far, RIGHT_BEYOND, BEYOND), [from] = [...wrong, ...beyond];
    const all = [...RANGE, ...BEYOND], isLost = x => wrong.includes(x) || beyond.includes(x);
    const value = from > 0 && all.every(x => isLost(x) === (x >= from)) && shown(slopeAt(line, from));
    let last = Math.max(...all.filter(x => x < from)), first = from; // between these it is lost
    for (let n = 0; n < 30; n++) {
      const x = (last + first) / 2;
      if (Math.abs(slopeAt(line, x) - slopeAt(LINES.ours, x)) < 0.01) last = x; else first = x;
    }
    const isProportional = RIGHT.every((right, n) => wrong.includes(RANGE[n]) || Math.abs(halved[n] - right / 2) < 0.01);
    const told = text => filled(text, { x: from, last: Math.floor(10 * last) / 10,
      value: (value || shown(slopeAt(line, from))).replace(/[.]0+$/, "") });
    if (["nan", "inf", "0"].includes(value) && isProportional) return ["✗", told(form.dataset.overflow)];
    return mark !== "✗" && from !== undefined && ["○", told(form.dataset.narrow)];
  };
  show();
  attempts.setUp(form, "attempt front", (line, ...found) => draw(line.trim().replace(/^(return\b|\w+ *=(?!=))/, "").trim(), ...found));
};

// A second field: beside it stands what the doctor prints of the line, where it is a stored one.
const setUpGate = front => {
  const form = front.querySelector("#check form"), reports = [...front.querySelectorAll(".reports > div")];
  const lead = report => report.querySelector("p").firstChild;
  const words = new Map(reports.map(one => [one, lead(one).textContent]));
  attempts.setUp(form, "attempt gate", (line, mark, _said, like) => {
    const own = mark === "✓" ? reports.at(-1) : reports.find(one => one.dataset.line === like);
    const shown = own ?? reports[0], same = own && own.dataset.line !== line.trim();
    for (const one of reports) one.hidden = one !== shown;
    lead(shown).textContent = same ? `${shown.parentElement.dataset.same} ` : words.get(shown);
    front.querySelector(".reports > p").hidden = Boolean(own); // of another line, where it comes from
    shown.querySelector("details")?.removeAttribute("open"); // the next line is the reader's to find
    reports[0].parentElement.classList.remove("stale");
  });
  form.addEventListener("input", () => front.querySelector(".reports").classList.add("stale"));
};

const setUpWays = front => front.querySelectorAll(".through button").forEach(button =>
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    for (const other of front.querySelectorAll(".through button"))
      other.setAttribute("aria-pressed", on && other === button);
    const wanted = on ? button.dataset.chapters.split(" ") : [];
    const way = [];
    for (const chapter of front.querySelectorAll(".map li")) {
      const { number } = chapter.dataset, isOn = wanted.includes(number);
      chapter.classList.toggle("aside", on && !isOn);
      const link = Object.assign(document.createElement("a"), { href: chapter.querySelector("a").href, textContent: number });
      if (isOn) way[wanted.indexOf(number)] = link;
    }
    front.querySelector(".through output").replaceChildren(...way.flatMap((link, n) => n ? [" → ", link] : link));
  }));

document.addEventListener("DOMContentLoaded", () => {
  const front = document.querySelector(".front");
  setUpSlope(front);
  setUpGate(front);
  setUpWays(front);
});
