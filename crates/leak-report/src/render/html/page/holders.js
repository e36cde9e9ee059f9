// Who holds what is still reachable: roots, and below each the sites that lead on, with what they hold.

class HoldersView {
  constructor(host, trace) {
    this.host = host;
    this.trace = trace;
  }

  get hasAny() {
    return this.trace.holders.length > 0;
  }

  draw() {
    if (!this.hasAny) return;
    const about =
      "Blocks that the process can still reach, by where it begins to look for them and by the sites of the blocks in between, as of " +
      "the last report. Of each site, the chains that hold most of it.";
    const list = this.#list(this.#tree());
    fill(this.host, element("p", { class: "note" }, about), list);
  }

  /** Roots, each with what it holds itself and through sites, by title. */
  #tree() {
    const top = { bytes: 0, blocks: 0, below: new Map(), ends: [] };
    for (const { site, path, bytes, blocks, retained } of this.trace.holders) {
      let node = top;
      for (const title of path) {
        if (!node.below.has(title)) node.below.set(title, { title, bytes: 0, blocks: 0, below: new Map(), ends: [] });
        node = node.below.get(title);
        node.bytes += bytes;
        node.blocks += blocks;
      }
      node.ends.push({ site, bytes, blocks, retained });
    }
    return top;
  }

  #list(node) {
    const below = [...node.below.values()].sort((a, b) => b.bytes - a.bytes);
    const ends = [...node.ends].sort((a, b) => b.bytes - a.bytes);
    return element(
      "ul",
      { class: "holders" },
      ends.map((end) => element("li", {}, this.#end(end))),
      below.map((child) => {
        const summary = element("summary", {}, foreign(child.title), ` – leads to ${this.#amount(child)}`);
        return element("li", {}, element("details", { open: node.title === undefined ? "" : null }, summary, this.#list(child)));
      }),
    );
  }

  #end({ site, bytes, blocks, retained }) {
    const owner = this.trace.ownerOf(this.trace.sites[site]);
    const more = retained === null ? "" : `; all of the site retain at least ${size(retained)}`;
    return [foreign(owner.name, "name"), `: ${this.#amount({ bytes, blocks })}${more}`];
  }

  #amount({ bytes, blocks }) {
    return `${size(bytes)} in ${counted(blocks, "block")}`;
  }
}
