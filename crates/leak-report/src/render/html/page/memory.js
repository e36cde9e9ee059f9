// Where the resident memory of each process is: parts that add up to the whole.

/** The parts in the order of the data, behind the whole and before what is not part of it; and what they mean. */
const PARTS = [
  { key: "tracked", name: "allocated during this trace" },
  {
    key: "before",
    name: "allocated before the attach, at most",
    hint: "Resident in the allocator's mappings at the attach; only the allocator could tell it from free memory",
  },
  { key: "slack", name: "free in the allocator, or its own data, at least" },
  { key: "stacks", name: "thread stacks" },
  {
    key: "files",
    name: "files",
    hint: "The program, libraries, mapped files, and what was written to private copies of them",
  },
  { key: "shared", name: "shared memory" },
  {
    key: "unexplained",
    name: "unexplained",
    hint: "Usually mapped by the program itself; --mmap traces that",
  },
];

class MemoryView {
  constructor(host, trace) {
    this.host = host;
    this.trace = trace;
  }

  /** Whether any moment has anything to show. */
  get hasAny() {
    return this.trace.moments.some(({ memory }) => memory.length > 0);
  }

  /** The last moment up to this one at which any memory was read; 0 if there is none. */
  #read(moment) {
    let at = Math.max(0, moment);
    while (at > 0 && this.trace.moments[at].memory.length === 0) at -= 1;
    return at;
  }

  update({ before, after, process }) {
    const { moments } = this.trace;
    const at = this.#read(after);
    const [now, earlier] = [moments[at], moments[this.#read(Math.min(before, at - 1))]];
    const rows = now.memory.filter(([number]) => process < 0 || number === process);
    if (rows.length === 0) {
      fill(this.host, element("p", { class: "empty" }, "No process was running, or its memory could not be read."));
      return;
    }
    const then = new Map(earlier.memory.map(([number, parts]) => [number, parts]));
    const compared = then.size > 0 ? `, and how it changed since ${earlier.time}` : "";
    const about = `Resident memory at ${now.time}${compared}. The parts add up to the whole.`;
    const cards = rows.map(([number, parts, error]) => this.#process(number, parts, error, then.get(number)));
    fill(this.host, element("p", {}, about), cards);
  }

  /** `then` is what the parts were before, if that is known. */
  #process(number, all, error, then) {
    const [rss, notResident] = [all[0], all.at(-1)];
    const parts = PARTS.map((part, at) => ({ ...part, bytes: all[at + 1], before: then?.[at + 1] ?? 0 }));
    const known = parts.filter(({ bytes, before }) => bytes > 0 || before > 0);
    const names = ["Part", "Size", "Share", ...(then ? ["Change"] : [])];
    const heading = (name, at) => element("th", { scope: "col", class: at > 0 ? "number" : null }, name);
    const more = "allocated but not resident: never touched, or swapped out.";
    return element(
      "section",
      { class: "card" },
      element("h3", {}, foreign(this.trace.processName(number)), ` – ${size(rss)} resident`),
      shareBar(known.map(({ key, name, bytes }) => [bytes, key, name])),
      element(
        "table",
        { class: "facts" },
        element("thead", {}, element("tr", {}, names.map(heading))),
        element(
          "tbody",
          {},
          known.map((part) => this.#row(part, rss, error, then)),
          this.#row({ name: "resident in all", bytes: rss, before: then?.[0] }, rss, 0, then),
        ),
      ),
      notResident > 0 ? element("p", { class: "note" }, `Plus ${size(notResident)} ${more}`) : null,
    );
  }

  #row({ key, name, hint, bytes, before }, rss, error, then) {
    const about = key === "tracked" && error > 0 ? ` ± ${size(error)}` : "";
    const grown = bytes - before;
    const change = grown === 0 ? "–" : signed(size(grown), grown);
    return element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        key ? element("span", { class: `swatch ${key}` }) : null,
        name,
        hint ? element("small", {}, hint) : null,
      ),
      element("td", { class: "number", title: `${exact(bytes)} B` }, size(bytes), about),
      element("td", { class: "number" }, percent(bytes, rss)),
      then ? element("td", { class: "number", title: `${exact(grown)} B` }, change) : null,
    );
  }
}
