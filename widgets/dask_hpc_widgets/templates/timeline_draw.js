// The timeline on a canvas: the same past in every chart, what is predicted beyond it, one axis below.
const LEFT = 90;
const HEAD = 16;
const MARKS = 12;
const FOOT = 18;
const POWER = 52;
const ROOM = 340;

// What part of time is seen; `view` null: all of it, and it follows the clock.
function range(state, view) {
  const first = state.first ?? state.now;
  const ahead_s = state.lanes.length ? state.end - state.now : 0;
  // ends may come later than they are predicted, but what is hardly known takes not all of the room
  const most = state.now + 1.5 * Math.max(0, ahead_s), ends = ahead_s > 0 ? intervals(state).map(({ ends }) => Math.min(ends[2], most)) : [];
  const last = Math.max(state.now, state.now + ahead_s, first + 10, ...ends);
  if (view.width === null) return { from: first, to: last };
  if (view.from !== null) return { from: view.from, to: view.from + view.width };
  // followed: the present stays where it is
  const ahead = state.lanes.length ? view.width / 2 : 0;
  return { from: state.now + ahead - view.width, to: state.now + ahead };
}

// Jobs that run and are predicted to end, as things are.
function intervals(state) {
  return state.jobs.filter((one) => one.nodes > 0 && one.ends);
}

function hatch(pen) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ink = tile.getContext("2d");
  ink.strokeStyle = "rgba(255, 255, 255, 0.75)";
  ink.lineWidth = 2;
  ink.beginPath();
  for (const shift of [-6, 0, 6]) {
    ink.moveTo(shift, 6);
    ink.lineTo(shift + 6, 0);
  }
  ink.stroke();
  return pen.createPattern(tile, "repeat");
}

const fills = new Map();

// The colour of a job under its strokes, as in every other picture: colour never stands alone. Where rows have
// no room for letters the strokes are close, so that they are seen on a few rows.
function fill(state, pen, { color, pattern }, row) {
  const size = row < 8 ? 4 : 8, key = `${color} ${pattern} ${size}`;
  if (!fills.has(key)) {
    const tile = made("canvas", { width: size, height: size }), ink = tile.getContext("2d");
    ink.scale(size / 8, size / 8);
    ink.fillStyle = color;
    ink.fillRect(0, 0, 8, 8);
    ink.strokeStyle = "rgba(0, 0, 0, 0.45)";
    ink.lineWidth = 1.6;
    ink.stroke(new Path2D(state.patterns[pattern]));
    fills.set(key, pen.createPattern(tile, "repeat"));
  }
  return fills.get(key);
}

