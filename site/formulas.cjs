// Formulas as HTML: {formulas: [[TeX, display], …], fonts} in, {html: […], css} out.

const { fonts, formulas } = JSON.parse(require("fs").readFileSync(0));
require("mathjax").init({
  loader: {
    versionWarnings: false, // liteDOM has none
    load: ["input/tex-base", "[tex]/ams", "output/chtml", "a11y/assistive-mml", "adaptors/liteDOM"],
  },
  options: { enableAssistiveMml: true },
  tex: { packages: { "[+]": ["ams"] } },
  chtml: { fontURL: fonts },
}).then(({ startup: { adaptor }, tex2chtml, chtmlStylesheet }) => {
  const html = formulas.map(([tex, display]) => adaptor.outerHTML(tex2chtml(tex, { display })));
  console.log(JSON.stringify({ html, css: adaptor.textContent(chtmlStylesheet()) }));
});
