// The flame graph: boxes of a tree, as wide as what they hold, on a canvas that draws only what can be seen.
//
// A canvas has no elements that a screen reader could read, so the box with the focus is described by one, and the
// table of sites says the same in words.

const ROW_HEIGHT = 19;
/** Boxes below this width are not drawn one by one; what they are together is hatched. */
const MIN_WIDTH = 1;
const MIN_LABEL_WIDTH = 26;
const LABEL_MARGIN = 5;
/** Characters of a name that are worth drawing, and that are tried. */
const MIN_LABEL = 3;
const MAX_LABEL = 512;
/** The most rows that a print shows, and their width: that of a sheet of paper. */
const MAX_PRINTED_ROWS = 120;
const PRINTED_WIDTH = 860;

/** A name in full, without its arguments, and without the namespaces and types that it is in. */
function shortForms(name) {
  const bare = name.replace(/(.)\([^]*\)( const)?$/, "$1").replace(/operator$/, "operator()");
  let [depth, start, last] = [0, 0, 0];
  for (let at = 0; at < bare.length; at += 1) {
    if ("<([{".includes(bare[at])) depth += 1;
    else if (">)]}".includes(bare[at])) depth -= 1;
    else if (depth === 0 && bare.startsWith("::", at)) [last, start] = [start, at + 2];
  }
  // A closure's own name says nothing.
  const tail = bare.slice(bare[start] === "{" ? last : start);
  return [name, bare, tail || bare];
}

class FlameGraph {
  /**
   * `on` has what is called with a node: `describe` (for the panel), `label` (in one line), `amount`, `zoomed`; and
   * besides `lowerEdge`, which says where the panel begins.
   */
  constructor(host, on) {
    this.host = host;
    this.on = on;
    this.spacer = host.querySelector(".spacer");
    this.canvas = host.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.items = [...host.querySelectorAll("[role=treeitem]")];
    this.zoom = 0;
    this.focus = 0;
    this.hover = -1;
    this.rows = [];
    this.labels = new Map();
    this.#listen();
  }

  /** Shows a tree. `colour` says how a node is painted; `matches`, by node, what a search found, or null. */
  show(tree, totals, { colour, matches }) {
    if (this.tree !== tree) [this.zoom, this.focus] = [0, 0];
    Object.assign(this, { tree, totals, colour, matches, hover: -1 });
    this.children = new Map();
    while (this.zoom !== 0 && !(totals[this.zoom] > 0)) this.zoom = tree.parent[this.zoom];
    while (this.focus !== 0 && !(totals[this.focus] > 0)) this.focus = tree.parent[this.focus];
    this.resize();
    this.#announce();
    this.on.zoomed(this.zoom);
  }

  /** Lays out anew for the width that there is. */
  resize() {
    if (!this.tree || this.host.clientWidth === 0) return;
    this.#readStyle();
    this.#layOut(this.host.clientWidth);
    this.spacer.style.height = `${Math.max(1, this.rows.length) * ROW_HEIGHT}px`;
    this.draw();
  }

  /** All drawn boxes, for those who want to know: node, name, row, left edge, width. */
  boxes() {
    return this.rows.flatMap((row, depth) =>
      row
        .filter(({ node }) => node >= 0)
        .map(({ node, x, width }) => ({ node, name: this.#name(node), row: depth, x, width })),
    );
  }

  /** Where a box is, in pixels of the page; null if it is not drawn. */
  placeOf(node) {
    const depth = this.#rowOf(node);
    const box = this.rows[depth]?.find((other) => other.node === node);
    if (!box) return null;
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: left + box.x + box.width / 2, y: top + (depth + 0.5) * ROW_HEIGHT - this.host.scrollTop };
  }

  #name(node) {
    return this.tree.trace.boxes[this.tree.box[node]].name;
  }

  #rowOf(node) {
    return this.tree.depth[node];
  }

