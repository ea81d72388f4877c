// The tables of the panel (dask_hpc_widgets.live.tables): rows by number, changed as the kernel tells.
// tables_cells.js stands before it.
const STATES = [["", "All states"], ["running", "Running"], ["pending", "Pending"], ["ended", "Ended"]];
const ORDER = new Intl.Collator("en", { numeric: true });

// What is known, beside what is drawn: a page may have several drawings of it.
function hear(state, message, model) {
  const now = Date.now();
  if (message.all) state.views = {};
  else if (message.n !== state.number + 1) {
    // news was lost while the page was away: ask once in a while, the kernel answers when it is free
    if (now - state.asked > 2000) {
      state.asked = now;
      model.send({ ask: "all" });
    }
    return;
  }
  Object.assign(state, { number: message.n, now: message.now, open: message.open });
  for (const [name, news] of Object.entries(message.views)) {
    if (news.new) {
      const [title, caption, columns, kind, search] = news.head;
      state.views[name] = { title, caption, columns, kind, search, note: "", order: [], rows: new Map(), version: (state.versions += 1) };
    }
    const view = state.views[name];
    if (!view) continue;
    view.changed = (state.changes += 1);
    if ("note" in news) view.note = news.note;
    if (news.order) {
      view.order = [...news.order];
      const kept = new Set(news.order);
      for (const number of view.rows.keys()) if (!kept.has(number)) view.rows.delete(number);
    }
    if (news.moved) {
      const [gone, came] = news.moved;
      // the last first: those before stay where they are; a page may hear a message twice, so it stays as it is
      for (const [place, count] of [...gone].reverse()) {
        for (const number of view.order.splice(place, count)) view.rows.delete(number);
      }
      for (const [place, first, count] of came) view.order.splice(place, 0, ...Array.from({ length: count }, (_, i) => first + i));
    }
    // numbers are told, and come here, in order; 0 is the cell of the row before
    let before = [];
    for (const [number, told] of Object.entries(news.rows ?? {})) {
      const cells = told.map((cell, i) => (cell === 0 ? before[i] : cell));
      view.rows.set(Number(number), { cells, dirty: state.changes });
      before = cells;
    }
    for (const [number, changed] of Object.entries(news.cells ?? {})) {
      const row = view.rows.get(Number(number));
      if (!row) continue;
      const cells = row.cells.slice();
      for (const [i, cell] of Object.entries(changed)) {
        if (Array.isArray(cell)) cells[i] = cell;
        else {
          const [kind, named, color, , steps] = cells[i][0];
          cells[i] = [[kind, named, color, cell.end, steps.concat(cell.steps)]];
        }
      }
      view.rows.set(Number(number), { cells, dirty: state.changes });
    }
  }
}

function initialize({ model }) {
  const state = { number: null, asked: 0, now: 0, open: [], views: {}, versions: 0, changes: 0, updates: 0 };
  const shown = new Set();
  hear(state, model.get("first"), model);
  model.on("msg:custom", (message) => {
    hear(state, message, model);
    state.updates += 1;
    shown.forEach((show) => show());
  });
  model.daskHpcTables = { state, shown };
}

// What `parent` holds, in this order.
function place(parent, boxes) {
  if (boxes.length !== parent.children.length || boxes.some((box, i) => parent.children[i] !== box)) parent.replaceChildren(...boxes);
}

