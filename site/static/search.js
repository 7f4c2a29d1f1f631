// Searches as one types. Pagefind's script and index are loaded with the first letter.
// In the index, each Chinese character is a word (see site/search.py).
// In a Chinese index, a name is cut at its underscores, too.
const chinese = document.documentElement.lang.startsWith("zh");
const apart = text => (chinese ? text.replaceAll("_", " ") : text)
  .replace(/(?<=\p{Script=Han})(?=\p{Script=Han})/gu, " ");
const together = text => text.replaceAll("\u200b", "") // Pagefind's marks in a name
  .replace(/(?<=\p{Script=Han}) (?=\p{Script=Han})/gu, "");

const segmenter = new Intl.Segmenter("zh", { granularity: "word" }); // knows English words, too
const wordsOf = text => { // 不 belongs to the next word: 不通过 is not 通过
  const words = [...segmenter.segment(text)].filter(part => part.isWordLike).map(part => part.segment);
  return new Set(words.map((word, number) => (words[number - 1] === "不" ? "不" : "") + word));
};
// What the forms of a word have in common: clip, clips, clipped, clipping.
const stem = word =>
  word.length > 4 ? word.replace(/(?<=.{3})(ing|(?<!e)ed|es|s|e)$/, "").replace(/([bgmnpt])\1$/, "$1") : word;

// Words that say nothing of what is looked for.
const SAYS_NOTHING = new Set(`a about after again all am an and any are as at be been before but by can cannot
could did do does doesn for from get give given had has have how i if in into is isn it its just like look
looking make me my myself need no not of off on one only or our out pytorch right should so some something
start still such sure t take than that the their them then there these they this through to too torch up us
use used using very vs want was way we well what when where which while who why will with without work works
would you your
一 一个 一些 不 不要 两个 个 中 为什么 之后 之前 也 了 什么 从 会 但 但是 几个 出 到 办 又 可以 吗 呢 哪个 哪些 在 如何 它 对 就
已经 应该 很 怎么 怎么样 怎么办 怎样 想 想要 我 我的 或 或者 把 时 时候 是 是不是 有 有没有 来 没 没有 然后 用 的 的话 着 自己 自己的
被 要 要不要 一直 总是 老是 该 请问 还是 原因 问题 这 这个 那 都 里 里面 需要 几 第 意思 例子`.split(/\s+/));

// Words that people use for one another.
const ALIKE = `example sample
multi distributed processes ddp gpus
hang hangs stuck deadlock time-out timeout
freeze frozen
network model
layer module
op operator operation
slow slower longer faster speed performance
implement write define create
rename renamed names
memory ram vram oom
equilibrium implicit solver
meta maml
share shared tie tied
random discrete
derive derivation formula
print log see inspect show
apple silicon mac mps
nan inf overflow
loss objective
decrease decreasing down falls
replace swap swapped
backprop backpropagation backward
differ different wrong mismatch other
update move train learn
second double twice higher
half float16 bfloat16 fp16 bf16 amp
embedding lookup vocabulary
install setup
ship publish package distribute wheel whl
多卡 分布式 进程 ddp
卡住 挂起 死锁
固定 冻结
网络 模型
层 模块
显存 内存
词向量 embedding 词表
算子 运算 核函数 内核
排查 调试 查找 来源
参数 权重
更新 训练
慢 开销 加速
精度 位数
半精度 float16 bfloat16 fp16 bf16
实现 编写 写
转 导出
跨卡 进程
求导 导数 导 梯度
样本 逐样本
耗时 时间 计时
grad gradient 梯度
gradcheck grad_check
ste straight 直通
hessian 黑塞 海森
qat quantization 量化
对比 contrastive
反向传播 backward
前向传播 forward
变化 更新
注意力 attention
省 节省 不存放
二次 第二次 两次 second 二阶
叶子 leaf
原地 inplace in-place
卡 gpu 进程
微分 求导 导数
meta fake
转置 transpose`.split("\n").map(group => group.split(" "));
const alikeOf = word => {
  const form = stem(word), same = other => stem(other) === form;
  return ALIKE.filter(group => group.some(same)).flat().filter(other => !same(other));
};

// What is asked for: {word, alike: what may stand for it}.
const askedFor = text => {
  const asInTheIndex = text.toLowerCase().replaceAll("c++", "cpp").replaceAll("all-", "all_"); // "all" says nothing
  const words = [...wordsOf(asInTheIndex)];
  const some = words.filter(word => !SAYS_NOTHING.has(word));
  return (some.length ? some : words).map(word => ({ word, alike: alikeOf(word) }));
};

// The results that hold a word; a Chinese one with its characters in this order.
const holding = async (pagefind, word) => {
  const { results } = await pagefind.search(apart(word));
  if (!/\p{Script=Han}/u.test(word)) return results;
  const inOrder = await pagefind.search(`"${apart(word)}"`);
  const ids = new Set(inOrder.results.map(result => result.id));
  return results.filter(result => ids.has(result.id));
};

// What holds the words best, or most of them: a learner's words are rarely all the course's own.
// A word weighs the more, the fewer sections hold it: `weight` is set here.
const SECTIONS = 800; // about as many are in the index of an edition
const FOR_ANOTHER = 0.6; // what a word counts that stands for the one that was asked for
const holdingMost = async (pagefind, asked) => {
  const found = new Map();
  for (const one of asked) {
    const scores = new Map(), words = [one.word, ...one.alike];
    const results = await Promise.all(words.map(word => holding(pagefind, word)));
    for (const [place, some] of results.entries()) {
      for (const result of some) {
        const score = result.score * (place ? FOR_ANOTHER : 1);
        if (score > (scores.get(result.id)?.score ?? 0)) scores.set(result.id, { ...result, score });
      }
    }
    one.weight = Math.log(1 + SECTIONS / (1 + scores.size));
    for (const result of scores.values()) {
      const { score, weight } = found.get(result.id) ?? { score: 0, weight: 0 };
      found.set(result.id, { ...result, score: score + result.score, weight: weight + one.weight });
    }
  }
  return [...found.values()]
    .map(result => ({ ...result, rank: Math.log(result.score * result.weight ** 2) }))
    .sort((one, other) => other.rank - one.rank);
};

