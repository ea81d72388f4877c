// What is measured in the page, below one element. Every function gives a list of plain objects.
// An object is evidence: what was found where; whether it is a fault is for the test to say.
(() => {
  const CONTROLS =
    'input:not([type=hidden]), select, textarea, button, summary, a[href], [contenteditable=true], [tabindex], ' +
    '[role=button], [role=checkbox], [role=slider], [role=tab], [role=switch], [role=textbox]';

  // Of the styles of an element what is asked again and again for all that is inside of it; while one measure is
  // taken nothing changes.
  let styles = new Map();
  function styleOf(element) {
    let found = styles.get(element);
    if (!found) {
      const { backgroundColor, backgroundImage, opacity, visibility, clipPath, clip, overflowX, overflowY } = getComputedStyle(element);
      found = { backgroundColor: colour(backgroundColor), backgroundImage, opacity, visibility, clipPath, clip, overflowX, overflowY };
      styles.set(element, found);
    }
    return found;
  }

  // ------------------------------------------------------------------ colours

  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext('2d', { willReadFrequently: true });

  // Any CSS colour as [red, green, blue, alpha], each 0 to 1.
  function colour(text) {
    const plain = text.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
    if (plain) return [plain[1] / 255, plain[2] / 255, plain[3] / 255, plain[4] === undefined ? 1 : +plain[4]];
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
  }

  // `front` laid over `back`.
  function over(front, back) {
    const alpha = front[3] + back[3] * (1 - front[3]);
    if (!alpha) return [0, 0, 0, 0];
    const mix = (i) => (front[i] * front[3] + back[i] * back[3] * (1 - front[3])) / alpha;
    return [mix(0), mix(1), mix(2), alpha];
  }

  // WCAG 2.x: relative luminance and contrast ratio.
  function luminance(rgb) {
    const linear = rgb.slice(0, 3).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  }

  function ratio(one, other) {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }

  const css = (rgba) => `rgb(${rgba.slice(0, 3).map((part) => Math.round(part * 255)).join(' ')})`;

  // What the eye gets of `pixel`, painted inside of `element`: from there outwards, each element puts its
  // background under it and fades both by its opacity. `image`: a picture is under it, whose colours are unknown.
  function composite(element, pixel) {
    let image = false;
    for (let one = element; one; one = one.parentElement) {
      const style = styleOf(one);
      // the arrow of a select is an image beside its text
      if (pixel[3] < 1 && style.backgroundImage !== 'none' && one.tagName !== 'SELECT') image = true;
      pixel = over(pixel, style.backgroundColor);
      pixel = [...pixel.slice(0, 3), pixel[3] * style.opacity];
    }
    return { rgb: over(pixel, [1, 1, 1, 1]), image };
  }

  function contrastOf(element, text, kind, style) {
    const front = colour(element instanceof SVGElement ? style.fill : style.webkitTextFillColor);
    // a pseudo-element, such as a placeholder, may fade on its own
    if (kind === 'placeholder' || kind === 'generated') front[3] *= style.opacity;
    const shown = composite(element, front);
    const behind = composite(element, [0, 0, 0, 0]);
    return {
      text: text.trim().slice(0, 60), kind, where: where(element),
      ratio: Math.round(ratio(shown.rgb, behind.rgb) * 100) / 100,
      front: css(shown.rgb), behind: css(behind.rgb), image: behind.image, size_px: parseFloat(style.fontSize),
    };
  }

  // -------------------------------------------------------------- what is seen

  // The part of a box that nothing in `base` cuts off; null when nothing is left. An element of one pixel holds
  // text for those who hear it. What is around `base` does not count: a page can be scrolled.
  let base = document.body;
  function seen(box, element, scrolled = /hidden|clip/) {
    let [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom];
    for (let one = element; one && one !== base.parentElement; one = one.parentElement) {
      const style = styleOf(one);
      if (style.visibility !== 'visible' && one === element) return null;
      if (+style.opacity === 0) return null;
      if (hiddenByClip(one, style)) return null;
      if (style.overflowX !== 'visible' || style.overflowY !== 'visible') {
        // what can be scrolled into sight counts as seen, if the caller does not say otherwise
        const outer = one.getBoundingClientRect();
        if (scrolled.test(style.overflowX))
          [left, right] = [Math.max(left, outer.left), Math.min(right, outer.right)];
        if (scrolled.test(style.overflowY))
          [top, bottom] = [Math.max(top, outer.top), Math.min(bottom, outer.bottom)];
      }
    }
    return right - left > 1 && bottom - top > 1 ? { left, top, right, bottom } : null;
  }

  // What is in sight without scrolling.
  const NOW = /hidden|clip|auto|scroll/;

  function hiddenByClip(element, style) {
    const clipped = style.clipPath.startsWith('inset(50%') || style.clip.startsWith('rect(');
    return clipped && element.offsetWidth <= 2 && element.offsetHeight <= 2;
  }

  function isSeen(element) {
    return element.getClientRects().length > 0 && seen(element.getBoundingClientRect(), element) !== null;
  }

  function where(element) {
    const name = element.className.baseVal ?? element.className;
    const classes = String(name).split(/\s+/).filter(Boolean).slice(0, 3);
    const parent = element.parentElement?.className;
    return `${element.tagName.toLowerCase()}${classes.map((one) => `.${one}`).join('')}` +
      (classes.length || !parent ? '' : ` in .${String(parent.baseVal ?? parent).split(/\s+/).slice(0, 2).join('.')}`);
  }

  const inside = (root) => [root, ...root.querySelectorAll('*')];
  const isField = (element) => element.matches('input:not([type=checkbox]):not([type=radio]), textarea, select');

  // What a field shows: its value, the chosen option, or the placeholder.
  function shownIn(field) {
    if (field.tagName === 'SELECT') return [field.selectedOptions[0]?.text ?? '', 'field'];
    return field.value ? [field.value, 'field'] : [field.placeholder ?? '', 'placeholder'];
  }

  // ----------------------------------------------------------------- measures

  // Contrast of every text that is seen, with its kind: text, generated (by CSS), field, placeholder; `disabled`
  // says that the control is.
  function contrast(root) {
    base = root;
    styles = new Map();
    const found = [];
    const add = (element, text, kind, style) => {
      const disabled = element.closest(':disabled, [aria-disabled=true]') !== null;
      if (text.trim()) found.push({ ...contrastOf(element, text, kind, style), disabled });
    };
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      const element = node.parentElement;
      if (!node.data.trim() || element.closest('style, script, select, textarea')) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      if ([...range.getClientRects()].some((box) => seen(box, element)))
        add(element, node.data, 'text', getComputedStyle(element));
    }
    for (const element of inside(root)) {
      if (!isSeen(element)) continue;
      if (isField(element)) {
        const [text, kind] = shownIn(element);
        add(element, text, kind, getComputedStyle(element, kind === 'placeholder' ? '::placeholder' : null));
      }
      for (const pseudo of ['::before', '::after']) {
        const style = getComputedStyle(element, pseudo);
        const text = style.content.match(/"([^"]*)"/)?.[1] ?? '';
        if (style.display !== 'none') add(element, text, 'generated', style);
      }
    }
    return found;
  }

  // Texts and controls as [element, text, boxes], a box for each line of a text.
  function pieces(root) {
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.data.trim() || node.parentElement.closest('style, script, select, textarea')) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const boxes = [...range.getClientRects()].map((box) => seen(box, node.parentElement, NOW)).filter(Boolean);
      if (boxes.length) found.push([node.parentElement, node.data.trim(), boxes]);
    }
    for (const one of root.querySelectorAll('input, select, textarea, button, img'))
      if (isSeen(one)) found.push([one, one.textContent || one.value || one.alt || '', [one.getBoundingClientRect()]]);
    return found;
  }

  // Headings that stay above what is scrolled beneath them.
  function sticks(element, root) {
    for (let one = element; one && one !== root; one = one.parentElement) if (getComputedStyle(one).position === 'sticky') return true;
    return false;
  }

  // Texts and controls that lie over one another, and texts squeezed into a column of a few letters.
  function crowding(root) {
    base = root;
    styles = new Map();
    const found = [];
    const all = pieces(root);
    const meet = (a, b) =>
      Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
    all.forEach(([element, text, boxes], i) => {
      const lines = new Set(boxes.map((box) => Math.round(box.top))).size;
      if (lines >= 4 && text.length / lines < 6)
        found.push({ kind: 'squeezed', where: where(element), text: text.slice(0, 60), needs: text.length, has: lines });
      for (const [other, words, others] of all.slice(i + 1)) {
        if (element.contains(other) || other.contains(element)) continue;
        if (boxes.some((a) => others.some((b) => meet(a, b))) && !sticks(element, root) && !sticks(other, root))
          found.push({ kind: 'overlap', where: `${where(element)} and ${where(other)}`,
            text: `${text.slice(0, 30)} / ${words.slice(0, 30)}`, needs: 0, has: 0 });
      }
    });
    return found;
  }

  // Elements with more inside than they have room for, elements that stick out of `root` to the sides, and crowding.
  function overflow(root) {
    base = root;
    const found = crowding(root);
    const frame = root.getBoundingClientRect();
    for (const element of inside(root)) {
      const style = getComputedStyle(element);
      if (!isSeen(element) || hiddenByClip(element, style) || element.closest('svg')?.contains(element.parentElement)) continue;
      const [text, kind] = isField(element) ? shownIn(element) : ['', 'wide'];
      const add = (kind, needs, has) =>
        found.push({ kind, where: where(element), text: (text || element.textContent).trim().slice(0, 60), needs, has });
      if (element.tagName === 'SELECT' || kind === 'placeholder') {
        const width = textWidth(element, style, text);
        if (width.needs > width.has + 0.5) add(kind, width.needs, width.has);
      } else if (style.display !== 'inline' && element.scrollWidth > element.clientWidth) {
        add(kind, element.scrollWidth, element.clientWidth);
      }
      if (/auto|scroll|hidden|clip/.test(style.overflowY) && style.display !== 'inline' && !isField(element) &&
          !element.matches('[role="region"][tabindex="0"]') && element.scrollHeight > element.clientHeight + 1)
        add('high', element.scrollHeight, element.clientHeight);
      const box = element.getBoundingClientRect();
      const leaves = (one) => one.left < frame.left - 0.5 || one.right > frame.right + 0.5;
      // what is inside of something that sticks out is not said as well
      if (element !== root && leaves(box) && !leaves(element.parentElement.getBoundingClientRect()))
        add('outside', Math.round(box.right - box.left), Math.round(frame.right - frame.left));
    }
    return found;
  }

  // Neither a select nor a placeholder says what it cuts off: the text is measured beside the room for it.
  function textWidth(field, style, text) {
    pen.font = style.font;
    const sides = ['paddingLeft', 'paddingRight'].reduce((sum, side) => sum + parseFloat(style[side]), 0);
    return { needs: pen.measureText(text).width, has: field.clientWidth - sides };
  }

  // Controls that the Tab key reaches, in the order of the document, marked with a number for `focused`.
  function stops(root) {
    if (root.contains(document.activeElement)) document.activeElement.blur();
    document.querySelectorAll('[data-stop]').forEach((one) => one.removeAttribute('data-stop'));
    const radios = new Set();
    const reached = [...root.querySelectorAll(CONTROLS)].filter((one) => {
      if (one.tabIndex < 0 || one.matches(':disabled') || !one.getClientRects().length) return false;
      if (getComputedStyle(one).visibility !== 'visible' || one.closest('[inert]')) return false;
      if (one.type !== 'radio') return true;
      const group = [...root.querySelectorAll('input[type=radio]')].filter((other) => other.name === one.name);
      return one.checked || (!group.some((other) => other.checked) && group[0] === one);
    });
    return reached.map((one, i) => {
      one.dataset.stop = i;
      return { stop: i, where: where(one), look: look(one) };
    });
  }

  // Controls that are seen, can be used, and are left out by the Tab key.
  function unreached(root) {
    base = root;
    styles = new Map();
    return [...root.querySelectorAll('input:not([type=hidden]), select, textarea, button, a[href], summary')]
      .filter((one) => isSeen(one) && !one.matches(':disabled') && one.tabIndex < 0).map(where);
  }

  // What of an element, and of what holds it closely, changes when it is focused.
  function look(element) {
    const of = (one) => {
      const style = getComputedStyle(one);
      const outline = style.outlineStyle === 'none' || !parseFloat(style.outlineWidth) ? ''
        : `${style.outlineStyle} ${style.outlineWidth} ${style.outlineColor}`;
      return { outline, shadow: style.boxShadow, border: style.borderColor + style.borderWidth + style.borderStyle,
        background: style.backgroundColor };
    };
    return { own: of(element), holder: of(element.parentElement) };
  }

  function focused() {
    const element = document.activeElement;
    return { stop: element?.dataset?.stop === undefined ? null : +element.dataset.stop, where: where(element),
      look: look(element), ring: element.matches(':focus-visible') };
  }

  // What has focus after each press of the Tab key, from now until `followed`. Marks of focus do not fade in
  // meanwhile: what they come to is there at once.
  let log = [];
  const still = document.createElement('style');
  still.textContent = '*, *::before, *::after { transition: none !important; animation: none !important; }';
  const note = (event) => { if (event.key === 'Tab') log.push(focused()); };

  function follow() {
    log = [];
    document.head.append(still);
    window.addEventListener('keyup', note, true);
  }

  function followed() {
    window.removeEventListener('keyup', note, true);
    still.remove();
    way = [...document.querySelectorAll('[data-stop]')].sort((a, b) => a.dataset.stop - b.dataset.stop);
    return log;
  }

  // Whether the Tab key goes through the controls of now in the order in which it was followed, or a part of them.
  let way = [];
  function isKnownWay(root) {
    const places = [...root.querySelectorAll('[data-stop]')].map((one) => way.indexOf(one));
    return places.every((place, i) => place > (i ? places[i - 1] : -1));
  }

  // What each control looks like when it is focused, in their order.
  function marks(root) {
    document.head.append(still);
    const found = [...root.querySelectorAll('[data-stop]')].map((one) => {
      one.focus({ preventScroll: true, focusVisible: true });
      return focused();
    });
    still.remove();
    return found;
  }

  window.daskHpcMeasures = { contrast, overflow, stops, unreached, follow, followed, isKnownWay, marks };
})();