function draw(state, canvas, view) {
  const width = canvas.clientWidth || 600;
  const lanes = charts(state);
  const count = Math.max(1, state.nodes.length);
  const exact = Math.min(18, ROOM / (count * lanes.length));
  const row = exact > 2 ? Math.floor(exact) : exact;
  const tall = Math.ceil(row * count), head = state.lanes.length ? HEAD : 0;
  const power = state.power.length ? POWER : 0, powerTop = MARKS + lanes.length * (tall + head);
  const height = powerTop + power + FOOT;
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = "#ffffff";
  pen.fillRect(0, 0, width, height);
  pen.textBaseline = "middle";
  const seen = range(state, view), span = seen.to - seen.from;
  const x = (t) => LEFT + ((width - LEFT) * (t - seen.from)) / span;
  const at = (px) => seen.from + ((px - LEFT) * span) / (width - LEFT);
  const ghost = state.lanes.length ? hatch(pen) : null;
  const tops = lanes.map((_, i) => MARKS + head + i * (tall + head));

  // rows without room begin where a pixel does: else they mix to colours that no job has
  const whole = (px) => Math.round(px * scale) / scale;
  function block(one, start, end, top) {
    const from = Math.max(LEFT, x(start)), to = Math.min(width, x(end));
    if (to < LEFT || from > width || end <= start) return;
    const wide = Math.max(1, to - from), y = whole(top);
    // of several nodes on one pixel the first is shown, whatever the others do
    if (row * scale < 1 && y === whole(top - row)) return;
    const high = row > 3 ? row - 1 : Math.max(1 / scale, whole(top + row) - y);
    pen.fillStyle = one.job < 0 || one.state === 2 ? "#ffffff" : fill(state, pen, state.jobs[one.job], row);
    pen.fillRect(from, y, wide, high);
    if (one.predicted) {
      pen.fillStyle = ghost;
      pen.fillRect(from, y, wide, high);
    }
    if (row < 8) return;
    pen.strokeStyle = one.state ? "#000000" : one.predicted ? "#5a626b" : "#d5d9de";
    pen.setLineDash(one.state ? [4, 3] : one.predicted ? [2, 2] : []);
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

  lanes.forEach((lane, i) => {
    pen.font = "bold 11px system-ui, sans-serif";
    for (const one of state.spans) block(one, one.start, one.end ?? state.now, tops[i] + state.row[one.node] * row);
    // what has come meanwhile covers what was predicted of it
    for (const one of lane.spans) block(one, Math.max(one.start, state.now), one.end, tops[i] + state.row[one.node] * row);
    pen.setLineDash([]);
    pen.fillStyle = "#1c1f23";
    if (head) {
      const known = lane.known ? lane.policy : "cannot be predicted here";
      pen.fillText(`${lane.title}: ${known}${state.stale && lane.known ? ", stale" : ""}`, 2, tops[i] - head / 2);
    }
    pen.font = "11px system-ui, sans-serif";
    if (row >= 11) state.order.forEach((node, k) => pen.fillText(state.nodes[node].slice(0, 14), 2, tops[i] + k * row + row / 2));
  });

  let ends = 0;
  if (state.lanes[0]?.known) ends = drawEnds(state, pen, x, width, (node) => tops[0] + state.row[node] * row + Math.max(1, row - 1) / 2);
  if (power) drawPower(state, pen, x, powerTop, width);
  for (const mark of state.marks) {
    const px = x(mark.t);
    if (px < LEFT || px > width) continue;
    pen.fillStyle = mark.job < 0 ? "#5a626b" : state.jobs[mark.job].color;
    pen.strokeStyle = "#000000";
    pen.beginPath();
    pen.moveTo(px - 4, 1);
    pen.lineTo(px + 4, 1);
    pen.lineTo(px, MARKS - 2);
    pen.closePath();
    pen.fill();
    pen.stroke();
  }

  const now = x(state.now), bottom = height - FOOT;
  if (now >= LEFT && now <= width) {
    pen.strokeStyle = "#000000";
    pen.setLineDash([2, 3]);
    pen.beginPath();
    // titles stay readable
    for (const [top, end] of [...tops.map((one) => [one, one + tall]), [powerTop, bottom]]) {
      pen.moveTo(now, top);
      pen.lineTo(now, end);
    }
    pen.stroke();
    pen.setLineDash([]);
  }
  axis(state, pen, x, seen, width, bottom);
  return { row, at, x, seen, tops, tall, height, ends, powerTop: power ? powerTop : height };
}

// A whisker from the least to the most that is stated of each end, on the first row that the job is on at last; how
// many are seen.
function drawEnds(state, pen, x, width, middle) {
  let count = 0;
  for (const job of intervals(state)) {
    const number = state.jobs.indexOf(job), own = state.lanes[0].spans.filter((one) => one.job === number);
    const last = Math.max(...own.map((one) => one.end));
    const rows = own.filter((one) => one.end === last).map((one) => middle(one.node));
    const [low, expected, high] = job.ends.map((t) => Math.min(width, Math.max(LEFT, x(t))));
    if (!rows.length || high <= LEFT || low >= width) continue;
    const y = Math.min(...rows);
    count += 1;
    for (const [color, wide] of [["#ffffff", 4], ["#000000", 1.5]]) {
      pen.strokeStyle = color;
      pen.lineWidth = wide;
      pen.beginPath();
      for (const [from, to, at, half] of [[low, high, y, 0], [low, low, y, 3], [expected, expected, y, 5], [high, high, y, 3]]) {
        pen.moveTo(from, at - half);
        pen.lineTo(to, at + half);
      }
      pen.stroke();
    }
    pen.lineWidth = 1;
  }
  return count;
}

// What all nodes draw over time, between the bounds that held.
function drawPower(state, pen, x, top, width) {
  const most = mostDrawn(state), y = (watts) => top + POWER - 3 - ((POWER - 8) * Math.min(most, watts)) / most;
  const stroke = (color, dash, value) => {
    pen.strokeStyle = color;
    pen.setLineDash(dash);
    pen.beginPath();
    let before = null;
    state.power.forEach((one, i) => {
      const watts = value(one), from = Math.max(LEFT, x(one.t));
      const to = Math.min(width, x(state.power[i + 1]?.t ?? state.now));
      if (watts === null || watts > most || to < LEFT || from > width) {
        before = null;
        return;
      }
      if (before === null) pen.moveTo(from, y(watts));
      else pen.lineTo(from, y(watts));
      pen.lineTo(to, y(watts));
      before = watts;
    });
    pen.stroke();
  };
  stroke("#b3261e", [5, 3], (one) => one.lower || null);
  stroke("#b3261e", [5, 3], (one) => one.upper);
  stroke("#1c1f23", [], (one) => one.watts);
  pen.setLineDash([]);
  pen.fillStyle = "#1c1f23";
  pen.font = "11px system-ui, sans-serif";
  pen.fillText("power", 2, top + POWER / 2);
  pen.fillText(`${Math.round(most)} W`, 2, top + 9);
}

// The top of the lane: bounds far above all that was drawn are open.
function mostDrawn(state) {
  const drawn = Math.max(1, ...state.power.map((one) => one.watts ?? 0));
  const bounds = state.power.flatMap((one) => [one.lower ?? 0, one.upper ?? 0]);
  return Math.max(drawn, ...bounds.filter((watts) => watts <= 4 * drawn));
}

function axis(state, pen, x, seen, width, top) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const wanted = (seen.to - seen.from) / Math.max(2, (width - LEFT) / 110);
  const step = steps.find((one) => one >= wanted) ?? Math.ceil(wanted / 604800) * 604800;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = "#1c1f23";
  pen.strokeStyle = "#5a626b";
  for (let k = Math.ceil((seen.from - state.now) / step); state.now + k * step <= seen.to; k += 1) {
    const px = x(state.now + k * step);
    pen.beginPath();
    pen.moveTo(px, top);
    pen.lineTo(px, top + 4);
    pen.stroke();
    pen.textAlign = px < LEFT + 30 ? "left" : px > width - 40 ? "right" : "center";
    pen.fillText(k === 0 ? "now" : when(state, state.now + k * step), px, top + 11);
  }
  pen.textAlign = "left";
}

