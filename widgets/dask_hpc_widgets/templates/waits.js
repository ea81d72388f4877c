// Says of a click that the kernel has not taken it yet, as a cell runs: it takes everything in order, and answers
// what is asked after the click once that is through.
const WAITS_MS = 1000;
const WAITS = "waits for the cell that runs";

function waiting(model, figure, say) {
  // answers come to all views of a panel
  const of = Math.random().toString(36).slice(2);
  let asked = 0, taken = 0, marked = [];
  const watch = (event) => {
    const target = event.target, panel = figure.closest(".dask-hpc-panel");
    // where nothing is heard, no kernel may be there; who closes the panel is seen to be through
    if (figure.classList.contains("old") || target.closest(".dask-hpc-close")) return;
    // the timeline answers for itself; what sorts and copies needs no kernel
    if (!panel?.contains(target) || figure.contains(target)) return;
    const button = target.closest("button");
    if (event.type === "click" ? !button || target.closest(".dask-hpc-tables, .dask-hpc-code") : button) return;
    const one = button ?? target.closest("label") ?? target.closest(".jupyter-widgets") ?? target;
    const mine = (asked += 1);
    model.send({ ask: "here", n: mine, of });
    setTimeout(() => {
      if (taken >= mine) return;
      one.classList.add("dask-hpc-waits");
      marked.push([mine, one]);
      say(`What was clicked ${WAITS}.`);
    }, WAITS_MS);
  };
  const heard = (message) => {
    if (message.of !== of) return;
    taken = Math.max(taken, message.here);
    for (const [mine, one] of marked) if (mine <= taken) one.classList.remove("dask-hpc-waits");
    marked = marked.filter(([mine]) => mine > taken);
    if (!marked.length) say("");
  };
  const over = () => {
    if (!marked.length) return;
    marked.forEach(([, one]) => one.classList.remove("dask-hpc-waits"));
    marked = [];
    taken = asked;
    say("");
  };
  const kinds = ["click", "change"];
  kinds.forEach((kind) => document.addEventListener(kind, watch));
  return { heard, over, end: () => kinds.forEach((kind) => document.removeEventListener(kind, watch)) };
}
