// The job that a person has chosen: asked about, resized, cancelled. The kernel decides and answers, when it is free.
function question(state, model) {
  const choose = made("select", {});
  const ask = made("button", { type: "button" }, "What blocks it?");
  const nodes = made("input", { type: "number", min: 1, step: 1, size: 5 });
  const may = made("span");
  const resize = made("button", { type: "button", title: "Have the scheduler give it this many nodes" }, "Resize job");
  const cancel = made("button", { type: "button", title: "Asks first, and says what is lost" }, "Cancel job");
  const answer = made("div", { role: "status", class: "answer" });
  const sure = made("div", { class: "question", role: "group" });
  let waits = "", asked = null;
  sure.hidden = true;
  const send = (id, what, message, from) => {
    const one = state.jobs.find((job) => job.id === id);
    if (!one) return;
    waits = id;
    asked = from;
    choose.value = id;
    bounds();
    sure.hidden = true;
    answer.replaceChildren(made("p", {}, `${what} ${one.letter} ${one.name}. The kernel answers when it is free: after the cell that runs.`));
    model.send({ ...message, job: id });
  };
  const about = (id) => send(id, "Asked about", { ask: "why" }, ask);
  const bounds = () => {
    const one = state.jobs.find((job) => job.id === choose.value);
    if (!one) return;
    const high = one.high !== null && one.high <= state.nodes.length ? one.high : null;
    nodes.min = one.low;
    if (high === null) nodes.removeAttribute("max"); else nodes.max = high;
    write(may, high === null ? `(${one.low} or more)` : one.low === high ? `(always ${high})` : `(${one.low} to ${high})`);
    const size = String(one.nodes || one.low);
    // it follows the job until a person types another
    if (nodes.dataset.of !== one.id || nodes.value === nodes.dataset.size) nodes.value = size;
    Object.assign(nodes.dataset, { of: one.id, size });
  };
  ask.addEventListener("click", () => about(choose.value));
  choose.addEventListener("change", () => { sure.hidden = true; bounds(); });
  resize.addEventListener("click", () => {
    send(choose.value, `Asked for ${counted(nodes.value)} for`, { ask: "resize", nodes: nodes.value }, resize);
  });
  cancel.addEventListener("click", () => send(choose.value, "Asked what is lost with", { ask: "cancel" }, cancel));
  const box = made("div", { class: "question" }, made("label", {}, "Job ", choose), ask, made("label", {}, "Nodes ", nodes), may, resize, cancel);
  const follow = () => {
    const jobs = active(state).slice(0, 200), ids = jobs.map((one) => one.id).join("\n");
    box.hidden = jobs.length === 0;
    if (box.dataset.ids !== ids) {
      box.dataset.ids = ids;
      const before = choose.value;
      choose.replaceChildren(...jobs.map((one) => made("option", { value: one.id }, `${one.letter} ${one.name}`)));
      if (jobs.some((one) => one.id === before)) choose.value = before;
    }
    bounds();
  };
  // A yes is about the job and the nodes that the question named, whatever is chosen and typed meanwhile.
  const confirm = (id, what, size) => {
    const one = state.jobs.find((job) => job.id === id), name = one ? one.name : id;
    const cancels = what === "cancel";
    const keep = made("button", { type: "button" }, "Keep it");
    const yes = made("button", { type: "button" }, cancels ? `Cancel ${name} for good` : "Go ahead");
    keep.addEventListener("click", () => {
      sure.hidden = true;
      answer.replaceChildren(made("p", {}, cancels ? "Nothing was cancelled." : "Nothing was changed."));
      (cancels ? cancel : resize).focus();
    });
    yes.addEventListener("click", () => {
      if (cancels) send(id, "Asked to cancel", { ask: "cancel", agreed: true }, cancel);
      else send(id, `Asked for ${counted(size)} for`, { ask: "resize", nodes: size, agreed: true }, resize);
      choose.focus();
    });
    sure.setAttribute("aria-label", cancels ? `Cancel ${name}?` : `Resize ${name}?`);
    sure.replaceChildren(keep, yes);
    sure.hidden = false;
    // whoever has gone on meanwhile is not taken away from there
    if (sure.getRootNode().activeElement === asked) keep.focus();
  };
  const show = (message) => {
    const lines = message.text.split("\n");
    const others = [...answer.querySelectorAll("p.other")];
    if (message.why !== waits) {
      // another job was asked about meanwhile: what came of an act stands below that, the latest few lines
      if (message.came) answer.append(...lines.map((line) => made("p", { class: "other" }, line)));
      for (const old of message.came ? others.slice(0, -4) : []) old.remove();
      return;
    }
    answer.replaceChildren(...lines.map((line) => made("p", {}, line)), ...others);
    if (message.confirm) confirm(message.why, message.confirm, message.nodes);
    else if (!sure.hidden) {
      // the question that these buttons answer is not there any more
      if (sure.contains(sure.getRootNode().activeElement)) choose.focus();
      sure.hidden = true;
    }
  };
  const whole = made("div", {}, box, answer, sure);
  return { box: whole, about, follow, show };
}