// What is at a point of the canvas: a decision, a stretch of a node, or nothing.
function under(state, drawn, px, py) {
  if (py < MARKS) {
    const near = state.marks.filter((one) => Math.abs(drawn.x(one.t) - px) <= 5);
    return { mark: near.at(-1) };
  }
  if (py >= drawn.powerTop && py < drawn.powerTop + POWER && px >= LEFT) {
    const t = drawn.at(px);
    return { power: t > state.now ? undefined : state.power.findLast((one) => one.t <= t), t };
  }
  const lane = drawn.tops.findIndex((top) => py >= top && py < top + drawn.tall);
  if (lane < 0 || px < LEFT) return {};
  const node = state.order[Math.floor((py - drawn.tops[lane]) / drawn.row)], t = drawn.at(px);
  const there = t > state.now ? charts(state)[lane].spans : state.spans;
  const span = there.findLast((one) => one.node === node && one.start <= t && t <= (one.end ?? state.now));
  return { span, lane, node, t };
}

function toldAt(state, { mark, span, lane, node, t, power }) {
  if (power) return `${when(state, t)}: ${toldPower(power)}.`;
  if (mark) {
    const size = mark.nodes === null ? "" : ` to ${mark.nodes}`;
    return `${when(state, mark.t)}: ${mark.action} ${called(state, mark.job)}${size}: ${mark.reason}.`;
  }
  if (node === undefined) return "";
  if (!span) return t > state.now && state.lanes.length ? `Node ${state.nodes[node]}: idle ${when(state, t)}, predicted.` : "";
  const chart = charts(state)[lane];
  if (span.predicted) {
    const interval = lane === 0 ? toldEnd(state, span.job) : "";
    return `Node ${state.nodes[node]}, ${chart.title}: ${called(state, span.job)} from ${when(state, span.start)} ` +
      `for ${seconds(span.end - span.start)}, predicted${interval && `; it ${interval}`}.`;
  }
  const until = span.end !== null ? `for ${seconds(span.end - span.start)}` : "until now";
  return `Node ${state.nodes[node]}: ${called(state, span.job)} ${STATES[span.state]} from ${seconds(state.now - span.start)} ago ${until}` +
    `${span.job >= 0 && state.jobs[span.job].forecast ? `; ${state.jobs[span.job].forecast}` : ""}.`;
}
