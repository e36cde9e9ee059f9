// The table of sites: all that the flame graph shows, in words and numbers; each row opens to its whole stack.

const ROWS_AT_ONCE = 50;
/** Rows below the flame graph, where each leads to its box. */
const FEW_ROWS = 10;
/** Callers that a closed row names. */
const CALLERS = 3;

class SiteTable {
  /**
   * `on.show` is called with a site that is to be shown in the flame graph. With `on.all`, which shows the whole table,
   * this is a short one, and no row opens.
   */
  constructor(host, trace, on) {
    this.host = host;
    this.trace = trace;
    this.on = on;
    this.isShort = on.all !== undefined;
    this.sort = { column: "outstanding", descending: true };
    this.shown = ROWS_AT_ONCE;
    this.open = new Set();
    this.bounds = (trace.health?.ages ?? []).map(([bound]) => bound);
  }

  /** Shows what was selected; when what is measured changes, the largest of it first, or the most suspicious of all. */
  update(view) {
    const { measure } = view.state;
    if (this.measure !== measure) {
      this.sort = { column: this.#firstColumn(measure), descending: true };
    }
    Object.assign(this, { view, measure, shown: ROWS_AT_ONCE });
    this.draw();
  }

  /** What rows are sorted by at first: what is lost, if there is a verdict; else the most suspicious. */
  #firstColumn(measure) {
    if (measure !== "outstanding") return measure;
    if (this.trace.data.verdict?.all[1] > 0) return "definitely-lost";
    return this.trace.suspicions.size > 0 ? "suspicion" : measure;
  }

