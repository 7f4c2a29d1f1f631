// Lines that a reader writes in the page: a drill, or a `backward` on the front page. They are
// evaluated by expression.js and compared as helpers/lessons/judge compares; site/attempts.py hands
// over the cases, the tempting lines and the sentences.

const attempts = (() => {
  const { Beyond, Wrong, Tensor, isTensor, isNumber, said, known } = evaluated;
  const filled = (template, gaps) =>
    template.replace(/\{(\w+)\}/g, (gap, name) => name in gaps ? String(gaps[name]) : gap);
  const valueOf = value => typeof value === "number" ? value
    : new Tensor(value.shape, value.data.map(Number), "float64");

  // A number to some digits, as Python's format "g" writes it.
  const toDigits = (number, digits) => {
    if (!Number.isFinite(number)) return String(number).toLowerCase().replace("infinity", "inf");
    const [mantissa, exponent] = number.toExponential(digits - 1).split("e");
    const bare = text => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
    if (exponent >= -4 && exponent < digits) return bare((number || 0).toFixed(Math.max(digits - 1 - exponent, 0)));
    return `${bare(mantissa)}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
  };

  // What a value that differs is said to be, or null; numbers.py has the tolerances, and why.
  const difference = (value, right, { what, words, names, shown }, sentence = words.value, given = null) => {
    if (value === null) return words.none;
    if (Array.isArray(value)) return filled(words.kind, { kind: "tuple", asked: words["a tensor"] });
    if (said(value.shape) !== said(right.shape))
      return filled(words.shape, { which: what, given: said(value.shape), right: said(right.shape) });
    if (value.dtype !== right.dtype)
      return filled(words.dtype, { which: what, given: `torch.${value.dtype}`, right: `torch.${right.dtype}` });
    const known = right.data.map(Number.isFinite);
    const largest = right.data.reduce((most, n, k) => known[k] ? Math.max(most, Math.abs(n)) : most, 1);
    const distances = right.data.map((n, k) => known[k] ? Math.abs(value.data[k] - n) : 0);
    const within = (n, k) => n <= 1e-11 * largest + 1e-10 * Math.abs(right.data[k]) || !known[k];
    if (distances.every(within)) return null;
    const sizes = distances.map(n => Number.isNaN(n) ? Infinity : n), at = sizes.indexOf(Math.max(...sizes));
    const [one, other] = [value.data[at], right.data[at]];
    let digits = 4;
    while (digits < 17 && toDigits(one, digits) === toDigits(other, digits)) digits++;
    const index = right.shape.map((n, dim) => Math.floor(at / right.shape.slice(dim + 1).reduce((a, b) => a * b, 1)) % n);
    const numbersThere = given && shown && shown.map(name => [name, given[names.indexOf(name)].data[at]])
      .filter(([name, n]) => name !== "grad_output" || n !== 1).map(([name, n]) => `${name} = ${toDigits(n, 4)}`);
    const named = numbersThere ? numbersThere.join(", ") : `[${index.join(", ")}]`;
    const place = index.length ? filled(words.place, { index: named }) : "";
    const numbers = { given: toDigits(one + 0, digits), right: toDigits(other + 0, digits) };
    const differs = filled(sentence, { what, place, ...numbers });
    const nearly = Math.abs(one - other) < 1e-5 * Math.abs(other);
    return nearly ? filled(words.followed, { before: differs, after: words.nearly }) : differs;
  };

  // By what all values are too large, if it is one factor.
  const factor = (values, cases) => {
    const pairs = cases.flatMap(({ expected }, n) => expected.data.map((right, k) => [values[n].data[k], right]));
    const [value, right] = pairs.reduce((most, pair) => Math.abs(pair[1]) > Math.abs(most[1]) ? pair : most);
    const times = value / right;
    return pairs.every(([a, b]) => Math.abs(a - times * b) <= 1e-10 * Math.abs(value)) ? times : null;
  };

  // What a line returns for arguments by their names; an error of its own where PyTorch has one.
  const outcome = (line, names, given) => {
    try {
      const scope = Object.fromEntries(names.map((name, n) => [name, given[n]]));
      const value = evaluated(line, scope);
      if (isNumber(value)) return new Tensor([], [Number(value)], "float64");
      return value === null || Array.isArray(value) || isTensor(value) ? value : new Beyond(line);
    } catch (error) { // what this page did not foresee is the course's
      return error instanceof Wrong || error instanceof Beyond ? error : new Beyond(line);
    }
  };

  // PyTorch may get the derivative of such a line wrong, which is not looked at here: at a kink, where
  // the branch that is not taken is infinite, and where a step on the way is.
  const BRANCHES = /[<>]|\b(where|clamp|relu|softplus|nan_to_num|abs|sign|sqrt)\b/;

  // What a keyboard for text writes where Python means another sign.
  const MEANT = { "（": "(", "）": ")", "×": "*", "·": "*", "÷": "/", "，": ",", "−": "-", "＊": "*", "＋": "+", "．": "." };

  // Names that a Python program has without an import, or a course by one.
  const OF_PYTHON = new Set(("math np numpy nn ctx self max min pow round range any all list tuple zip map "
    + "bool print lambda isinstance getattr dim").split(" "));

  // Names of other libraries, and what stands for them.
  const STANDS_FOR = { __proto__: null, e: "torch.exp(…)", expit: "torch.sigmoid", "torch.nn.Sigmoid": "torch.sigmoid", input: "x", grad_output: "g" };

  // Do two names differ by one letter, or in the order of their letters?
  const sorted = name => [...name].sort().join("");
  const without = (name, at) => name.slice(0, at) + name.slice(at + 1);
  const isClose = (one, other) => other.length > 2 && (sorted(one) === sorted(other)
    || [...one, ...other].some((_, at) => without(one, at) === other || one === without(other, at)
      || without(one, at) === without(other, at) && at < one.length));

  const zerosLike = x => new Tensor(x.shape, x.data.map(() => 0), x.dtype);
  const judged = (typed, asked) => { // [mark, sentence, the tempting line that it is, or "" where the sentence has the cause]
    const { number, words } = asked;
    const at = (where, sentence) => where ? filled(words.at, { where, words: sentence }) : sentence;
    const text = typed.replace(/#.*$/, "").trim().replace(/^(return\b|\w+ *=(?!=))|;$/g, "").trim();
    const isBackward = Boolean(asked.arriving); // of which these are the gradients that arrive
    const lambda = !isBackward && /^lambda\s+(\w+(?:\s*,\s*\w+)*)\s*:(.*)$/.exec(text);
    const names = lambda ? lambda[1].split(/\s*,\s*/) : asked.names, line = lambda ? lambda[2].trim() : text;
    if (line === "" || line === "...") return ["○", filled(words.untouched, { number }).replace(/^[:：] ?/, "")];
    const cases = asked.cases.map(({ given, expected, ...more }) =>
      ({ given: given.map(valueOf), expected: valueOf(expected), ...more }));
    let isInf = false; // a step of it, somewhere
    const mine = cases.map(({ given }) => {
      evaluated.overflows = false;
      const value = outcome(line, names, given);
      isInf ||= evaluated.overflows;
      return value;
    });
    const beyond = mine.find(value => value instanceof Beyond);
    const [sign] = line.match(/[（）×·÷，−＊＋．]/) ?? [];
    if (beyond && sign) return ["○", at(number, filled(words.typed, { sign, meant: MEANT[sign] }))];
    const [, module] = line.match(/\b(math|np|numpy|jnp|tf(?:\.math|\.nn)?|jax(?:\.numpy|\.nn)?)\./) ?? [];
    if (beyond && module) return ["○", at(number, filled(words.modules, { module }))];
    const [opened, closed] = [/[([]/g, /[)\]]/g].map(sign => line.match(sign)?.length ?? 0);
    if (beyond && opened !== closed) return ["✗", at(number, filled(words.brackets, { opened, closed }))];
    if (isBackward && mine.some(Array.isArray) || beyond?.message.startsWith(",")) return ["○", at(number, words.tuple)];
    const absent = asked.absent?.[beyond?.message];
    if (absent) return ["✗", at(number, absent)];
    const [, changed] = /^([a-z]\w*)_$/.exec(beyond?.message) ?? [];
    if (changed) return ["○", at(number, filled(words.inPlace, { name: beyond.message, meant: changed }))];
    const isName = beyond?.isName && !OF_PYTHON.has(beyond.message);
    const begins = name => isName && name.startsWith(beyond.message.toLowerCase()); // grad, X
    const isKnown = OF_PYTHON.has(beyond?.message) || known.includes(beyond?.message); // but not all that it takes
    const close = beyond && !isKnown && ([...asked.names, ...known].find(name => isClose(name, beyond.message)) ?? asked.names.find(begins));
    if (close) return ["○", at(number, filled(words.slip, { name: beyond.message, close }))];
    const has = [...asked.names, "torch", "F"].map(one => `\`${one}\``).join(", ");
    const meant = STANDS_FOR[beyond?.message], isThere = asked.names.includes(meant) || meant?.startsWith("torch.");
    if (isName || isThere) {
      const sentence = isThere ? words.instead : words.unknown;
      return [isBackward && isName ? "✗" : "○", at(number, filled(sentence, { name: beyond.message, names: has, meant }))];
    }
    const isQuoted = /['"]/.test(line);
    if (beyond?.isSyntax && /[-+*/@<>=&|]$/.test(line)) return ["○", at(number, words.unfinished)];
    if (beyond?.isSyntax && !isQuoted) return ["○", at(number, filled(words.syntax, { what: beyond.message }))];
    if (beyond) return ["○", at(number, filled(words.beyond, { what: isQuoted ? line.match(/\w*(?=\(\s*['"])/)?.[0] || "'…'" : beyond.message }))];
    const wrong = cases.map(({ expected, where, sentence }, n) => {
      const error = mine[n] instanceof Wrong && filled(words[mine[n].message], mine[n].gaps);
      const found = error || difference(mine[n], expected, asked, words[sentence], cases[n].given);
      return found && at(where, found);
    }).find(Boolean);
    const hasBranch = BRANCHES.test(line);
    if (!wrong) return ["✓", at(number, isInf && asked.overflows || hasBranch && asked.branches || asked.right)];
    const like = (one, other) => isTensor(one) && isTensor(other)
      && !difference(one, other, asked) && !difference(other, one, asked);
    // the same line in other words may overflow: far numbers are compared where it is finite
    const isFar = n => isBackward && n > 3;
    const tempting = asked.wrong.find(one => cases.every(({ given }, n) => {
      const its = outcome(one.line, one.names, given);
      return like(its, mine[n]) || isFar(n) && isTensor(its) && isTensor(mine[n]) && !difference(its, mine[n], asked);
    }));
    const times = isBackward && mine.every((value, n) => value?.data?.length === cases[n].expected.data.length)
      && factor(mine, cases);
    const still = isBackward && outcome(line, names, cases[0].given.map((value, n) =>
      asked.arriving.includes(names[n]) ? zerosLike(value) : value)); // without grad_output
    const isApart = isTensor(still) && still.data.some(n => n !== 0);
    const why = tempting ? tempting.why : isApart ? words.apart : times && Math.abs(times - 1) > 1e-7 && filled(words.times, { factor: toDigits(times, Math.abs(times - 1) < 5e-3 ? 8 : 4) });
    const all = why ? filled(words.followed, { before: wrong, after: why }) : wrong;
    return ["✗", at(number, all), tempting?.line ?? (why ? "" : undefined)];
  };

  const spell = (place, text) => place.replaceChildren(...text.split("`").map((part, n) => {
    if (n % 2 === 0) return part;
    const code = document.createElement("code");
    code.textContent = part;
    return code;
  }));

  // Wires a form with a field and an output; `told` hears the line, and may know better.
  const setUp = (form, key, told = () => {}) => {
    const asked = JSON.parse(form.dataset.asked), field = form.querySelector("textarea");
    const output = form.querySelector("output"), hint = output.textContent;
    const answer = (isAsFound = false) => { // then nobody has answered yet
      spell(output, ""); // no old verdict stays
      output.classList.remove("stale");
      const found = judged(field.value, asked), [mark, said] = told(field.value, ...found) || found;
      spell(output, isAsFound ? hint : `${mark} ${said[0].toUpperCase()}${said.slice(1)}`);
      Object.assign(output.dataset, { mark: isAsFound ? "" : mark, of: field.value }); // has its colour
    };
    form.addEventListener("submit", event => {
      event.preventDefault();
      localStorage.setItem(key, field.value);
      answer();
    });
    form.addEventListener("reset", () => { // the field has its first line again after this event
      localStorage.removeItem(key);
      setTimeout(() => { field.dispatchEvent(new Event("input")); answer(true); });
    });
    field.addEventListener("beforeinput", event => { // Enter, also of a phone's keyboard
      if (event.inputType !== "insertLineBreak") return;
      event.preventDefault();
      form.requestSubmit();
    });
    field.addEventListener("input", () => { // pasted lines are one
      if (field.value.includes("\n")) field.value = field.value.trim().replace(/\s*\n\s*/g, " ");
      output.classList.toggle("stale", field.value !== output.dataset.of); // it is of another line
    });
    if (!CSS.supports("field-sizing", "content")) { // as tall as what it holds
      const grow = () => {
        field.style.height = "auto";
        field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
      };
      field.addEventListener("input", grow);
      new ResizeObserver(grow).observe(form);
    }
    field.value = localStorage.getItem(key) ?? field.defaultValue; // stays in this browser
    if (field.value) answer(field.value === field.defaultValue);
  };
  return { judged, setUp, filled };
})();

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", () => {
  for (const form of document.querySelectorAll("form.attempt:not(.front form)"))
    attempts.setUp(form, `attempt ${location.pathname} ${JSON.parse(form.dataset.asked).number}`);
});
