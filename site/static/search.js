// Searches as one types. Pagefind's script and index are loaded with the first letter.
// In the index, each Chinese character is a word (see site/search.py).
// In a Chinese index, a name is cut at its underscores, too.
const chinese = document.documentElement.lang.startsWith("zh");
const apart = text => (chinese ? text.replaceAll("_", " ") : text)
  .replace(/(?<=\p{Script=Han})(?=\p{Script=Han})/gu, " ");
const together = text => text.replaceAll("\u200b", "") // Pagefind's marks in a name
  .replace(/(?<=\p{Script=Han}) (?=\p{Script=Han})/gu, "");

const segmenter = new Intl.Segmenter("zh", { granularity: "word" }); // knows English words, too
const wordsOf = text =>
  new Set([...segmenter.segment(text)].filter(part => part.isWordLike).map(part => part.segment));
// What the forms of a word have in common: clip, clips, clipped, clipping.
const stem = word =>
  word.length > 4 ? word.replace(/(?<=.{3})(ing|(?<!e)ed|es|s|e)$/, "").replace(/([bgmnpt])\1$/, "$1") : word;

// The results that hold a word; a Chinese one with its characters in this order.
const holding = async (pagefind, word) => {
  const { results } = await pagefind.search(apart(word));
  if (!/\p{Script=Han}/u.test(word)) return results;
  const inOrder = await pagefind.search(`"${apart(word)}"`);
  const ids = new Set(inOrder.results.map(result => result.id));
  return results.filter(result => ids.has(result.id));
};

// What holds the words best, or most of them: a learner's words are rarely all the course's own.
const holdingMost = async (pagefind, words) => {
  const found = new Map();
  for (const word of words) {
    for (const result of await holding(pagefind, word)) {
      const { score, words } = found.get(result.id) ?? { score: 0, words: 0 };
      found.set(result.id, { ...result, score: score + result.score, words: words + 1 });
    }
  }
  const rank = result => result.score * result.words ** 2;
  return [...found.values()].sort((one, other) => rank(other) - rank(one));
};

// A section as it is shown: what its words are, without the heading, from the sentence on that
// holds the first of `words`; null if it holds none.
const section = ({ url, meta, content }, words) => {
  const title = together(meta.title);
  const whole = together(content);
  const called = together(meta.called ?? ""); // a chapter's other names count as its heading
  const all = whole.startsWith(title) ? whole.slice(title.length).replace(/^[.\s]+/, "") : whole;
  const text = called && all.includes(called) ? all.slice(0, all.lastIndexOf(called)) : all;
  const names = `${title} ${called}`.toLowerCase();
  const stems = words.map(stem);
  const places = stems.map(part => text.toLowerCase().indexOf(part)).filter(at => at >= 0);
  const headings = wordsOf(names);
  const isWhole = word => headings.has(word) || /\p{Script=Han}/u.test(word);
  const inHeading = words.map(word =>
    !names.includes(stem(word)) ? 0 : isWhole(word) ? 1 : 0.5);
  const alone = [...wordsOf(title.toLowerCase())].join() === words.join(); // a heading of these words comes first
  const heading = inHeading.reduce((sum, one) => sum + one, 0) + alone;
  if (!places.length && !heading) return null;
  const at = places.length ? Math.min(...places) : 0;
  const sentence = Math.max(...[". ", "? ", "。", "？", "："].map(end => {
    const last = text.lastIndexOf(end, at - 1);
    return last < 0 ? 0 : last + end.length;
  }));
  const start = at - sentence < 120 ? sentence : text.lastIndexOf(" ", at - 40) + 1;
  const parts = [...segmenter.segment(text.slice(start, start + 320))].map(part => part.segment);
  let excerpt = "";
  while (parts.length && excerpt.length < 200) excerpt += parts.shift();
  return { url, title, page: together(meta.page), heading, excerpt, stems };
};

const marked = (text, stems) => {
  const wanted = stems.map(part => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  return text.split(new RegExp(`((?:${wanted})[a-z]*)`, "i")).map((part, number) => {
    if (number % 2 === 0) return part;
    const mark = document.createElement("mark");
    mark.textContent = part;
    return mark;
  });
};

document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.getElementById("pst-search-dialog");
  const input = dialog.querySelector("input");
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const found = document.createElement("div");
  found.id = "found";
  found.setAttribute("role", "status");
  dialog.append(found);

  const linkTo = ({ url, title, page, excerpt, stems }) => {
    const link = document.createElement("a");
    link.href = new URL(url.replace(/^\//, ""), root);
    const [name, where, words] = ["b", "i", "span"].map(tag => document.createElement(tag));
    name.textContent = title;
    where.textContent = page;
    words.append(...marked(excerpt, stems));
    link.append(name, where, words);
    link.addEventListener("click", () => dialog.close());
    return link;
  };

  let loaded; // once, so that the letters that come meanwhile are searched for in their order
  const load = async () => {
    const pagefind = await import(new URL("pagefind/pagefind.js", root));
    const ranking = { pageLength: 0.2, termFrequency: 0.5 }; // or short sections win
    await pagefind.options({ baseUrl: "/", ranking });
    return pagefind;
  };

  input.addEventListener("input", async () => {
    const asked = input.value.trim();
    if (!asked) return found.replaceChildren();
    loaded ??= load().catch(error => { loaded = null; throw error; }); // the next letter tries again
    const pagefind = await loaded;
    await new Promise(resolve => setTimeout(resolve, 150));
    if (asked !== input.value.trim()) return; // more was typed meanwhile
    const words = [...wordsOf(asked.toLowerCase())];
    const results = await holdingMost(pagefind, words);
    const data = await Promise.all(results.slice(0, 24).map(result => result.data()));
    if (asked !== input.value.trim()) return;
    const sections = data.map(one => section(one, words)).filter(Boolean);
    sections.sort((one, other) => other.heading - one.heading);
    found.replaceChildren(...sections.slice(0, 8).map(linkTo));
    if (!sections.length) found.textContent = found.closest("[data-nothing]").dataset.nothing;
  });

  dialog.querySelector("form").addEventListener("submit", event => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
});
