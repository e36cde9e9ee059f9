// The panel below the flame graph: everything about one box.

/** Places in a function that are named. */
const MAX_PLACES = 4;
/** Of boxes with more sites, places are not sought: the panel follows the pointer. */
const MAX_SITES_FOR_PLACES = 3000;

class Details {
  constructor(host, trace) {
    this.host = host;
    this.trace = trace;
  }

  /** Says everything of a node. `zoom` is what is zoomed into. */
  show(tree, view, node, zoom) {
    Object.assign(this, { tree, view, unit: view.state.unit });
    const box = this.trace.boxes[tree.box[node]];
    const sites = tree.sitesBelow(node, view.values, view.selected);
    const module = this.trace.modules[box.module];
    fill(
      this.host,
      element(
        "p",
        { class: "head" },
        element("strong", {}, foreign(box.name)),
        box.kind === "inlined" ? element("span", { class: "badge note" }, "inlined") : null,
        module.name ? [" ", foreign(module.path, "module")] : null,
      ),
      element("p", {}, this.#amounts(node, sites, zoom)),
      this.#more(node, box, sites),
    );
  }

  /** Says something of boxes that are too narrow: so many, below this node. */
  showNarrow(view, count, parent, zoom) {
    const isZoomed = view.totals[parent] === view.totals[zoom];
    const advice = isZoomed ? "the search and the table find them" : "zoom in to see them";
    const boxes = counted(count, "box", "boxes");
    fill(this.host, element("p", {}, `${boxes} too narrow to draw one by one: ${advice}.`));
  }

  /** In one line, for those who hear it. */
  label(tree, view, node) {
    const { name, module, kind } = this.trace.boxes[tree.box[node]];
    const held = view.totals[node];
    const parts = [name];
    if (kind === "inlined") parts.push("inlined");
    if (module > 0) parts.push(this.trace.modules[module].name);
    parts.push(amount(held, view.state.unit), percent(held, view.totals[0]));
    return parts.join(", ");
  }

  #amounts(node, sites, zoom) {
    const { tree, view, unit } = this;
    const held = view.totals[node];
    const own = sumOf(sites, ({ index }) => (tree.leaf[index] === node ? view.values[index] : 0));
    const parts = [amount(held, unit)];
    if (view.variances) {
      const variance = sumOf(sites, ({ index }) => view.variances[index]);
      parts.push(`± ${amount(Math.round(Math.sqrt(variance)), unit)}`);
    }
    if (unit === "bytes" && held >= 1024) parts.push(`(${exactAmount(held, unit)})`);
    parts.push(`· ${percent(held, view.totals[0])}`);
    if (zoom !== 0 && node !== zoom && tree.isWithin(node, zoom)) {
      parts.push(`· ${percent(held, view.totals[zoom])} of what is zoomed into`);
    }
    if (own > 0 && own < held) parts.push(`· ${amount(own, unit)} its own`);
    parts.push(`· ${counted(numberOfSites(sites), "site")}`);
    return parts.join(" ");
  }

  /** Where in the function stacks went on, and how that was found; of what is no function, what it is. */
  #more(node, { kind }, sites) {
    if (kind === "other") return element("p", {}, "Sites that had no room on this page.");
    if (kind === "marker" && sites.length > 0 && sites[0].end !== 0) {
      const { meaning, advice } = this.trace.explain(sites[0]);
      return element("p", {}, `The stacks are not complete: ${meaning}. ${advice}`);
    }
    const isCode = kind === "function" || kind === "inlined";
    return isCode && sites.length <= MAX_SITES_FOR_PLACES ? this.#places(node, sites) : null;
  }

  #places(node, sites) {
    const { tree, view, unit } = this;
    const places = new Map();
    const ways = new Set();
    for (const site of sites) {
      const { frame, file, line } = tree.path(site)[tree.depth[node] - 1];
      const way = FOUND_BY[frame.foundBy];
      const address = way === "python" ? "file not known" : `+0x${frame.address}`;
      const place = file ? sourcePlace(file, line) : address;
      places.set(place, (places.get(place) ?? 0) + view.values[site.index]);
      ways.add(way);
    }
    const sorted = [...places].sort((a, b) => b[1] - a[1]);
    const texts = sorted.slice(0, MAX_PLACES).map(([place, part]) => {
      const share = sorted.length > 1 ? ` ${amount(part, unit)}` : "";
      return [foreign(place, "file"), `${share}  `];
    });
    const more = sorted.length > MAX_PLACES ? `and ${counted(sorted.length - MAX_PLACES, "more place")}  ` : "";
    const found = [...ways].map((way) => `found ${WAYS[way]}`).join(", ");
    return element("p", { class: "places" }, texts.flat(), more, element("span", { class: "note" }, found));
  }
}
