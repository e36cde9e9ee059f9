// What boxes are painted with, and the legend that says so. Colours are names of the style's.

/** Modules that have a colour of their own. */
const COLOURS = 6;

/** How frames were found, the least certain first: one such frame is enough to paint a box. */
const WAYS = {
  fp_uncertain: "by frame pointer; callers may be missing before it",
  fp_generated: "by frame pointer of generated code",
  fp: "by frame pointer",
  kernel: "by the kernel",
  python: "by Python's interpreter",
  cfi: "by CFI",
  probe: "where the probe is",
};

class Colours {
  /** `on.module` is called with a module that is to be shown alone. */
  constructor(legend, trace, on) {
    this.legend = legend;
    this.trace = trace;
    this.on = on;
    const by = (measure) => {
      return trace.modulesBy(trace.sites.map((site) => trace.number(site, trace.last, measure, "bytes")));
    };
    const [held, allocated] = ["outstanding", "allocated"].map(by);
    /** Modules of stacks, those that hold most first. */
    this.modules = [...trace.modules.keys()]
      .slice(1)
      .filter((module) => allocated[module] > 0 || held[module] > 0)
      .sort((a, b) => held[b] - held[a] || allocated[b] - allocated[a]);
    this.own = new Map(this.modules.slice(0, COLOURS).map((module, at) => [module, `m${at + 1}`]));
  }

  /** The colour of a node of a tree, by module or by how frames were found. */
  of(tree, node, manner) {
    const { kind, module } = this.trace.boxes[tree.box[node]];
    if (kind === "marker") return "marker";
    if (kind !== "function" && kind !== "inlined") return "neutral";
    if (manner === "module") return module === 0 ? "outside" : (this.own.get(module) ?? "m0");
    const way = Object.keys(WAYS).find((name) => tree.found[node] & (1 << FOUND_BY.indexOf(name)));
    return `found-${way}`;
  }

  showLegend(manner, chosenModule) {
    const { trace } = this;
    if (manner === "found") {
      const used = new Set(trace.frames.map(({ foundBy }) => FOUND_BY[foundBy]));
      const ways = Object.entries(WAYS).filter(([way]) => used.has(way));
      fill(this.legend, ways.map(([way, name]) => this.#swatch(`found-${way}`, name)));
      return;
    }
    const choose = (module) => () => this.on.module(module === chosenModule ? 0 : module);
    const name = (module) => trace.modules[module].name;
    const own = [...this.own].map(([module, key]) => this.#swatch(key, name(module), choose(module)));
    const others = this.modules.length > COLOURS ? this.#swatch("m0", "other modules") : null;
    const hasOutside = trace.frames.some(({ module }) => module === 0);
    fill(this.legend, own, others, hasOutside ? this.#swatch("outside", "outside all modules") : null);
  }

  #swatch(key, name, onclick = null) {
    const content = [element("span", { class: `swatch ${key}` }), foreign(name)];
    if (!onclick) return element("span", {}, content);
    const title = "Only what comes through this module";
    return element("button", { type: "button", title, onclick }, content);
  }
}
