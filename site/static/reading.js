// A prediction in the reader's own words, as helpers/lessons/reading.py has it: there it is explained,
// and tests/lessons/prediction_cases.json holds both to it. TABLE is its prediction_words.json.

const reading = TABLE => { // judged(guess, asked): true, false, or null if it is no answer
  const NUMBER = String.raw`(?<![a-z\d.])-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?`;
  const LATIN = String.raw`[a-z0-9_.+±^]`;
  const isLatin = word => /^[ -~]+$/.test(word);
  const names = Object.keys(TABLE.numbers);
  const english = `(?:${names.filter(isLatin).join("|")})`;
  const chinese = `[${names.filter(name => !isLatin(name)).join("")}]`;
  const inWords = [ // numbers: in English with blanks between them, in Chinese without
    [new RegExp(String.raw`(?<!${LATIN})${english}(?:[\s-]+${english})*(?!${LATIN})`, "g"), new RegExp(english, "g")],
    [new RegExp(`${chinese}+`, "g"), new RegExp(chinese, "g")],
  ];
  const isNot = rest => new RegExp(TABLE.not).test(rest);
  const beside = TABLE.beside.split("|");
  const words = text => text.split(/\s+/).filter(Boolean);
  const value = word => new RegExp(`^(?:${NUMBER})$`).test(word) ? Number(word) : word;
  const isNumber = word => typeof value(word) === "number";

  const plain = text => {
    const superscripts = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    text = text.trim().replace(/[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+/g, run => "^" + [...run].map(sign => sign === "⁻" ? "-" : superscripts.indexOf(sign)).join(""));
    text = text.normalize("NFKC").toLowerCase().replaceAll("**", "^").replace(/[−–]/g, "-").replaceAll("、", ",").replaceAll("⁄", "/");
    if (/^(\[\s*\]|\(\s*\))$/.test(text)) return "none";
    return text.replace(/n['’]t\b/g, " not").replace(/['’]s\b/g, "").replace(/["'`“”‘’()[\]{}「」《》]|[.。!?]+$/g, "").trim();
  };
  const parts = text => plain(text).split(/[,;&\n]|\band\b|(?<!求)[和与]/).map(part => part.trim()).filter(Boolean);
  const letters = text => {
    text = plain(text).replace(/\b(and|only|just)\b|只有|仅|只|和/g, "").replace(/[\s,.;]/g, "");
    return /^([a-f]+|[cep]+)$/.test(text) ? [...new Set(text)].sort().join("") : null;
  };
  const key = text => {
    text = plain(text).replace(/^(an?|the)\s+/, "");
    return text.replace(/[\s_^]|(?<=[a-z])-(?=[a-z])|(?<=[a-z]{3})error$/g, "") || text;
  };
  const said = text => words(text.replace(new RegExp(TABLE.besides, "g"), " ")).filter(word => !beside.includes(word));
  const escape = text => text.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
  const within = (form, part) => new RegExp(`(?<!${LATIN})${escape(form)}(?!${LATIN})`).test(part);
  const same = TABLE.same.map(forms => ({ forms, keys: forms.map(key) }));

  const found = (text, answers) => {
    const exact = answers.findLast(word => plain(word) === text);
    if (exact !== undefined) return exact;
    const byKey = key => { // `mul_constant` beside `MulConstant`: neither
      const [first, ...others] = answers.filter(word => keyOf.get(word) === key);
      return others.length ? undefined : first;
    };
    const keyOf = new Map(answers.map(word => [word, key(word)]));
    for (const one of [text, said(text).join(" ")]) {
      const asked = key(one), direct = byKey(asked);
      if (direct) return direct;
      for (const { keys } of same) {
        if (!keys.includes(asked)) continue;
        const means = keys.map(byKey).find(word => word && !isNumber(word));
        if (means) return means;
      }
    }
    return null;
  };
  const formsOf = word => {
    if (isNumber(word)) return [];
    const alike = same.filter(({ keys }) => keys.includes(key(word))).flatMap(({ forms }) => forms.map(plain));
    const all = [plain(word), ...alike].map(form => form.replace(/^(an?|the)\s+/, ""));
    return [...new Set(all)].filter(form => form.length > 1 || form === plain(word));
  };

  const counted = words => {
    let total = 0, last = 0;
    for (const word of words) {
      const one = TABLE.numbers[word];
      if (TABLE.times.includes(one)) [total, last] = [total + (last || 1) * one, 0];
      else last += one;
    }
    return ` ${total + last} `;
  };
  const number = text => {
    for (const [run, one] of inWords) text = text.replace(run, run => counted(run.match(one)));
    text = text.replace(/(\d+)\s*\^\s*(-?\d+)/g, (_, base, power) => Number((base ** power).toPrecision(12)))
      .replace(/(\d)\s*%/g, "$1/100").replace(/(\d) (out )?of \d+\b/g, "$1").replace(/(\d)\s*\/\s*(?=\d)/g, "$1/");
    const all = [...text.matchAll(new RegExp(`(${NUMBER})(?:/(\\d+))?`, "g"))];
    const rest = text.replace(new RegExp(`${NUMBER}(?:/\\d+)?`, "g"), " ");
    if (all.length !== 1 || /\d/.test(rest.replace(/[a-z][a-z0-9_]*/g, ""))) return [null, text];
    return [all[0][1] / (all[0][2] ?? 1), rest];
  };

  const byAWord = (part, answers) => {
    const mine = words(part);
    const only = answers.filter(word => !isNumber(word) && words(word).some(one =>
      mine.includes(one) && !answers.some(other => other !== word && words(other).includes(one))));
    if (only.length === 1) return [value(only[0]), mine.filter(word => !words(only[0]).includes(word)).join(" ")];
    const isName = new RegExp(TABLE.names);
    return !only.length && isName.test(part) && isName.test(answers[0]) ? [part, ""] : [null, part];
  };
  const one = (part, answers) => {
    const word = found(part, answers);
    if (word !== null) return [value(word), ""];
    const numbers = answers.some(isNumber);
    if (numbers && /^-?(nan|inf|infinity)$/.test(part)) return [part, ""];
    const [given, beside] = numbers ? number(part) : [null, ""];
    if (given !== null) return [given, beside];
    if (numbers && same[2].keys.includes(key(part))) return [0, ""];
    let all = answers.flatMap(word => formsOf(word).filter(form => within(form, part)).map(form => [form, word]));
    const longest = Math.max(0, ...all.map(([form]) => form.length));
    all = all.filter(([form]) => form.length === longest);
    if (!all.length) return byAWord(part, answers);
    const [form, means] = all[0];
    const rest = part.replaceAll(form, " ");
    const longer = answers.some(other => form !== other && other.includes(form));
    const others = answers.some(word => word !== means && formsOf(word).some(form => within(form, rest)));
    if (new Set(all.map(([, word]) => word)).size > 1 || others || longer && said(rest).length) return [null, rest];
    return [value(means), rest];
  };
  const apart = (text, count) => {
    const both = text.match(/^(?:both|all|两[个次]都是?|都是?)\s*(.+)$/);
    if (both) return Array(count).fill(both[1]);
    for (const mark of ["/", /\s+/]) {
      const split = text.split(mark).filter(Boolean);
      if (split.length === count) return split;
    }
    const numbers = [...text.matchAll(new RegExp(NUMBER, "g"))];
    if (numbers.length !== count) return [text];
    const ends = [0, ...numbers.slice(0, -1).map(found => found.index + found[0].length), text.length];
    return numbers.map((_, n) => text.slice(ends[n], ends[n + 1]));
  };
  const read = (guess, asked) => {
    let whole = found(plain(guess), asked.whole);
    if (whole === null && TABLE.same[0].includes(plain(guess))) {
      const several = asked.whole.filter(word => word.includes(" and "));
      whole = several.length === 1 ? several[0] : null;
    }
    if (whole !== null) return parts(whole).map(value);
    const count = parts(asked.outcome).length;
    let given = parts(count === 1 ? guess.replace(/(?<=\d),(?=\d{3}\b)/g, "") : guess);
    if (count > 1 && given.length === 1) given = apart(given[0], count);
    else if (asked.free && given.length === 1 && new RegExp(`^${NUMBER}(\\s+${NUMBER})+$`).test(given[0])) given = given[0].split(/\s+/);
    const answers = [...new Set(asked.words.flatMap(parts))];
    const ordered = count > 1 && !asked.outcome.includes(" and ");
    const all = [];
    let place = 0;
    for (const part of given) {
      const [means, rest] = one(part, answers);
      if (means === null || isNot(rest)) return null;
      for (const word of ordered ? said(rest) : []) { // "block 1, thread 2" is not in the order that was asked for
        const alike = TABLE.same.filter(forms => forms.includes(word)).flat();
        place = Math.max(...[word, ...alike].map(form => asked.wish.toLowerCase().indexOf(form, place)));
        if (place++ < 0) return null;
      }
      all.push(means);
    }
    return asked.free || all.length === count ? all : null;
  };
  const alike = (given, right, { outcome, within }) => {
    right = value(right);
    if (typeof given === "string" || typeof right === "string") return given === right;
    const rounded = /\.|e-/.test(outcome), digits = String(given).replace(/e.*|\D/g, "").replace(/^0+/, "").length;
    if (rounded && digits > 1 && Number(right.toPrecision(digits)) === given) return true;
    const shown = rounded ? 6e-4 : 0; // to four digits
    return Math.abs(given - right) <= Math.max(within, shown) * Math.abs(right);
  };
  return (guess, asked) => {
    const set = asked.letters ? letters(guess) : null;
    if (set) return set === letters(asked.outcome);
    if (value(asked.outcome) > 1) guess = guess.replaceAll("%", ""); // per cent were asked for
    const given = read(guess, asked);
    if (given === null) return null;
    const right = parts(asked.outcome);
    if (asked.outcome.includes(" and ")) [given, right].forEach(all => all.sort());
    return given.length === right.length && given.every((one, n) => alike(one, right[n], asked));
  };
};
