// Searches as one types. Pagefind's script and index are loaded with the first letter.
// In the index, each Chinese character is a word (see site/search.py).
const apart = text => text.replace(/(?<=\p{Script=Han})(?=\p{Script=Han})/gu, " ");
const together = text =>
  text.replace(/(?<=\p{Script=Han}(?:<\/?mark>)*) (?=(?:<\/?mark>)*\p{Script=Han})/gu, "")
    .replaceAll("</mark><mark>", "");

// What holds some of the words, where nothing holds all: somebody has pasted a whole message.
const holdingSome = async (pagefind, words) => {
  const found = new Map();
  for (const word of new Set(words.split(/\s+/))) {
    for (const result of (await pagefind.search(word)).results) {
      const score = (found.get(result.id)?.score ?? 0) + result.score;
      found.set(result.id, { ...result, score });
    }
  }
  return [...found.values()].sort((one, other) => other.score - one.score);
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
    if (words !== input.value.trim()) return; // more was typed meanwhile
    const answer = await pagefind.debouncedSearch(apart(words), {}, 150);
    if (!answer) return;
    let results = answer.results;
    if (apart(words) !== words) { // what holds the characters in this order, if anything does
      const exact = await pagefind.search(`"${apart(words)}"`);
      const ids = new Set(exact.results.map(result => result.id));
      if (ids.size) results = results.filter(result => ids.has(result.id));
    }
    if (!results.length) results = await holdingSome(pagefind, apart(words));
    const sections = await Promise.all(results.slice(0, 8).map(result => result.data()));
    if (words !== input.value.trim()) return;
    found.replaceChildren(...sections.map(linkTo));
    if (!sections.length) found.textContent = found.closest("[data-nothing]").dataset.nothing;
  });

  dialog.querySelector("form").addEventListener("submit", event => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
});