  draw() {
    const columns = this.#columns();
    const rows = this.#sorted(columns);
    if (rows.length === 0 && this.isShort) {
      fill(this.host);
      return;
    }
    if (rows.length === 0) {
      fill(this.host, element("p", { class: "empty" }, "No site is left: take back a filter, or the search."));
      return;
    }
    // With their roles: where there is little room, the style lays them out as what is no table.
    const head = element("tr", { role: "row" }, columns.map((column) => this.#heading(column)));
    const body = rows.slice(0, this.isShort ? FEW_ROWS : this.shown).map((site) => this.#rows(site, columns));
    const table = element(
      "table",
      { class: "sites", role: "table" },
      element("caption", {}, this.#caption(rows)),
      element("thead", { role: "rowgroup" }, head),
      element("tbody", { role: "rowgroup" }, body),
    );
    fill(this.host, element("div", { class: "wide" }, table), this.#more(rows.length));
  }

  #sorted(columns) {
    const { view, sort } = this;
    // Without a judgement of the moment that is shown, the largest first.
    const { value } = columns.find(({ key }) => key === sort.column) ?? columns.find(({ key }) => key === "outstanding");
    const isShown = (site) => view.selected[site.index] && view.isFound(site) && this.#hasAny(site);
    const keyed = this.trace.sites.filter(isShown).map((site) => ({ site, key: value(site) }));
    const sign = sort.descending ? -1 : 1;
    const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
    keyed.sort((a, b) => sign * compare(a.key, b.key) || a.site.index - b.site.index);
    return keyed.map(({ site }) => site);
  }

  /** A site that neither has nor had anything is no row, as in the text report. */
  #hasAny(site) {
    const { values, state } = this.view;
    return (
      values[site.index] !== 0 ||
      this.trace.outstanding(site, state.after, "blocks", state.hideYoung) > 0 ||
      this.trace.lost(site, "blocks") > 0 ||
      this.trace.pinned(site, "blocks") > 0 ||
      this.trace.growth(site, state.before, state.after, "bytes") !== 0
    );
  }

  #caption(rows) {
    const { after, hideYoung } = this.view.state;
    const bytes = sumOf(rows, (site) => this.trace.outstanding(site, after, "bytes", hideYoung));
    return `${counted(numberOfSites(rows), "site")}, ${size(bytes)} outstanding`;
  }

  // Columns: what they are called, what rows are sorted by, and what is in them.

  #columns() {
    const { trace } = this;
    const { after, unit } = this.view.state;
    const name = (site) => (site.merged ? "" : trace.processName(site.process));
    const columns = [
      { key: "site", label: "Site", value: (site) => this.#title(site), cell: (site) => this.#siteCell(site) },
      ...this.#outstandingColumns(),
      {
        key: "allocated",
        label: "Allocated",
        hint: "All that was allocated since the attach",
        numeric: true,
        widest: true,
        value: (site) => trace.number(site, after, "allocated", unit),
        cell: (site) => this.#amountCell(site, "allocated", trace.number(site, after, "allocated", unit)),
      },
      this.#freedColumn(),
    ];
    if (trace.suspicions.size > 0 && after === trace.last) columns.splice(1, 0, this.#suspicionColumn());
    if (this.measure === "peak") columns.splice(1, 0, this.#peakColumn());
    if (trace.data.pinned) columns.splice(1, 0, this.#pinnedColumn());
    if (trace.data.verdict) columns.splice(1, 0, this.#lostColumn());
    if (trace.last > 1) columns.push(...this.#growthColumns());
    if (this.bounds.length > 0 && after === trace.last) columns.push(this.#ageColumn());
    if (trace.hasSeveralProcesses) {
      const cell = (site) => element("bdi", { title: name(site) }, name(site));
      columns.push({ key: "process", label: "Process", widest: true, value: name, cell });
    }
    columns.push({
      key: "stack",
      label: "Stack",
      hint: "Whether the stack is complete, or why not",
      value: (site) => (site.merged ? -1 : site.end),
      cell: (site) => (site.merged ? "" : this.#badge(site)),
    });
    return columns;
  }

  /** In the unit that was chosen, and in the other one. */
  #outstandingColumns() {
    const { after, unit, hideYoung } = this.view.state;
    const outstanding = (in_) => (site) => this.trace.outstanding(site, after, in_, hideYoung);
    const [value, other] = unit === "bytes" ? ["bytes", "blocks"] : ["blocks", "bytes"];
    return [
      {
        key: "outstanding",
        label: "Outstanding",
        hint: "Allocated and not freed",
        numeric: true,
        value: outstanding(value),
        cell: (site) => this.#amountCell(site, "outstanding", outstanding(value)(site)),
      },
      {
        key: other,
        label: other === "blocks" ? "Blocks" : "Bytes",
        hint: `Outstanding, in ${other}`,
        numeric: true,
        widest: true,
        value: outstanding(other),
        cell: (site) => (other === "blocks" ? exact : size)(outstanding(other)(site)),
      },
    ];
  }

  /** How many of its blocks a site gives back: what is never freed is suspect, churn and caches are not. */
  #freedColumn() {
    const { trace } = this;
    const { after } = this.view.state;
    const of = (site, measure) => trace.number(site, after, measure, "blocks");
    const freed = (site) => Math.max(0, of(site, "allocated") - of(site, "outstanding"));
    const cell = (site) => {
      const [part, all] = [freed(site), of(site, "allocated")];
      const title = `${exact(part)} of ${counted(all, "block")} freed`;
      return element("span", { title }, percent(part, all));
    };
    return {
      key: "freed",
      label: "Freed",
      hint: "Share of its allocations, in blocks, that were freed",
      numeric: true,
      wide: true,
      value: (site) => freed(site) / (of(site, "allocated") || 1),
      cell,
    };
  }

  /** How much a site behaves like a leak, judged over all reports. */
  #suspicionColumn() {
    const of = (site) => this.trace.suspicions.get(site.index) ?? [0, 0];
    const part = (percent) => (percent < 0 ? "unknown" : `${percent} %`);
    const cell = (site) => {
      const [score, growth, certainty, steadiness, kept, spread] = of(site);
      if (score === 0) return "0";
      const title =
        `grows ${size(growth)}/s: certainty ${part(certainty)}, steadiness ${part(steadiness)}, ` +
        `old blocks kept ${part(kept)}, age spread ${part(spread)}`;
      return element("span", { title }, `${score}`);
    };
    return {
      key: "suspicion",
      label: "Suspicion",
      hint: "How much it behaves like a leak, from 0 to 10: growth that is certain and lasts, old blocks that are kept",
      numeric: true,
      // Among equals, what grows faster.
      value: (site) => of(site)[0] + Math.log2(1 + Math.max(0, of(site)[1])) / 100,
      cell,
    };
  }

  /** What the verdict of the last report says of a site. */
  #lostColumn() {
    const { trace } = this;
    const { unit } = this.view.state;
    const cell = (site) => {
      const title = verdictWords(trace, site);
      const lost = trace.lost(site, unit);
      return element("span", { title }, lost === 0 ? "–" : amount(lost, unit));
    };
    return {
      key: "definitely-lost",
      label: "Lost",
      hint: "Definitely lost: no chain of pointers leads to these blocks, by the verdict of the last report",
      numeric: true,
      value: (site) => trace.lost(site, unit),
      cell,
    };
  }

  /** Free memory that stays because of a site's blocks. */
  #pinnedColumn() {
    const { trace } = this;
    const { unit } = this.view.state;
    const cell = (site) => {
      const [bytes, blocks] = ["bytes", "blocks"].map((in_) => trace.pinned(site, in_));
      const title = `${counted(blocks, "block")} ${blocks === 1 ? "pins" : "pin"} ${exactAmount(bytes, "bytes")}`;
      const pinned = trace.pinned(site, unit);
      return element("span", { title }, pinned === 0 ? "–" : amount(pinned, unit));
    };
    return {
      key: "pinned",
      label: "Pins",
      hint: "Free memory of the allocator that stays because of these blocks, by the last report",
      numeric: true,
      value: (site) => trace.pinned(site, unit),
      cell,
    };
  }

  /** What a site held when the total was highest. */
  #peakColumn() {
    const { trace } = this;
    const { unit } = this.view.state;
    return {
      key: "peak",
      label: "At the peak",
      hint: "Outstanding when the total was highest since the attach",
      numeric: true,
      value: (site) => trace.peak(site, unit),
      cell: (site) => element("span", { title: exactAmount(trace.peak(site, unit), unit) }, amount(trace.peak(site, unit), unit)),
    };
  }

  #growthColumns() {
    const { trace } = this;
    const { before, after, unit } = this.view.state;
    const growth = (site) => trace.growth(site, before, after, unit);
    const time = trace.moments[after].elapsed_ns - trace.moments[before].elapsed_ns;
    const cell = (site) => {
      const grown = growth(site);
      if (grown === 0) return "–";
      const attributes = { title: exactAmount(grown, unit), class: grown > 0 ? "grew" : null };
      return element("span", attributes, signed(amount(grown, unit), grown));
    };
    const hint = "Net growth between the two moments: what was allocated less what was freed";
    return [
      { key: "growth", label: "Growth", hint, numeric: true, value: growth, cell },
      {
        key: "rate",
        label: "Rate",
        hint: "Growth per second",
        numeric: true,
        widest: true,
        value: growth,
        cell: (site) => (growth(site) === 0 ? "–" : rate(growth(site), time, unit)),
      },
    ];
  }

  /** The class of ages that holds the block in the middle. */
  #ageColumn() {
    const middle = (site) => {
      const ages = this.trace.ages.get(site.index);
      if (!ages) return -1;
      const blocks = this.bounds.map((_, at) => ages[2 * at + 1]);
      let left = sumOf(blocks, (some) => some) / 2;
      return blocks.findIndex((some) => {
        left -= some;
        return some > 0 && left <= 0;
      });
    };
    return {
      key: "age",
      label: "Age",
      hint: "Half of its live blocks are of this age or older",
      numeric: true,
      wide: true,
      value: middle,
      cell: (site) => (middle(site) < 0 ? "" : ageName(this.bounds, middle(site))),
    };
  }

  #amountCell(site, measure, number) {
    const { unit, after } = this.view.state;
    const error = Math.round(this.trace.error(site, after, measure, unit));
    const about = error > 0 ? ` ± ${amount(error, unit)}` : "";
    return element("span", { title: exactAmount(number, unit) + about }, amount(number, unit));
  }