// A section as it is shown: what its words are, without the heading, from the sentence on that
// holds the first of the words; null if it holds none.
const LITERALLY = 4; // what it counts that a heading holds all that was typed
const TOGETHER = 0.5; // that two words stand in a heading as they were typed: "graph break"
const NAMED = 6; // that a name of the section is just what was typed
const DEEPER = 1; // what stands beside the way through a chapter comes after it
const WHOLE = 2; // a chapter as a whole stands behind the section that answers
const OTHER_NAMES = 0.5; // a word of what else people call a section, where one of the heading is 1
const section = ({ url, meta, content, rank }, asked, typed) => {
  const title = together(meta.title);
  const whole = together(content);
  const called = together(meta.called ?? ""); // what people type who look for it
  const all = whole.startsWith(title) ? whole.slice(title.length).replace(/^[.\s]+/, "") : whole;
  const text = called && all.includes(called) ? all.slice(0, all.lastIndexOf(called)) : all;
  const [prose] = text.split("⁂"); // code stands behind it
  const stems = asked.flatMap(one => [one.word, ...one.alike]).map(stem);
  const places = stems.map(part => text.toLowerCase().indexOf(part)).filter(at => at >= 0);
  const within = (names, share) => {
    const all = wordsOf(names);
    const isWhole = word => all.has(word) || /\p{Script=Han}/u.test(word);
    return word => !names.includes(stem(word)) ? 0 : isWhole(word) ? share : share / 2;
  };
  const inTitle = within(title.toLowerCase(), 1), inCalled = within(called.toLowerCase(), OTHER_NAMES);
  const inNames = word => Math.max(inTitle(word), inCalled(word));
  const inHeading = asked.map(({ word, alike, weight }) =>
    weight * Math.max(inNames(word), ...alike.map(other => FOR_ANOTHER * inNames(other))));
  const sought = asked.reduce((sum, one) => sum + one.weight, 0);
  const named = name => { // which share of it was typed, times which share of what was typed is in it
    const says = new Set([...wordsOf(name.toLowerCase())].filter(word => !SAYS_NOTHING.has(word)).map(stem));
    const both = asked.filter(({ word }) => says.has(stem(word)));
    return both.length / (says.size || 1) * both.reduce((sum, one) => sum + one.weight, 0) / sought;
  };
  const inPairs = asked.slice(1).filter(({ word }, place) =>
    title.toLowerCase().includes(`${asked[place].word} ${stem(word)}`)).length;
  const heading = inHeading.reduce((sum, one) => sum + one, 0) + TOGETHER * inPairs
    + NAMED * Math.max(...[title, ...called.split(/[,，]/)].map(named))
    + LITERALLY * title.toLowerCase().includes(typed);
  if (!places.length && !heading) return null;
  const inProse = places.filter(place => place < prose.length);
  const at = inProse.length ? Math.min(...inProse) : 0;
  const sentence = Math.max(...[". ", "? ", "。", "？", "："].map(end => {
    const last = prose.lastIndexOf(end, at - 1);
    return last < 0 ? 0 : last + end.length;
  }));
  const start = at - sentence < 120 ? sentence : prose.lastIndexOf(" ", at - 40) + 1;
  const parts = [...segmenter.segment(prose.slice(start, start + 320))].map(part => part.segment);
  let excerpt = "";
  while (parts.length && excerpt.length < 200) excerpt += parts.shift();
  const page = together(meta.page);
  const behind = WHOLE * (title === page) + DEEPER * /^(Deeper:|选读：)/.test(title);
  return { url, title, page, rank: rank + heading - behind, excerpt, stems };
};

const marked = (text, stems) => {
  const long = stems.filter(part => part.length > 1); // one character is in too many words
  if (!long.length) return [text];
  const wanted = long.map(part => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
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
    found.ariaBusy = asked ? "true" : "false"; // while what stands there is of other words
    if (!asked) return found.replaceChildren();
    loaded ??= load().catch(error => { loaded = null; throw error; }); // the next letter tries again
    const pagefind = await loaded;
    await new Promise(resolve => setTimeout(resolve, 150));
    if (asked !== input.value.trim()) return; // more was typed meanwhile
    const words = askedFor(asked);
    const results = await holdingMost(pagefind, words);
    const data = await Promise.all(results.slice(0, 24).map(async one =>
      ({ ...await one.data(), rank: one.rank })));
    if (asked !== input.value.trim()) return;
    const arrived = data.filter(one => one.meta); // each section is a file of its own
    const sections = arrived.map(one => section(one, words, asked.toLowerCase())).filter(Boolean);
    sections.sort((one, other) => other.rank - one.rank);
    found.ariaBusy = "false";
    found.replaceChildren(...sections.slice(0, 8).map(linkTo));
    if (!sections.length) found.textContent = found.closest("[data-nothing]").dataset.nothing;
  });

  dialog.addEventListener("keydown", event => { // among the field and what was found
    if (event.key === "Escape") dialog.close(); // the theme's own hears it in the field alone
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!way) return;
    const all = [input, ...found.querySelectorAll("a")];
    all[all.indexOf(document.activeElement) + way]?.focus();
    event.preventDefault();
  });

  dialog.querySelector("form").addEventListener("submit", event => {
    event.preventDefault();
    found.querySelector("a")?.click();
  });
});
