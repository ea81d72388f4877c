// Nodes over time, from what nodes and jobs have done (dask_hpc_widgets.live.timeline). No build step, no import:
// elements.js, waits.js, timeline_model.js, timeline_draw.js and timeline_jobs.js stand before it.
const RANGES = [["all", "All"], ["60", "1 min"], ["600", "10 min"], ["3600", "1 h"], ["", "Moved"]];
const HELP = "White is idle. Drag to move, Shift and drag to choose a range, double-click for all; click a job to ask why.";

function initialize({ model }) {
  const state = fresh();
  const first = model.get("first");
  state.patterns = first.patterns;
  hear(state, { since: 0, ...first }, model);
  first.future.forEach((message) => hear(state, message, model));
  const views = new Set();
  const answers = new Set(), here = new Set();
  model.on("msg:custom", (message) => {
    if ("why" in message) {
      answers.forEach((show) => show(message));
      return;
    }
    if ("here" in message) {
      here.forEach((heard) => heard(message));
      return;
    }
    hear(state, message, model);
    views.forEach((show) => show());
  });
  model.daskHpc = { state, views, answers, here };
}

// Buttons and keys that move the window of time.
function toolbar(state, view, changed) {
  const set = (from, width) => {
    view.from = from;
    view.width = width;
    changed();
  };
  const all = () => range(state, { from: null, width: null });
  const bounded = (wide) => Math.max(1, Math.min(wide, Math.max(3600, 4 * (all().to - all().from))));
  // a tenth of the window always shows what is known: nobody is lost in the white
  const move = (from, wide) => set(Math.max(all().from - 0.9 * wide, Math.min(from, all().to - 0.1 * wide)), wide);
  const zoom = (factor, middle) => {
    const seen = range(state, view), center = middle ?? (seen.from <= state.now && state.now <= seen.to ? state.now : (seen.from + seen.to) / 2);
    const wide = bounded((seen.to - seen.from) * factor);
    move(center - (center - seen.from) * (wide / (seen.to - seen.from)), wide);
  };
  const pan = (part) => {
    const seen = range(state, view), wide = seen.to - seen.from;
    move(seen.from + part * wide, wide);
  };
  const acts = {
    "Zoom in": ["+", () => zoom(0.5)], "Zoom out": ["-", () => zoom(2)],
    Earlier: ["ArrowLeft", () => pan(-0.25)], Later: ["ArrowRight", () => pan(0.25)], "Show all": ["Home", () => set(null, null)],
  };
  const bar = made("div", { role: "toolbar", "aria-label": "Part of the time that is shown" });
  for (const [name, [key, act]] of Object.entries(acts)) {
    const button = made("button", { type: "button", title: `${name} (${key})` }, name);
    button.addEventListener("click", act);
    bar.append(button);
  }
  const choose = made("select", { title: "How much time is shown, up to now and what is predicted" },
    ...RANGES.map(([value, text]) => made("option", { value }, text)));
  choose.addEventListener("change", () => set(null, choose.value === "all" ? null : Number(choose.value)));
  bar.append(made("label", {}, "Range ", choose));
  bar.addEventListener("keydown", (event) => {
    const act = event.target === choose ? null : Object.values(acts).find(([key]) => key === event.key);
    if (!act) return;
    act[1]();
    event.preventDefault();
  });
  return { bar, zoom, move, set, follow: () => { choose.value = view.width === null ? "all" : view.from === null ? String(view.width) : ""; } };
}

