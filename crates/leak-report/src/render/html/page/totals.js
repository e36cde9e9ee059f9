// The numbers above all: sums over the sites that are shown, and how far they can be trusted.

class Totals {
  /** `on.view` is called with the view that says more. */
  constructor(host, trace, on) {
    this.host = host;
    this.trace = trace;
    this.on = on;
  }

  /** `since` is what growth is reckoned from, in words. */
  update(view, since) {
    const { trace } = this;
    const { before, after, hideYoung } = view.state;
    const shown = trace.sites.filter((site) => view.selected[site.index]);
    const sums = (of) => ["bytes", "blocks"].map((unit) => sumOf(shown, (site) => of(site, unit)));
    const outstanding = sums((site, unit) => trace.outstanding(site, after, unit, hideYoung));
    const allocated = sums((site, unit) => trace.number(site, after, "allocated", unit));
    const growth = sums((site, unit) => trace.growth(site, before, after, unit));
    fill(
      this.host,
      this.#tile("outstanding", "Outstanding", outstanding, this.#note(view, shown, outstanding)),
      this.#tile("allocated", "Allocated", allocated, this.#errorOf(shown, [after], "allocated")),
      trace.last > 1 ? this.#tile("growth", "Growth", growth, this.#growthNote(view, shown, since)) : null,
      this.#peak(shown),
      this.#verdict(),
      this.#pinned(shown),
      this.#complete(),
      this.#resident(after),
    );
  }

  /** Of the sum over sites, and of the difference of two moments at most; nothing where all is exact. */
  #errorOf(sites, moments, measure) {
    if (!this.trace.data.are_estimates) return "";
    const of = (moment) => sumOf(sites, (site) => this.trace.error(site, moment, measure, "bytes") ** 2);
    return `± ${size(Math.round(Math.sqrt(sumOf(moments, of))))}`;
  }

  #growthNote({ state }, sites, since) {
    const error = this.#errorOf(sites, [state.before, state.after], "outstanding");
    return [error, `since ${since}`].filter(Boolean).join(", ");
  }

  /** What of all that is outstanding is not in the number, and how far it can be off. */
  #note({ state }, sites, [bytes, blocks]) {
    const { trace } = this;
    const notes = [this.#errorOf(sites, [state.after], "outstanding")];
    const [allBytes, allBlocks] = trace.moments[state.after].all;
    const young = sumOf(trace.sites, (site) => trace.number(site, state.after, "young", "bytes"));
    const age = duration(trace.data.older_ns ?? 0);
    const isYoungOnly = state.hideYoung && young > 0 && bytes + young === allBytes;
    if (isYoungOnly) notes.push(`${size(young)} younger than ${age}: hidden`);
    else if (bytes !== allBytes || blocks !== allBlocks) notes.push(`of ${size(allBytes)} in all`);
    return notes.filter(Boolean).join(", ");
  }

  #tile(key, name, [bytes, blocks], note) {
    const sign = (text, number) => (key === "growth" ? signed(text, number) : text);
    return element(
      "div",
      { class: "tile", "data-tile": key, "data-bytes": bytes, "data-blocks": blocks },
      element("span", { class: "name" }, name),
      element("strong", {}, sign(size(bytes), bytes)),
      element(
        "span",
        {},
        sign(counted(blocks, "block"), blocks),
        element("span", { class: "roomy" }, `, ${sign(exact(bytes), bytes)}\u00a0B`),
      ),
      element("span", { class: "note" }, note),
    );
  }

  /** The highest total since the attach, of the sites that are shown. */
  #peak(sites) {
    const { peak } = this.trace.data;
    if (!peak) return null;
    const sums = ["bytes", "blocks"].map((unit) => sumOf(sites, (site) => this.trace.peak(site, unit)));
    const after = `${duration(peak.elapsed_ns)} after the attach`;
    const tile = this.#tile("peak", "Peak", sums, after);
    tile.title = peak.words;
    return tile;
  }

  /** What is definitely lost of all that can be a leak, by the last report. */
  #verdict() {
    const { verdict } = this.trace.data;
    if (!verdict) return null;
    const note = verdict.lines.join("\n");
    const tile = this.#tile("lost", "Definitely lost", verdict.all, "");
    tile.title = note;
    return tile;
  }

  /** Free memory that the blocks of the sites that are shown pin, by the last report. */
  #pinned(sites) {
    const { pinned } = this.trace.data;
    if (!pinned?.all) return null;
    const sums = ["bytes", "blocks"].map((unit) => sumOf(sites, (site) => this.trace.pinned(site, unit)));
    const tile = this.#tile("pinned", "Pinned", sums, "free memory that blocks keep");
    tile.title = pinned.lines.join("\n");
    return tile;
  }

  #complete() {
    const { stacks, walks, complete, completeWalks } = this.trace.completeness();
    if (stacks === 0) return null;
    return this.#link("complete", "health", "Complete stacks", percent(completeWalks, walks), [
      "of allocations",
      element("span", { class: "roomy" }, `; ${exact(complete)} of ${exact(stacks)} stacks`),
    ]);
  }

  #resident(moment) {
    const { memory } = this.trace.moments[moment];
    if (memory.length === 0) return null;
    const resident = sumOf(memory, ({ parts: [rss] }) => rss);
    const live = sumOf(memory, ({ parts: [, tracked] }) => tracked);
    return this.#link("resident", "memory", "Resident", size(resident), [
      `${percent(live, resident)} allocated during this trace`,
    ]);
  }

  #link(key, view, name, number, texts) {
    return element(
      "button",
      { type: "button", class: "tile", "data-tile": key, onclick: () => this.on.view(view) },
      element("span", { class: "name" }, name),
      element("strong", {}, number),
      element("span", {}, texts),
    );
  }
}
