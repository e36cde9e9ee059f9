// How far stacks and amounts can be trusted: what the text report says below its stacks.

class HealthView {
  constructor(host, trace) {
    this.host = host;
    this.trace = trace;
  }

  draw() {
    const { health } = this.trace;
    if (!health) return;
    const lost = [...health.unseen, ...health.lost];
    fill(
      this.host,
      this.#ends(),
      this.#places(),
      this.#frames(),
      this.#lines("Walks", health.walks),
      this.#lines("Python", health.python),
      this.#modules(),
      this.#lines("Lost", lost, "What could not be recorded: shown + lost = tracked."),
      this.#lines("Suppressed", health.left_out, "What the user's rules leave out."),
      this.#lines("Calls", health.calls),
      this.#lines("Sampling", health.sampling),
      this.#lines("Kernel allocators", health.kinds),
      this.#lines("Mappings by kind", health.mapped),
      this.#ages(),
      this.#lines("Overhead of tracing", health.overhead),
      this.#own(),
      this.#processes(),
    );
  }

  #card(title, ...children) {
    return element("section", { class: "card" }, element("h3", {}, title), children);
  }

  #lines(title, lines, about = null) {
    if (lines.length === 0) return null;
    const list =
      lines.length === 1
        ? element("p", {}, foreign(lines[0]))
        : element("ul", {}, lines.map((line) => element("li", {}, foreign(line))));
    return this.#card(title, about && element("p", { class: "note" }, about), list);
  }

  /** Columns with these numbers are numbers. */
  #table(names, rows, numeric) {
    const cell = (tag, attributes) => (content, at) => {
      return element(tag, { ...attributes, class: numeric.includes(at) ? "number" : null }, content);
    };
    const head = element("tr", {}, names.map(cell("th", { scope: "col" })));
    const body = rows.map((cells) => element("tr", {}, cells.map(cell("td", {}))));
    const table = element("table", { class: "facts" }, element("thead", {}, head), element("tbody", {}, body));
    return element("div", { class: "wide" }, table);
  }

  #cut(more) {
    return more > 0 ? element("p", { class: "note" }, `… and ${exact(more)} more`) : null;
  }

  #module(path) {
    return path === null ? "outside all modules" : element("bdi", { title: path }, basename(path));
  }

  #end(end) {
    const classes = end === 0 ? "badge good" : "badge bad";
    return element("span", { class: classes }, this.trace.ends[end].name);
  }

  #ends() {
    const { stacks, walks, complete, completeWalks } = this.trace.completeness();
    if (stacks === 0) return this.#card("Stacks", element("p", {}, "None: no allocation was recorded."));
    const share = percent(completeWalks, walks);
    const rows = this.trace.health.ends.map(([end, number, some]) => {
      const { meaning, advice } = this.trace.ends[end];
      const explained = element("div", { class: "meaning" }, meaning, advice ? element("small", {}, advice) : null);
      return [this.#end(end), exact(number), exact(some), percent(some, walks), explained];
    });
    return this.#card(
      "Stacks",
      element("p", { class: "lead" }, `${exact(complete)} of ${exact(stacks)} complete (${share} of allocations)`),
      shareBar([
        [completeWalks, "good", "complete"],
        [walks - completeWalks, "bad", "incomplete"],
      ]),
      this.#table(["End", "Stacks", "Allocations", "Share", "What it means"], rows, [1, 2, 3]),
    );
  }

  #places() {
    const { places, more_places: more } = this.trace.health;
    if (places.length === 0) return null;
    const rows = places.map(({ module, end, stacks, allocations, addresses }) => [
      this.#module(module),
      this.#end(end),
      exact(stacks),
      exact(allocations),
      element("code", {}, addresses.join(", ")),
    ]);
    const names = ["Module", "End", "Stacks", "Allocations", "Addresses"];
    return this.#card("Where incomplete stacks ended", this.#table(names, rows, [2, 3]), this.#cut(more));
  }

  #frames() {
    const { probe, cfi, fp, fp_generated: generated, fp_uncertain: uncertain, kernel } = this.trace.health.frames;
    const all = probe + cfi + fp + generated + uncertain + kernel;
    if (all === 0) return null;
    if (kernel > 0) return this.#card("Frames", element("p", {}, "Walked by the kernel's own unwinder."));
    const parts = [
      [probe, "probe", WAYS.probe],
      [cfi, "cfi", WAYS.cfi],
      [fp, "fp", WAYS.fp],
      [generated, "fp_generated", WAYS.fp_generated],
      [uncertain, "fp_uncertain", WAYS.fp_uncertain],
    ];
    const legend = parts.map(([number, key, name]) => {
      return element("span", {}, element("span", { class: `swatch ${key}` }), `${name} ${percent(number, all)} `);
    });
    return this.#card(
      "Frames",
      element("p", { class: "lead" }, `${exact(cfi)} by CFI, ${exact(fp)} by frame pointer (${percent(fp, all)})`),
      shareBar(parts),
      element("p", { class: "legend" }, legend),
    );
  }

  #modules() {
    const { modules, more_modules: more } = this.trace.health;
    if (modules.length === 0) return null;
    const rows = modules.map(({ module, cfi, fp, code, covered, table }) => [
      this.#module(module),
      exact(cfi),
      fp > 0 ? element("strong", {}, `${exact(fp)} (${percent(fp, fp + cfi)})`) : "0",
      code === null ? "–" : percent(covered, code),
      table === null ? "–" : size(table),
    ]);
    return this.#card(
      "How walks left each module",
      element("p", { class: "note" }, "By its CFI, or where that is missing by the frame pointer."),
      this.#table(["Module", "By CFI", "By frame pointer", "Code with CFI", "Unwind table"], rows, [1, 2, 3, 4]),
      this.#cut(more),
    );
  }

  #ages() {
    const ages = this.trace.health.ages ?? [];
    const all = sumOf(ages, ([, , blocks]) => blocks);
    if (all === 0) return null;
    const bounds = ages.map(([bound]) => bound);
    const hasAny = ([, , blocks]) => blocks > 0;
    const rows = ages.map(([, bytes, blocks], at) => [
      ageName(bounds, at),
      element("meter", { min: 0, max: all, value: blocks }),
      exact(blocks),
      percent(blocks, all),
      size(bytes),
    ]);
    const some = rows.slice(ages.findIndex(hasAny), ages.findLastIndex(hasAny) + 1);
    return this.#card("Age of live blocks", this.#table(["Age", "", "Blocks", "Share", "Size"], some, [2, 3, 4]));
  }

  #own() {
    const { resident, peak, kernel } = this.trace.health.own;
    const text = `${size(resident)} resident, at most ${size(peak)}; maps in the kernel: ${size(kernel)}.`;
    return this.#card("memleak itself", element("p", {}, text));
  }

  #processes() {
    const { processes, data } = this.trace;
    if (data.kernel !== null) return this.#card("Kernel", element("p", {}, foreign(`Linux ${data.kernel}`)));
    const rows = processes
      .filter(({ pid }) => pid !== null)
      .map(({ pid, comm, exe, ended }) => [
        String(pid),
        foreign(comm),
        exe === null ? "executable unknown" : foreign(exe),
        { exited: "exited", exec: "replaced by exec", left: "no longer traced", out_of_memory: "killed for lack of memory" }[ended] ?? "runs",
      ]);
    const table = this.#table(["Pid", "Name", "Executable", ""], rows, [0]);
    return this.#card("Processes", table, this.#cut(data.more_processes));
  }
}