// The mouse: what is under it is told, a click asks, dragging moves, with Shift it chooses.
function mouse(state, canvas, bar, ask, drawn, hovered) {
  let begin = null;
  canvas.addEventListener("pointerdown", (event) => {
    begin = { x: event.offsetX, seen: drawn().seen, moved: false, t: drawn().at(event.offsetX) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    hovered(toldAt(state, under(state, drawn(), event.offsetX, event.offsetY)));
    if (!begin || (!begin.moved && Math.abs(event.offsetX - begin.x) < 5)) return;
    begin.moved = true;
    if (event.shiftKey) {
      hovered(`From ${when(state, begin.t)} to ${when(state, drawn().at(event.offsetX))}: let go to show that.`);
      return;
    }
    const wide = begin.seen.to - begin.seen.from;
    bar.move(begin.seen.from - ((event.offsetX - begin.x) * wide) / (canvas.clientWidth - LEFT), wide);
  });
  canvas.addEventListener("pointerup", (event) => {
    const done = begin;
    begin = null;
    if (!done) return;
    const t = drawn().at(event.offsetX);
    if (done.moved && event.shiftKey) {
      bar.set(Math.min(done.t, t), Math.max(1, Math.abs(t - done.t)));
    } else if (!done.moved) {
      const { span, mark } = under(state, drawn(), event.offsetX, event.offsetY);
      const job = span ? span.job : mark ? mark.job : -1;
      if (job >= 0) ask(state.jobs[job].id);
    }
  });
  canvas.addEventListener("dblclick", () => bar.set(null, null));
  canvas.addEventListener("wheel", (event) => {
    // without Ctrl it scrolls the page
    if (!event.ctrlKey) return;
    event.preventDefault();
    bar.zoom(event.deltaY > 0 ? 1.25 : 0.8, drawn().at(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerleave", () => hovered(""));
}

function render({ model, el }) {
  if (!model.daskHpc) initialize({ model });
  const { state, views, answers, here } = model.daskHpc;
  const view = { from: null, width: null };
  // keys that are for the timeline are not JupyterLab's
  const figure = made("div", { class: "dask-hpc-live", role: "group", "aria-label": "Timeline", "data-lm-suppress-shortcuts": "true" });
  const tiles = made("dl");
  const canvas = made("canvas", { role: "img" });
  const jobs = made("p"), said = made("p", { role: "status" });
  let drawn = null, hover = "", waits = "", clicks = null;
  const bar = toolbar(state, view, () => show());
  const why = question(state, model);
  figure.append(tiles, canvas, bar.bar, jobs, said, why.box);
  el.append(figure);
  const age = () => {
    const late = Date.now() - state.heard, old = late > 3 * state.gap + 500;
    figure.classList.toggle("old", old);
    if (old) clicks?.over();
    write(said, old ? `Nothing new for ${seconds(late / 1000)}: what is shown may be over.` : hover || waits || HELP);
  };
  const show = () => {
    const began = performance.now();
    drawn = draw(state, canvas, view);
    bar.follow();
    why.follow();
    if (tiles.dataset.told !== JSON.stringify(state.tiles)) {
      tiles.dataset.told = JSON.stringify(state.tiles);
      tiles.replaceChildren(...state.tiles.map(([label, value, more]) =>
        made("div", {}, made("dt", {}, label), made("dd", {}, made("strong", {}, value), ...(more ? [` ${more}`] : [])))));
    }
    write(jobs, told(state) + toldLanes(state));
    canvas.setAttribute("aria-label", `Who has which of ${counted(state.nodes.length)} over time. ${told(state)}${toldLanes(state)}`);
    age();
    Object.assign(figure.dataset, {
      updates: state.updates, now: state.now, from: drawn.seen.from, to: drawn.seen.to, lanes: state.lanes.length, marks: state.marks.length, ends: drawn.ends,
      took: (performance.now() - began).toFixed(1),
    });
  };
  mouse(state, canvas, bar, why.about, () => drawn, (text) => { hover = text; age(); });
  clicks = waiting(model, figure, (text) => { waits = text; age(); });
  here.add(clicks.heard);
  views.add(show);
  answers.add(why.show);
  const timer = setInterval(age, PERIOD_MS);
  const sized = new ResizeObserver(() => show());
  sized.observe(figure);
  show();
  return () => { views.delete(show); answers.delete(why.show); here.delete(clicks.heard); clicks.end(); clearInterval(timer); sized.disconnect(); };
}

export default { initialize, render };
