// What the timeline knows, made of what it is told (dask_hpc_widgets.live.events, live.timeline).
const PERIOD_MS = 500;
const STATES = ["", "draining", "lost"];

function fresh() {
  return {
    have: 0, last: 0, jobs: [], nodes: [], order: [], row: [], spans: [], open: [], marks: [], first: null, now: 0, power: [],
    heard: 0, gap: PERIOD_MS, asked: 0, updates: 0, tiles: [], lanes: [], from: 0, end: 0, stale: "",
  };
}

// Times are told as what has passed since the one before.
function passedTo(state, hundredths) {
  state.last += hundredths;
  return state.last / 100;
}

function take(state, event) {
  if (event[0] === "job") {
    state.jobs.push({ id: event[1], name: event[2], letter: event[3], color: event[4], pattern: event[5], state: "", since: 0, nodes: 0, low: 1, high: null, forecast: "", ends: null });
  } else if (event[0] === "node") {
    state.nodes.push(event[1]);
    state.open.push(null);
  } else if (event[0] === "watts") {
    const [, passed, watts, lower, upper] = event, t = passedTo(state, passed);
    state.power.push({ t, watts, lower, upper });
  } else if (event[0] === "mark") {
    const [, passed, job, action, nodes, reason] = event, t = passedTo(state, passed);
    state.marks.push({ t, job, action, nodes, reason });
  } else {
    const [passed, job, what, ...nodes] = event, t = passedTo(state, passed);
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

// Rows of nodes; node2 stands above node10.
function arrange(state) {
  if (state.order.length === state.nodes.length) return;
  const collator = new Intl.Collator("en", { numeric: true });
  state.order = state.nodes.map((_, i) => i).sort((a, b) => collator.compare(state.nodes[a], state.nodes[b]));
  state.order.forEach((node, place) => { state.row[node] = place; });
}

// What is known of jobs beside their nodes (dask_hpc_widgets.live.known).
function learn(state, rows) {
  for (const [job, low, high, forecast, ends] of rows) {
    if (state.jobs[job]) Object.assign(state.jobs[job], { low, high, forecast, ends });
  }
}

// One message of the kernel; what is new in it.
function hear(state, message, model) {
  if ("lanes" in message) {
    state.lanes = message.lanes.map((one) => ({ ...one, spans: [] }));
    Object.assign(state, { from: message.from ?? 0, end: message.end ?? 0, stale: message.stale ?? "" });
    return;
  }
  if ("lane" in message) {
    const lane = state.lanes[message.lane];
    for (const [job, start, end, ranges] of lane ? message.spans : []) {
      for (let i = 0; i < ranges.length; i += 2) {
        for (let node = ranges[i]; node < ranges[i] + ranges[i + 1]; node += 1) {
          lane.spans.push({ node, job, state: 0, start, end, predicted: true });
        }
      }
    }
    return;
  }
  if (!("since" in message)) {
    learn(state, message.known ?? []);
    return;
  }
  const now = Date.now();
  if (message.since > state.have) {
    // news was lost while the page was away: ask once in a while, the kernel answers when it is free
    if (now - state.asked > 2000) {
      state.asked = now;
      model.send({ ask: "all" });
    }
  } else {
    if (message.since === 0 && message.events.length) {
      const { updates, heard, gap } = state;
      Object.assign(state, fresh(), { updates, heard, gap });
    }
    for (const event of message.events.slice(Math.max(0, state.have - message.since))) take(state, event);
    arrange(state);
    state.have = message.since + message.events.length;
    learn(state, message.known ?? []);
  }
  // how often something comes, so that it is known when nothing does
  if (state.updates > 1 && message.now !== state.now) {
    state.gap = Math.max(PERIOD_MS, 0.7 * state.gap + 0.3 * Math.min(5000, now - state.heard));
  }
  Object.assign(state, { now: message.now, heard: now, updates: state.updates + 1, tiles: message.tiles });
}

// The rows of the picture, from above. What has happened is the same in each; what is predicted is not.
function charts(state) {
  return state.lanes.length ? state.lanes : [{ title: "", policy: "", known: false, spans: [] }];
}

function seconds(s) {
  const value = Math.abs(s);
  const [count, unit] = value < 120 ? [Math.round(value), "s"] : value < 7200 ? [value / 60, "min"] : [value / 3600, "h"];
  return `${count < 10 ? Number(count.toFixed(1)) : Math.round(count)} ${unit}`;
}

function when(state, t) {
  return t > state.now ? `in ${seconds(t - state.now)}` : `${seconds(state.now - t)} ago`;
}

function counted(count) {
  return `${count} node${Number(count) === 1 ? "" : "s"}`;
}

function called(state, job) {
  return job < 0 ? "no job" : `${state.jobs[job].letter} ${state.jobs[job].name}`;
}

// The interval that is stated of the end of a job that runs.
function toldEnd(state, job) {
  const ends = job < 0 || !state.jobs[job].nodes ? null : state.jobs[job].ends;
  if (!ends) return "";
  const [low, expected, high] = ends.map((t) => seconds(Math.max(0, t - state.now)));
  return ends[2] - state.now < 0.5 ? "is about to end" : `ends in ${expected} (${low} to ${high})`;
}

function active(state) {
  return state.jobs.filter((one) => one.nodes > 0 || one.state === "pending");
}

function toldPower({ watts, lower, upper }) {
  const least = lower ? `at least ${lower} W` : "", most = upper === null ? "" : `at most ${upper} W`;
  const bounds = [least, most].filter(Boolean).join(" and ") || "no bounds";
  return `${watts === null ? "the draw is not known" : `${watts} W are drawn`}, ${bounds}`;
}

// The picture in words: who works, who waits, what is drawn.
function told(state) {
  const running = state.jobs.filter((one) => one.nodes > 0);
  const waiting = state.jobs.filter((one) => one.state === "pending");
  const list = (jobs, tell) => jobs.slice(0, 5).map(tell).join(", ") + (jobs.length > 5 ? `, ${jobs.length - 5} more` : "");
  const runs = running.length ? `At work: ${list(running, (one) => `${one.letter} ${one.name} on ${one.nodes}`)}.` : "No job is at work.";
  const waits = waiting.length
    ? ` Waiting: ${list(waiting, (one) => `${one.letter} ${one.name} for ${seconds(state.now - one.since)}`)}.` : "";
  const power = state.power.length ? ` Now ${toldPower(state.power.at(-1))}.` : "";
  return runs + waits + power;
}

function toldLanes(state) {
  if (!state.lanes.length) return "";
  const lanes = state.lanes.filter((one) => one.known).map((one) => {
    const end = one.spans.reduce((most, span) => Math.max(most, span.end), state.from);
    const ends = one === state.lanes[0] ? state.jobs.map((_, job) => [toldEnd(state, job), job]).filter(([told]) => told) : [];
    const each = ends.slice(0, 8).map(([told, job]) => `, ${called(state, job)} ${told}`).join("");
    const who = one.left ? `${one.left} of the jobs of then never end, the others end` : "all jobs of then end";
    return `${one.title} (${one.policy}) ${who} ${when(state, end)}${each}`;
  });
  const stale = state.stale ? ` Stale: ${state.stale}.` : "";
  return ` Predicted ${when(state, state.from)}: ${lanes.join("; ")}.${stale}`;
}