// Box of one table: heading, tools, rows, note; `among`: it stands among others in the box of the first one of a view.
function drawing(view, state, model, among) {
  const box = made(among ? "div" : "section", among ? {} : { "aria-label": view.title });
  const note = made("p", { class: "soft" });
  const rows = new Map();
  let sort = null, down = false, wanted = { text: "", state: "" }, placed = "";
  const isTable = view.kind === "table", isText = view.kind === "text";
  const body = isTable ? made("tbody") : isText ? made("div", { class: "text" }) : made("ul", { class: `nodes ${view.kind}`, "aria-label": "Nodes" });
  if (!among) box.append(made("h3", {}, view.title));
  const heads = view.columns.map(([label, isNumber], i) => {
    const button = made("button", { type: "button", title: `Sort by ${label}` }, label);
    const head = made("th", { scope: "col", ...(isNumber ? { class: "number" } : {}) }, button);
    button.addEventListener("click", () => {
      // up, down, and as the cluster has them
      [sort, down] = sort !== i ? [i, false] : down ? [null, false] : [i, true];
      heads.forEach((other, k) => (k === sort ? other.setAttribute("aria-sort", down ? "descending" : "ascending") : other.removeAttribute("aria-sort")));
      follow(state);
    });
    return head;
  });
  const count = made("span", { role: "status" });
  if (view.search) {
    const text = made("input", { type: "search", maxlength: "100" });
    const choose = made("select", {}, ...STATES.map(([value, label]) => made("option", { value }, label)));
    let timer = 0;
    const look = () => {
      wanted = { text: text.value, state: choose.value };
      follow(state);
      clearTimeout(timer);
      // the kernel knows more jobs than there are rows
      timer = setTimeout(() => model.send({ ask: "search", ...wanted }), 300);
    };
    text.addEventListener("input", look);
    choose.addEventListener("change", look);
    box.append(made("div", { class: "tools" }, made("label", {}, "Search ", text), made("label", {}, "State ", choose), count));
  }
  const scroll = made("div", among ? {} : { class: `scroll of-${view.kind}`, tabindex: "0", role: "region", "aria-label": `${view.title}, rows` });
  const others = made("div");
  const rowsBox = isTable ? made("table", { "aria-label": view.caption }, made("thead", {}, made("tr", {}, ...heads)), body) : body;
  // what is not shown is said below the last row, and what tiles add up to above the first
  scroll.append(...(isTable || isText ? [rowsBox, note] : [note, rowsBox]), others);
  box.append(scroll);

  function row(number, one) {
    let found = rows.get(number);
    if (!found) {
      const element = made(isTable ? "tr" : isText ? "div" : "li");
      if (isTable) {
        element.append(...view.columns.map(([label, isNumber]) => made("td", { "data-label": label, ...(isNumber ? { class: "number" } : {}) })));
      }
      found = { element, moving: [], parts: one.cells.map(() => []), cells: [] };
      rows.set(number, found);
    }
    if (found.dirty === one.dirty) return found;
    if (isTable) {
      one.cells.forEach((cell, i) => {
        if (found.cells[i] === cell) return;
        found.parts[i] = [];
        fill(found.element.children[i], cell, found.parts[i]);
      });
      found.moving = found.parts.flat();
    } else {
      found.moving = [];
      if (isText) fill(found.element, one.cells[0], found.moving);
      else tile(found.element, one.cells, view.kind, found.moving);
    }
    Object.assign(found, { cells: one.cells, dirty: one.dirty });
    return found;
  }

  function fits(one) {
    const texts = one.cells.map((cell) => rank(cell, state.now)).join(" ").toLowerCase();
    const is = one.cells[1]?.[0]?.[1];
    // as in dask_hpc_widgets.views.jobs
    const kind = ["completed", "failed", "cancelled"].includes(is) ? "ended" : is === "pending" ? "pending" : "running";
    const there = !wanted.state || kind === wanted.state;
    return there && wanted.text.toLowerCase().split(/\s+/).every((word) => texts.includes(word));
  }

  function axis() {
    if (view.axis?.changed !== view.changed) {
      const sizes = [...view.rows.values()].flatMap((one) => one.cells.flat().filter((piece) => piece[0] === "steps").flatMap((piece) => stepped(piece[4])));
      view.axis = { changed: view.changed, from: Math.min(...sizes.map(([t]) => t)), most: Math.max(1, ...sizes.map(([, nodes]) => nodes)) };
    }
    return view.axis;
  }

  function follow() {
    let numbers = view.order.filter((number) => view.rows.has(number));
    if (view.search) numbers = numbers.filter((number) => fits(view.rows.get(number)));
    if (sort !== null) {
      const key = new Map(numbers.map((number) => [number, rank(view.rows.get(number).cells[sort], state.now)]));
      const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : ORDER.compare(String(a), String(b)));
      numbers.sort((a, b) => (down ? -1 : 1) * compare(key.get(a), key.get(b)));
    }
    const shown = numbers.map((number) => row(number, view.rows.get(number)));
    const places = numbers.join();
    if (places !== placed) {
      placed = places;
      body.replaceChildren(...shown.map((one) => one.element));
      for (const number of rows.keys()) if (!view.rows.has(number)) rows.delete(number);
    }
    const bounds = isTable && view.rows.size ? axis() : null;
    for (const one of shown) for (const move of one.moving) move(state.now, bounds);
    rowsBox.hidden = view.rows.size === 0;
    write(note, view.note);
    note.hidden = !view.note;
    if (view.search) write(count, wanted.text || wanted.state ? `${shown.length} found` : "");
  }
  return { box, others, follow, version: view.version };
}

function render({ model, el }) {
  if (!model.daskHpcTables) initialize({ model });
  const { state, shown } = model.daskHpcTables;
  // keys that are for the tables are not JupyterLab's
  const figure = made("div", { class: "dask-hpc dask-hpc-tables", "data-lm-suppress-shortcuts": "true" });
  const grid = made("div", { class: "views" });
  figure.append(grid);
  el.append(figure);
  const drawn = new Map();
  const show = () => {
    const began = performance.now();
    const names = state.open.filter((name) => state.views[name]);
    for (const name of names) {
      if (drawn.get(name)?.version !== state.views[name].version) drawn.set(name, drawing(state.views[name], state, model, name.includes("/")));
    }
    for (const name of drawn.keys()) if (!names.includes(name)) drawn.delete(name);
    const firsts = names.filter((name) => !name.includes("/"));
    place(grid, firsts.map((name) => drawn.get(name).box));
    grid.classList.toggle("many", firsts.length > 6);
    grid.classList.toggle("few", firsts.length < 4);
    for (const name of firsts) place(drawn.get(name).others, names.filter((other) => other.startsWith(`${name}/`)).map((other) => drawn.get(other).box));
    names.forEach((name) => drawn.get(name).follow());
    Object.assign(figure.dataset, { updates: state.updates, now: state.now, took: (performance.now() - began).toFixed(1) });
  };
  shown.add(show);
  show();
  return () => shown.delete(show);
}

export default { initialize, render };