  #childrenOf(node) {
    let children = this.children.get(node);
    if (!children) {
      children = this.tree.children(node, this.totals);
      this.children.set(node, children);
    }
    return children;
  }

  #layOut(width) {
    this.rows = [];
    for (let node = this.zoom; node >= 0; node = this.tree.parent[node]) {
      this.rows.unshift([{ node, x: 0, width }]);
    }
    if (!(this.totals[this.zoom] > 0)) this.rows = [];
    let row = this.rows.at(-1) ?? [];
    while (row.length > 0) {
      row = row.flatMap((box) => this.#placeChildren(box));
      if (row.length > 0) this.rows.push(row);
    }
  }

  #placeChildren({ node, x, width }) {
    if (node < 0) return [];
    const scale = width / this.totals[node];
    const children = this.#childrenOf(node);
    const places = [];
    let left = x;
    for (const [at, child] of children.entries()) {
      const childWidth = this.totals[child] * scale;
      if (childWidth < MIN_WIDTH) {
        // The largest come first, so that all others are too narrow as well.
        const rest = children.slice(at).reduce((sum, other) => sum + this.totals[other], 0) * scale;
        const count = children.length - at;
        if (rest >= MIN_WIDTH) places.push({ node: -1, parent: node, count, x: left, width: rest });
        break;
      }
      places.push({ node: child, x: left, width: childWidth });
      left += childWidth;
    }
    return places;
  }

  #readStyle() {
    const style = getComputedStyle(this.host);
    this.style = { font: `12px ${style.getPropertyValue("--sans")}` };
    for (const name of ["ink", "dim", "surface", "match", "match-ink", "focus", "hatch", "line"]) {
      this.style[name] = style.getPropertyValue(`--${name}`).trim();
    }
    this.paints = new Map();
    this.labels.clear();
  }

  /** A colour of the style, by its name. */
  #paint(name) {
    let paint = this.paints.get(name);
    if (!paint) {
      paint = getComputedStyle(this.host).getPropertyValue(`--${name}`).trim();
      this.paints.set(name, paint);
    }
    return paint;
  }

  /** Paints the rows that can be seen. */
  draw() {
    if (!this.tree || !this.style) return;
    const height = Math.min(this.host.clientHeight, this.rows.length * ROW_HEIGHT);
    this.#paintRows(this.host.scrollTop, this.host.clientWidth, height, window.devicePixelRatio || 1);
    this.#drawFrame(this.hover, this.style.ink, 1);
    if (this.host.matches(":focus-visible")) this.#drawFrame(this.focus, this.style.focus, 3);
  }

  /** Paints for paper: all rows, in light colours, as wide as a sheet. */
  #print() {
    if (!this.tree) return;
    document.documentElement.classList.add("printing");
    this.#readStyle();
    this.#layOut(PRINTED_WIDTH);
    this.#paintRows(0, PRINTED_WIDTH, Math.min(this.rows.length, MAX_PRINTED_ROWS) * ROW_HEIGHT, 3);
  }

  #paintRows(top, width, height, density) {
    const { context, canvas } = this;
    canvas.width = Math.round(width * density);
    canvas.height = Math.max(1, Math.round(height * density));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    context.setTransform(density, 0, 0, density, 0, 0);
    context.font = this.style.font;
    context.textBaseline = "middle";
    const last = Math.min(this.rows.length - 1, Math.floor((top + height) / ROW_HEIGHT));
    for (let row = Math.floor(top / ROW_HEIGHT); row <= last; row += 1) {
      for (const box of this.rows[row]) this.#drawBox(box, row * ROW_HEIGHT - top);
    }
  }

  #drawBox(box, y) {
    const { context, style } = this;
    const left = Math.round(box.x);
    const width = Math.max(0.75, Math.round(box.x + box.width) - left - 1);
    const height = ROW_HEIGHT - 1;
    if (box.node < 0) {
      this.#hatch(left, y, width, height);
      return;
    }
    const isMatch = this.matches !== null && this.matches[box.node] === 1;
    const isAbove = this.tree.depth[box.node] < this.tree.depth[this.zoom];
    context.globalAlpha = isAbove || (this.matches !== null && !isMatch) ? 0.5 : 1;
    context.fillStyle = isMatch ? style.match : this.#paint(this.colour(box.node));
    context.fillRect(left, y, width, height);
    const kind = this.tree.trace.boxes[this.tree.box[box.node]].kind;
    if (kind === "marker" || kind === "other") this.#hatch(left, y, width, height);
    if (kind === "inlined") {
      context.fillStyle = style.line;
      context.fillRect(left, y, width, 2);
    }
    if (width >= MIN_LABEL_WIDTH) {
      context.globalAlpha = isAbove ? 0.8 : 1;
      context.fillStyle = isMatch ? style["match-ink"] : style.ink;
      this.#drawLabel(box.node, left + LABEL_MARGIN, y + height / 2 + 0.5, width - 2 * LABEL_MARGIN);
    }
    context.globalAlpha = 1;
  }

  /** A name, and where there is room what the box holds, unless that is all of its caller's. */
  #drawLabel(node, left, y, room) {
    const { context, tree, totals } = this;
    const name = this.#fit(this.#name(node), room);
    context.fillText(name, left, y);
    if (node !== this.zoom && totals[node] === totals[tree.parent[node]]) return;
    const held = this.on.amount(node);
    const width = this.#measure(held);
    if (this.#measure(name) + width + 3 * LABEL_MARGIN > room) return;
    context.globalAlpha *= 0.75;
    context.fillText(held, left + room - width, y);
  }

  /** What is not a function: lines from corner to corner. */
  #hatch(left, y, width, height) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(left, y, width, height);
    context.clip();
    context.strokeStyle = this.style.hatch;
    context.lineWidth = 1;
    context.beginPath();
    for (let x = left - height; x < left + width; x += 6) {
      context.moveTo(x, y + height);
      context.lineTo(x + height, y);
    }
    context.stroke();
    context.restore();
  }

  #drawFrame(node, colour, thickness) {
    if (node < 0) return;
    const depth = this.#rowOf(node);
    const box = this.rows[depth]?.find((other) => other.node === node);
    if (!box) return;
    const { context } = this;
    const inset = thickness / 2;
    context.lineWidth = thickness;
    context.strokeStyle = colour;
    const left = Math.round(box.x);
    const width = Math.max(thickness, Math.round(box.x + box.width) - left - 1);
    const top = depth * ROW_HEIGHT - this.host.scrollTop;
    context.strokeRect(left + inset, top + inset, width - thickness, ROW_HEIGHT - 1 - thickness);
  }

  /** As much of a name as there is room for: without arguments, without what it is in, without its end. */
  #fit(name, room) {
    const forms = shortForms(name);
    const fitting = forms.find((form) => this.#measure(form) <= room);
    if (fitting !== undefined) return fitting;
    const characters = [...forms.at(-1)].slice(0, MAX_LABEL);
    const each = this.#measure(characters.join("")) / Math.max(1, characters.length);
    let length = Math.min(characters.length, Math.ceil(room / each) + 1);
    while (length > 0 && this.#measure(`${characters.slice(0, length).join("")}…`) > room) length -= 1;
    return length >= MIN_LABEL ? `${characters.slice(0, length).join("")}…` : "";
  }

  #measure(text) {
    let width = this.labels.get(text);
    if (width === undefined) {
      width = this.context.measureText(text).width;
      if (this.labels.size > 20000) this.labels.clear();
      this.labels.set(text, width);
    }
    return width;
  }

  #boxAt(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - top + this.host.scrollTop) / ROW_HEIGHT)] ?? [];
    const x = event.clientX - left;
    return row.find((box) => x >= box.x && x < box.x + box.width) ?? null;
  }

  #listen() {
    const { canvas, host } = this;
    canvas.addEventListener("pointermove", (event) => this.#point(this.#boxAt(event)));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("click", (event) => {
      const box = this.#boxAt(event);
      if (box && box.node >= 0) this.zoomTo(box.node);
      else if (box) this.zoomTo(box.parent);
    });
    host.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || !this.#press(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    host.addEventListener("focus", () => this.#refocus());
    host.addEventListener("blur", () => this.draw());
    host.addEventListener("scroll", () => this.draw());
    const redraw = () => this.resize();
    // In the next frame: a new height here is a new size there.
    new ResizeObserver(() => requestAnimationFrame(redraw)).observe(host);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    window.addEventListener("beforeprint", () => this.#print());
    window.addEventListener("afterprint", () => {
      document.documentElement.classList.remove("printing");
      this.resize();
    });
  }

  #point(box) {
    const node = box ? box.node : -1;
    if (node === this.hover && node >= 0) return;
    this.hover = node;
    if (box && node < 0) this.on.describe(-1, box);
    else this.on.describe(node >= 0 ? node : this.focus, null);
    this.draw();
  }

  /** What a key does. Returns whether it does anything. */
  #press(key) {
    const { tree, focus } = this;
    const row = this.rows[this.#rowOf(focus)] ?? [];
    const drawn = row.filter(({ node }) => node >= 0);
    const at = drawn.findIndex(({ node }) => node === focus);
    const move = {
      ArrowUp: () => tree.parent[focus],
      ArrowDown: () => this.#drawnChild(focus),
      ArrowLeft: () => drawn[at - 1]?.node ?? -1,
      ArrowRight: () => drawn[at + 1]?.node ?? -1,
      Home: () => 0,
      End: () => this.#deepest(focus),
      n: () => this.#nextMatch(1),
      N: () => this.#nextMatch(-1),
    }[key];
    if (move) {
      this.focusOn(move());
      return true;
    }
    if (key === "Enter" || key === " ") this.zoomTo(focus);
    else if (key === "Escape" || key === "Backspace") return this.zoomOut();
    else return false;
    return true;
  }

  /** The largest caller or callee that is drawn; -1 if none is. */
  #drawnChild(node) {
    const below = this.rows[this.#rowOf(node) + 1] ?? [];
    return below.find((box) => box.node >= 0 && this.tree.parent[box.node] === node)?.node ?? -1;
  }

  /** The end of the way along the largest boxes. */
  #deepest(node) {
    let at = node;
    for (let child = this.#drawnChild(at); child >= 0; child = this.#drawnChild(at)) at = child;
    return at;
  }

  #nextMatch(step) {
    if (!this.matches) return -1;
    const drawn = this.boxes().map(({ node }) => node);
    const from = drawn.indexOf(this.focus);
    for (let away = 1; away <= drawn.length; away += 1) {
      const node = drawn[(from + step * away + drawn.length * 2) % drawn.length];
      if (this.matches[node]) return node;
    }
    return -1;
  }

  focusFirstMatch() {
    if (this.matches) this.focusOn(this.boxes().find(({ node }) => this.matches[node])?.node ?? -1);
  }

  /** Moves the focus to a box, which is then in sight. */
  focusOn(node) {
    if (node < 0) return;
    this.focus = node;
    this.hover = -1;
    const top = this.#rowOf(node) * ROW_HEIGHT;
    if (top < this.host.scrollTop) this.host.scrollTop = top;
    const bottom = top + ROW_HEIGHT - this.host.clientHeight;
    if (bottom > this.host.scrollTop) this.host.scrollTop = bottom;
    this.#refocus();
    // Nor is it behind the panel, which stays at the window's lower edge.
    const hidden = (this.placeOf(this.focus)?.y ?? 0) + ROW_HEIGHT - this.on.lowerEdge();
    if (hidden > 0) window.scrollBy(0, hidden);
  }

  /** A box of what is zoomed away is not drawn: then the focus is on what is zoomed into. */
  #refocus() {
    if (!this.tree) return;
    if (!this.placeOf(this.focus)) this.focus = this.zoom;
    this.#announce();
    this.draw();
  }

  /** Lets the box take the whole width. */
  zoomTo(node) {
    this.zoom = node;
    this.focus = node;
    this.hover = -1;
    this.resize();
    this.focusOn(node);
    this.on.zoomed(node);
  }

  /** One step back. Returns whether there was one. */
  zoomOut() {
    if (this.zoom === 0) return false;
    const from = this.zoom;
    // A box that is all of its caller looks the same: the step is to where something changes.
    let to = this.tree.parent[from];
    while (to > 0 && this.totals[to] === this.totals[from]) to = this.tree.parent[to];
    this.zoomTo(to);
    this.focusOn(from);
    return true;
  }

  /** Tells what has the focus: to people by the panel, to screen readers by an element. */
  #announce() {
    const [next, last] = this.items;
    const { tree, focus } = this;
    next.setAttribute("aria-label", this.on.label(focus));
    next.setAttribute("aria-level", String(tree.depth[focus] + 1));
    next.setAttribute("aria-expanded", String(this.#drawnChild(focus) >= 0));
    next.setAttribute("aria-selected", "true");
    last.setAttribute("aria-selected", "false");
    this.host.setAttribute("aria-activedescendant", next.id);
    // A reader says the same element only once.
    this.items.reverse();
    this.on.describe(focus, null);
  }
}
