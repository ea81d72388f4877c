// Nodes over time, from what nodes and jobs have done (dask_hpc_widgets.live.timeline). No build step, no import.
const PERIOD_MS = 500;
const LEFT = 90;
const STATES = ["", "draining", "lost"];

function fresh() {
  return { have: 0, jobs: [], nodes: [], order: [], row: [], spans: [], open: [], first: null, now: 0, heard: 0, asked: 0, updates: 0 };
}

function take(state, event) {
  if (event[0] === "job") {
    state.jobs.push({ id: event[1], name: event[2], letter: event[3], color: event[4], state: "", since: 0, nodes: 0 });
  } else if (event[0] === "node") {
    state.nodes.push(event[1]);
    state.open.push(null);
    // node2 stands above node10
    state.order = state.nodes.map((_, i) => i);
    state.order.sort((a, b) => state.nodes[a].localeCompare(state.nodes[b], "en", { numeric: true }));
    state.order.forEach((node, place) => { state.row[node] = place; });
  } else {
    const [t, job, what, ...nodes] = event;
    if (state.first === null) state.first = t;
    if (typeof what === "string") {
      const one = state.jobs[job];
      if (one.state !== what) one.since = t;
      one.state = what;
      one.nodes = nodes[0];
      return;
    }
    for (const node of nodes) {
      const before = state.open[node];
      if (before) before.end = t;
      state.open[node] = what === 3 ? null : { node, job, state: what, start: t, end: null };
      if (state.open[node]) state.spans.push(state.open[node]);
    }
  }
}

function hear(state, message, model) {
  if (message.since > state.have) {
    // news was lost while the page was away: ask once in a while, the kernel answers when it is free
    if (Date.now() - state.asked > 2000) {
      state.asked = Date.now();
      model.send({ ask: "all" });
    }
  } else {
    if (message.since === 0 && message.events.length) Object.assign(state, { ...fresh(), updates: state.updates });
    for (const event of message.events.slice(Math.max(0, state.have - message.since))) take(state, event);
    state.have = message.since + message.events.length;
  }
  state.now = message.now;
  state.heard = Date.now();
  state.updates += 1;
}

function holder(state, span) {
  return span.job < 0 ? "no job" : `${state.jobs[span.job].letter} ${state.jobs[span.job].name}`;
}

function seconds(s) {
  return s < 120 ? `${s.toFixed(0)} s` : s < 7200 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`;
}

function draw(state, canvas) {
  const width = canvas.clientWidth || 600;
  const count = Math.max(1, state.nodes.length);
  const row = Math.max(1, Math.min(18, Math.floor(360 / count)));
  const height = row * count + 18;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, width, height);
  const first = state.first ?? state.now;
  const span = Math.max(10, state.now - first);
  const x = (t) => LEFT + ((width - LEFT) * (t - first)) / span;
  pen.font = "bold 11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (const one of state.spans) {
    const from = x(one.start), wide = Math.max(1, x(one.end ?? state.now) - from), top = state.row[one.node] * row;
    pen.fillStyle = one.job < 0 || one.state === 2 ? "#ffffff" : state.jobs[one.job].color;
    pen.fillRect(from, top, wide, Math.max(1, row - 1));
    if (row < 8) continue;
    pen.strokeStyle = one.state ? "#000000" : "#d5d9de";
    pen.setLineDash(one.state ? [4, 3] : []);
    pen.strokeRect(from + 0.5, top + 0.5, Math.max(0, wide - 1), row - 2);
    const text = one.state === 2 ? "lost" : one.job < 0 ? "" : state.jobs[one.job].letter;
    if (text && wide > 9 * text.length + 4) {
      pen.lineWidth = 3;
      pen.setLineDash([]);
      pen.strokeStyle = "#ffffff";
      pen.strokeText(text, from + 3, top + row / 2);
      pen.lineWidth = 1;
      pen.fillStyle = "#000000";
      pen.fillText(text, from + 3, top + row / 2);
    }
  }
  pen.setLineDash([]);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = "#1c1f23";
  if (row >= 11) state.order.forEach((node, i) => pen.fillText(state.nodes[node].slice(0, 14), 2, i * row + row / 2));
  pen.fillText(`${seconds(span)} ago`, LEFT, height - 8);
  pen.textAlign = "right";
  pen.fillText("now", width - 2, height - 8);
  pen.textAlign = "left";
  return { row, at: (px) => first + ((px - LEFT) * span) / (width - LEFT) };
}

function told(state) {
  const running = state.jobs.filter((one) => one.nodes > 0);
  const waiting = state.jobs.filter((one) => one.state === "pending");
  const list = (jobs, tell) => jobs.slice(0, 8).map(tell).join(", ") + (jobs.length > 8 ? `, ${jobs.length - 8} more` : "");
  const runs = running.length ? `At work: ${list(running, (one) => `${one.letter} ${one.name} on ${one.nodes}`)}.` : "No job is at work.";
  const waits = waiting.length
    ? ` Waiting: ${list(waiting, (one) => `${one.letter} ${one.name} for ${seconds(state.now - one.since)}`)}.` : "";
  return runs + waits;
}

function initialize({ model }) {
  const state = fresh();
  const first = model.get("first");
  hear(state, { since: 0, ...first }, model);
  const views = new Set();
  model.on("msg:custom", (message) => {
    hear(state, message, model);
    views.forEach((show) => show());
  });
  model.daskHpc = { state, views };
}

function render({ model, el }) {
  if (!model.daskHpc) initialize({ model });
  const { state, views } = model.daskHpc;
  const figure = document.createElement("div");
  figure.className = "dask-hpc-live";
  figure.setAttribute("role", "group");
  figure.setAttribute("aria-label", "Timeline");
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  const jobs = document.createElement("p");
  const said = document.createElement("p");
  said.setAttribute("role", "status");
  figure.append(canvas, jobs, said);
  el.append(figure);
  let drawn = null, hover = "";
  const age = () => {
    const late = Date.now() - state.heard;
    const text = late > 3 * PERIOD_MS + 500 ? `Nothing new for ${seconds(late / 1000)}.` : hover || "White is idle.";
    if (said.textContent !== text) said.textContent = text;
  };
  const show = () => {
    drawn = draw(state, canvas);
    figure.dataset.updates = state.updates;
    figure.dataset.now = state.now;
    jobs.textContent = told(state);
    canvas.setAttribute("aria-label", `Who has which of ${state.nodes.length} nodes over time. ${told(state)}`);
    age();
  };
  canvas.addEventListener("mousemove", (event) => {
    const node = state.order[Math.floor(event.offsetY / drawn.row)], t = drawn.at(event.offsetX);
    const span = state.spans.findLast((one) => one.node === node && one.start <= t && t <= (one.end ?? state.now));
    const until = span && span.end !== null ? `for ${seconds(span.end - span.start)}` : "until now";
    hover = span ? `Node ${state.nodes[node]}: ${holder(state, span)} ${STATES[span.state]} from ${seconds(state.now - span.start)} ago ${until}.` : "";
    age();
  });
  canvas.addEventListener("mouseleave", () => { hover = ""; age(); });
  views.add(show);
  const timer = setInterval(age, PERIOD_MS);
  const sized = new ResizeObserver(() => show());
  sized.observe(figure);
  show();
  return () => { views.delete(show); clearInterval(timer); sized.disconnect(); };
}

export default { initialize, render };
