// A text to be copied, without anything from elsewhere (dask_hpc_widgets.live.code).
function lines(text) {
  return Math.max(3, text.split("\n").length);
}

// The clipboard of a page that is not secure (http on another host) is that of the selection.
async function copied(area) {
  try {
    await navigator.clipboard.writeText(area.value);
    return true;
  } catch {
    area.select();
    return document.execCommand("copy");
  }
}

function initialize({ model }) {
  model.daskHpcCode = model.get("first").code;
  model.on("msg:custom", (message) => { model.daskHpcCode = message.code; });
}

function render({ model, el }) {
  if (model.daskHpcCode === undefined) initialize({ model });
  const area = made("textarea", { readonly: "", spellcheck: "false", "aria-label": "Code", "data-lm-suppress-shortcuts": "true" });
  const copy = made("button", { type: "button" }, "Copy"), said = made("span", { role: "status" });
  const show = (text) => {
    area.value = text;
    area.rows = lines(text);
    write(said, "");
  };
  copy.addEventListener("click", async () => {
    write(said, (await copied(area)) ? "Copied." : "Not copied: press Ctrl+C (Cmd+C) while the text is selected.");
  });
  el.append(made("div", { class: "dask-hpc-code" }, area, made("div", {}, copy, " ", said)));
  const heard = (message) => show(message.code);
  model.on("msg:custom", heard);
  show(model.daskHpcCode);
  return () => model.off("msg:custom", heard);
}

export default { initialize, render };
