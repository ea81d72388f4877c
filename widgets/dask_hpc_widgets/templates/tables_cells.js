// Cells of tables, from plain data (dask_hpc_widgets.views.table). Whatever users have named becomes text.
const SVG = "http://www.w3.org/2000/svg";

// As in dask_hpc_widgets.base.markup.
function roughly(s) {
  const value = Math.max(0, s);
  if (value < 60) return `${Math.floor(value / (value < 10 ? 1 : 5)) * (value < 10 ? 1 : 5)} s`;
  const [unit, name] = value >= 86400 ? [86400, "d"] : value >= 3600 ? [3600, "h"] : [60, "min"];
  const count = value / unit;
  return `${count < 10 ? Math.floor(count * 10) / 10 : Math.floor(count)} ${name}`;
}

const TIMES = { for: (t) => t, since: (t, now) => now - t, ago: (t, now) => now - t, left: (t, now) => t - now };

// What a cell is sorted and searched by: a duration, else its text.
function rank(cell, now) {
  const time = cell.find((piece) => piece[0] in TIMES && Array.isArray(piece));
  if (time) return TIMES[time[0]](time[1], now);
  const told = (piece) => (!Array.isArray(piece) ? piece : piece[0] === "bar" || piece[0] === "letter" ? "" : piece[1]);
  return cell.map(told).join("").trim();
}

// Fill `element`; what moves with time is put into `moving`, as functions of the view's time and axis.
function fill(element, cell, moving) {
  element.replaceChildren(...cell.map((piece) => {
    if (typeof piece === "string") return piece;
    const [kind, value, ...more] = piece;
    if (kind === "letter") return made("strong", { class: "letter", style: `border-bottom-color:${more[0]}` }, value);
    if (kind === "strong") return made("strong", {}, value);
    if (kind === "badge") return made("span", { class: "badge" }, value);
    if (kind === "bar") return made("span", { class: "bar", "aria-hidden": "true" }, made("span", { style: `width:${Number(value)}%` }));
    if (kind in TIMES) {
      const span = made("span");
      moving.push((now) => write(span, roughly(TIMES[kind](value, now)) + (kind === "ago" ? " ago" : "")));
      return span;
    }
    if (kind === "steps") return steps(piece, moving);
    if (kind === "alert") return made("p", { class: "alert", role: "alert" }, made("strong", {}, "Error:"), ` ${value}`);
    if (kind === "svg") {
      const box = made("span");
      // of a template of ours; the one piece that is markup
      box.innerHTML = value;
      return box;
    }
    return made("span", {}, value);
  }));
}

// Times are told as what has passed since the one before, in tenths of a second.
function stepped(flat) {
  const sizes = [];
  for (let i = 0, tenths = 0; i < flat.length; i += 2) {
    tenths += flat[i];
    sizes.push([tenths / 10, flat[i + 1]]);
  }
  return sizes;
}

function steps([, name, color, end, flat], moving) {
  const sizes = stepped(flat);
  const svg = document.createElementNS(SVG, "svg"), path = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries({ class: "steps", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img" })) svg.setAttribute(key, value);
  for (const [key, value] of Object.entries({ fill: color, stroke: "currentColor", "vector-effect": "non-scaling-stroke" })) path.setAttribute(key, value);
  svg.append(path);
  moving.push((now, axis) => {
    const x = (t) => ((100 * (t - axis.from)) / Math.max(1, now - axis.from)).toFixed(1);
    let line = `M${x(sizes[0][0])} 24`;
    for (const [t, nodes] of sizes) line += `H${x(t)}V${(24 * (1 - nodes / axis.most)).toFixed(1)}`;
    path.setAttribute("d", `${line}H${x(end ?? now)}V24Z`);
    const last = sizes.slice(-6).map(([t, nodes]) => `${nodes} node${nodes === 1 ? "" : "s"} from ${roughly(now - t)} ago`).join("; ");
    const label = `${name}: ${sizes.length > 6 ? "..., " : ""}${last}`;
    if (svg.getAttribute("aria-label") !== label) svg.setAttribute("aria-label", label);
  });
  return svg;
}

// One node: a tile, or a letter where there are many.
function tile(element, cells, kind, moving) {
  const [id, state, color, letter, holder, ...lines] = cells;
  element.className = state[0];
  element.style.borderLeftColor = color[0];
  if (kind === "heat") {
    element.title = `${id[0]}: ${[holder, ...lines].map((one) => one[0]).join(", ")}`;
    write(element, letter[0] || "-");
    return;
  }
  const rows = lines.map((line) => {
    const row = made("div");
    fill(row, line, moving);
    return row;
  });
  element.replaceChildren(made("strong", {}, id[0]), made("div", {}, ...(letter[0] ? [made("strong", {}, letter[0]), " "] : []), holder[0]), ...rows);
}