  #badge(site) {
    const title = this.trace.explain(site).meaning;
    const classes = site.end === 0 ? "badge good" : "badge bad";
    return element("span", { class: classes, title }, this.trace.ends[site.end].name);
  }

  #heading({ key, label, hint, ...room }) {
    const { column, descending } = this.sort;
    const isSorted = column === key;
    const onclick = () => {
      const startsDescending = key !== "site" && key !== "process";
      this.sort = { column: key, descending: isSorted ? !descending : startsDescending };
      this.draw();
      this.host.querySelector(`[data-column=${key}] button`)?.focus();
    };
    const arrow = isSorted ? (descending ? " ▾" : " ▴") : "";
    const order = isSorted ? (descending ? "descending" : "ascending") : null;
    return element(
      "th",
      {
        scope: "col",
        role: "columnheader",
        "data-column": key,
        "aria-sort": order,
        class: this.#classes(room),
      },
      element(
        "button",
        { type: "button", title: hint, onclick },
        label,
        element("span", { "aria-hidden": "true" }, arrow),
      ),
    );
  }

  /** Columns that are `wide` are hidden on a phone, the `widest` in half a window, too. */
  #classes({ numeric, wide, widest }) {
    const names = [numeric && "number", wide && "roomy", widest && "roomy roomiest"];
    return names.filter(Boolean).join(" ") || null;
  }

  // Rows.

  /** A site's row, and if it is open, its stack's. */
  #rows(site, columns) {
    const isOpen = !this.isShort && this.open.has(site.index);
    const cells = columns.map(({ key, cell, ...room }) => {
      const classes = this.#classes(room);
      return element("td", { role: "cell", class: classes, "data-column": key }, cell(site));
    });
    const row = element("tr", { role: "row", "data-site": site.index, class: isOpen ? "open" : null }, cells);
    if (!isOpen) return [row];
    const onclick = () => this.on.show(site);
    const show = element("button", { type: "button", onclick }, "Show in the flame graph");
    const details = siteDetails(this.trace, site, this.view.state);
    details.append(element("p", { class: "unprinted" }, show));
    const cell = element("td", { role: "cell", colspan: columns.length }, details);
    return [row, element("tr", { role: "row", class: "details", id: `site-${site.index}` }, cell)];
  }

  /** The function that the memory is for. */
  #title(site) {
    if (site.merged > 0) return `other: ${counted(site.merged, "site")}`;
    return this.trace.ownerOf(site).name;
  }

  #siteCell(site) {
    if (site.merged > 0) {
      const about = element("small", {}, "that had no room on this page");
      return element("div", { class: "site" }, element("strong", {}, this.#title(site)), about);
    }
    const { trace } = this;
    const owner = trace.ownerOf(site);
    const frames = trace.framesOf(site);
    const names = frames.slice(owner.at + 1, owner.at + 1 + CALLERS);
    const callers = names.map((frame) => ["← ", foreign(brief(frame.name || trace.frameName(frame))), " "]);
    const via = [" via ", foreign(trace.allocatorOf(site)), " "];
    const source = owner.file ? [" ", foreign(sourcePlace(basename(owner.file), owner.line), "file")] : null;
    const module = owner.module > 0 ? foreign(trace.modules[owner.module].name, "module") : null;
    // There is room for one line; all of it is said where the pointer rests.
    const whole = frames.map((frame) => frame.name || trace.frameName(frame));
    const leftOut = trace.leftOut.get(site.index);
    if (leftOut) whole.splice(leftOut.after, 0, leftOut.name);
    const title = whole.join("\n← ");
    const about = element("small", { title }, module, source, via, callers);
    return element("div", { class: "site" }, this.#opener(site), about);
  }

  #opener(site) {
    const title = this.#title(site);
    const name = foreign(brief(title), "name");
    if (this.isShort) {
      return element("button", { type: "button", title, onclick: () => this.on.show(site) }, name);
    }
    const isOpen = this.open.has(site.index);
    const onclick = () => {
      if (!this.open.delete(site.index)) this.open.add(site.index);
      this.draw();
      this.host.querySelector(`[data-site="${site.index}"] button`)?.focus();
    };
    const controls = isOpen ? `site-${site.index}` : null;
    return element(
      "button",
      { type: "button", title, "aria-expanded": String(isOpen), "aria-controls": controls, onclick },
      element("span", { class: "twist", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
      name,
    );
  }

  #more(all) {
    if (this.isShort) {
      if (all <= FEW_ROWS) return null;
      const button = element("button", { type: "button", onclick: () => this.on.all() }, `Show all ${exact(all)}`);
      return element("p", { class: "more" }, button);
    }
    if (all <= this.shown) return null;
    const next = Math.min(all - this.shown, 4 * ROWS_AT_ONCE);
    const onclick = () => {
      this.shown += next;
      this.draw();
    };
    const button = element("button", { type: "button", onclick }, `Show ${exact(next)} more`);
    return element("p", { class: "more" }, `${exact(this.shown)} of ${exact(all)} rows. `, button);
  }
}
