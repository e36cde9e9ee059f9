// The tree of boxes that a flame graph draws: from the program's first functions inwards, or from those that
// allocated outwards. It is built once for each direction; what boxes hold is summed up anew for each picture.

class Tree {
  constructor(trace, inverted) {
    this.trace = trace;
    this.inverted = inverted;
    // Node 0 is all there is. A node comes after its parent.
    this.parent = [-1];
    this.box = [trace.box("all", 0, "all")];
    this.depth = [0];
    /** Bits of the ways in which frames of this box were found. */
    this.found = [0];
    this.#numbers = new Map();
    this.leaf = Int32Array.from(trace.sites, (site) => this.#insert(site));
    this.#link();
  }

  #numbers;

  get size() {
    return this.parent.length;
  }

  /**
   * Boxes of a site from the root on, each with where in it the stack went on.
   * What is not code has boxes of its own: processes where there are several, why a stack has no root, and the sum of
   * sites that had no room on the page.
   */
  path(site) {
    const { trace } = this;
    if (site.merged > 0) return [{ box: trace.box("other", 0, "other"), frame: null }];
    const code = [];
    const frames = trace.framesOf(site);
    const leftOut = trace.leftOut.get(site.index);
    for (const [at, frame] of [...frames, null].entries()) {
      if (leftOut?.after === at) code.push({ box: trace.box(leftOut.name, 0, "marker"), frame: null });
      for (const level of [...(frame?.levels ?? [])].reverse()) code.push({ ...level, frame });
    }
    if (site.end !== 0) code.push({ box: trace.box(trace.endMarker(site), 0, "marker"), frame: null });
    if (!this.inverted) code.reverse();
    if (code.length === 0) code.push({ box: trace.box("[unknown]", 0, "marker"), frame: null });
    if (!trace.hasSeveralProcesses) return code;
    return [{ box: trace.box(trace.processName(site.process), 0, "process"), frame: null }, ...code];
  }

  #insert(site) {
    let node = 0;
    for (const { box, frame } of this.path(site)) {
      const key = node * 0x1000000 + box;
      let child = this.#numbers.get(key);
      if (child === undefined) {
        child = this.parent.length;
        this.#numbers.set(key, child);
        this.parent.push(node);
        this.box.push(box);
        this.depth.push(this.depth[node] + 1);
        this.found.push(0);
      }
      if (frame) this.found[child] |= 1 << frame.foundBy;
      node = child;
    }
    return node;
  }

  /** Children as lists. */
  #link() {
    this.firstChild = new Int32Array(this.size).fill(-1);
    this.nextSibling = new Int32Array(this.size).fill(-1);
    for (let node = this.size - 1; node > 0; node -= 1) {
      this.nextSibling[node] = this.firstChild[this.parent[node]];
      this.firstChild[this.parent[node]] = node;
    }
  }

  /** Sums of what the sites below each node have; of growth, only of those that grew. */
  sum(values, selected) {
    const totals = new Float64Array(this.size);
    for (let site = 0; site < values.length; site += 1) {
      if (selected[site] && values[site] > 0) totals[this.leaf[site]] += values[site];
    }
    for (let node = this.size - 1; node > 0; node -= 1) totals[this.parent[node]] += totals[node];
    return totals;
  }

  /** By node: whether a box matches; and by site, whether any of its boxes does. */
  search(matches) {
    const { boxes, modules } = this.trace;
    const found = boxes.map(
      ({ name, module, files }) => matches(name) || matches(modules[module].path) || [...files].some(matches),
    );
    const nodes = Uint8Array.from(this.box, (box) => (found[box] ? 1 : 0));
    const within = Uint8Array.from(nodes);
    for (let node = 1; node < this.size; node += 1) within[node] |= within[this.parent[node]];
    return { nodes, sites: Uint8Array.from(this.leaf, (leaf) => within[leaf]) };
  }

  /** Whether a node is another or below it. */
  isWithin(node, above) {
    let at = node;
    while (this.depth[at] > this.depth[above]) at = this.parent[at];
    return at === above;
  }

  /** Children that have something, the largest first. */
  children(node, totals) {
    const children = [];
    for (let child = this.firstChild[node]; child >= 0; child = this.nextSibling[child]) {
      if (totals[child] > 0) children.push(child);
    }
    return children.sort((a, b) => totals[b] - totals[a] || a - b);
  }

  /** Sites with something below a node. */
  sitesBelow(node, values, selected) {
    const { sites } = this.trace;
    return sites.filter(
      ({ index }) => selected[index] && values[index] > 0 && this.isWithin(this.leaf[index], node),
    );
  }
}
