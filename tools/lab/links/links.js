// A link to a cell of another notebook lands on that cell, in JupyterLab.
//
// JupyterLab scrolls when the notebook opens. Formulas and figures above the cell are rendered after
// that and move it away. So this scrolls again until the cell stays, or the reader does something.
// Written as webpack would hand over a module, for then nothing needs to be built.

const CALM = 3_000, PATIENCE = 30_000, EVERY = 150; // ms
const NEAR = 24; // px

const settle = (app, name, id) => {
  let reader = false, calmSince = null, before = null;
  const act = () => { reader = true; };
  const events = ["wheel", "keydown", "pointerdown", "touchstart"];
  for (const event of events) addEventListener(event, act, { capture: true, passive: true });
  const begun = Date.now();
  const timer = setInterval(() => {
    const now = Date.now();
    if (reader || now - begun > PATIENCE || calmSince && now - calmSince > CALM) {
      clearInterval(timer);
      for (const event of events) removeEventListener(event, act, { capture: true });
      return;
    }
    const { content: notebook, context } = app.shell.currentWidget ?? {};
    if (context?.path.split("/").pop() !== name) return; // it is not open yet
    const index = notebook.widgets?.findIndex(cell => cell.model.id === id) ?? -1;
    if (index < 0) return;
    const cell = notebook.widgets[index].node;
    const scroller = cell.closest(".jp-WindowedPanel-outer");
    const top = scroller && cell.getBoundingClientRect().top - scroller.getBoundingClientRect().top;
    const there = scroller && Math.abs(top) < NEAR;
    // the last cells cannot come up to the top
    calmSince = there || scroller && top === before ? calmSince ?? now : null;
    before = top;
    if (there) return;
    if (cell.isConnected) cell.scrollIntoView({ block: "start" });
    else notebook.scrollToItem(index, "start");
  }, EVERY);
};

const plugin = {
  id: "extending-pytorch-links:plugin",
  autoStart: true,
  activate: app => document.addEventListener("click", ({ target }) => {
    const link = target.closest?.("a[href*='#cell-id=']");
    if (!link) return;
    const [name, id] = [link.pathname.split("/").pop(), link.hash.slice("#cell-id=".length)];
    setTimeout(() => settle(app, decodeURIComponent(name), decodeURIComponent(id)));
  }, true),
};

window._JUPYTERLAB ??= {};
window._JUPYTERLAB["extending-pytorch-links"] = {
  init: () => {},
  get: async () => () => ({ __esModule: true, default: plugin }),
};
