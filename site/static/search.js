// Searches as one types. Pagefind's script and index are loaded with the first letter.
// In the index, each Chinese character is a word (see site/search.py).
const apart = text => text.replace(/(?<=\p{Script=Han})(?=\p{Script=Han})/gu, " ");
const together = text =>
  text.replace(/(?<=\p{Script=Han}(?:<\/?mark>)*) (?=(?:<\/?mark>)*\p{Script=Han})/gu, "")
    .replaceAll("</mark><mark>", "");

const segmenter = new Intl.Segmenter("zh", { granularity: "word" }); // knows English words, too
const wordsOf = text =>
  new Set([...segmenter.segment(text)].filter(part => part.isWordLike).map(part => part.segment));

// The results that hold a word; a Chinese one with its characters in this order.
const holding = async (pagefind, word) => {
  const { results } = await pagefind.search(apart(word));
  if (apart(word) === word) return results;
  const inOrder = await pagefind.search(`"${apart(word)}"`);
  const ids = new Set(inOrder.results.map(result => result.id));
  return results.filter(result => ids.has(result.id));
};

// What holds the words best, or most of them: a learner's words are rarely all the course's own.
const holdingMost = async (pagefind, text) => {
  const found = new Map();
  for (const word of wordsOf(text)) {
    for (const result of await holding(pagefind, word)) {
      const { score, words } = found.get(result.id) ?? { score: 0, words: 0 };
      found.set(result.id, { ...result, score: score + result.score, words: words + 1 });
    }
  }
  const rank = result => result.score * result.words ** 2;
  const { results } = await pagefind.search(apart(text)); // marks all words, not only the first
  const marked = new Map(results.map(result => [result.id, result]));
  return [...found.values()].sort((one, other) => rank(other) - rank(one))
    .map(result => marked.get(result.id) ?? result);
};

document.addEventListener("DOMContentLoaded", () => {
  const dialog = document.getElementById("pst-search-dialog");
  const input = dialog.querySelector("input");
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const found = document.createElement("div");
  found.id = "found";
  found.setAttribute("role", "status");
  dialog.append(found);

  const linkTo = ({ url, meta, excerpt }) => {
    const link = document.createElement("a");
    link.href = new URL(url.replace(/^\//, ""), root);
    const title = document.createElement("b");
    title.textContent = together(meta.title);
    const page = document.createElement("i");
    page.textContent = together(meta.page);
    const words = document.createElement("span");
    words.innerHTML = together(excerpt); // escaped by Pagefind, but for its <mark>
    link.append(title, page, words);
    link.addEventListener("click", () => dialog.close());
    return link;
  };

  let loaded; // once, so that the letters that come meanwhile are searched for in their order
  const load = async () => {
    const pagefind = await import(new URL("pagefind/pagefind.js", root));
    const ranking = { pageLength: 0.2, termFrequency: 0.5 }; // or short sections win
    await pagefind.options({ baseUrl: "/", excerptLength: 40, ranking });
    return pagefind;
  };

  input.addEventListener("input", async () => {
    const words = input.value.trim();
    if (!words) return found.replaceChildren();
    loaded ??= load().catch(error => { loaded = null; throw error; }); // the next letter tries again
    const pagefind = await loaded;
    await new Promise(resolve => setTimeout(resolve, 150));
    if (words !== input.value.trim()) return; // more was typed meanwhile
    const results = await holdingMost(pagefind, words);
    const sections = await Promise.all(results.slice(0, 24).map(result => result.data()));
    if (words !== input.value.trim()) return;
    const wanted = [...wordsOf(words.toLowerCase())];
    const inHeading = ({ meta }) => { // how many of the words
      const heading = together(meta.title).toLowerCase();
      return wanted.filter(word => heading.includes(word)).length;
    };
    sections.sort((one, other) => inHeading(other) - inHeading(one));
    found.replaceChildren(...sections.slice(0, 8).map(linkTo));
    if (!sections.length) found.textContent = found.closest("[data-nothing]").dataset.nothing;
  });

  dialog.querySelector("form").addEventListener("submit", event => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
});
