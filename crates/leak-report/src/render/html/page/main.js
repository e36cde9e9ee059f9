// The page: what is chosen, and who shows what of it.

class Page {
  constructor(data) {
    this.trace = new Trace(data);
    this.trees = new Map();
    this.state = this.#firstChoice();
    const { trace } = this;
    this.about = new About(trace);
    drawDiagnosis(byId("diagnosis"), data.diagnosis);
    this.totals = new Totals(byId("totals"), trace, { view: (view) => this.change({ view }) });
    this.timeline = new Timeline(byId("timeline"), trace, { change: (change) => this.change(change) });
    this.colours = new Colours(byId("legend"), trace, { module: (module) => this.change({ module }) });
    this.details = new Details(byId("details"), trace);
    this.flame = new FlameGraph(byId("graph"), {
      describe: (node, narrow) => this.#describe(node, narrow),
      label: (node) => this.details.label(this.tree, this.view, node),
      amount: (node) => amount(this.view.totals[node], this.state.unit),
      zoomed: (node) => (byId("zoom-out").hidden = node === 0),
      lowerEdge: () => byId("details").getBoundingClientRect().top,
    });
    const show = (site) => this.#showInGraph(site);
    this.sites = new SiteTable(byId("site-table"), trace, { show });
    const all = () => this.change({ view: "sites" });
    this.largest = new SiteTable(byId("largest-sites"), trace, { show, all });
    this.memory = new MemoryView(byId("memory-view"), trace);
    this.holders = new HoldersView(byId("holders-view"), trace);
    this.health = new HealthView(byId("health-view"), trace);
    this.#readAddress();
    this.#hideWhatDoesNotApply();
    this.#listen();
    byId("content").hidden = false;
    this.health.draw();
    this.holders.draw();
    this.change({});
  }

  /** Sets what is chosen, and shows it. */
  change(change) {
    const { state } = this;
    Object.assign(state, change);
    this.view = this.#look();
    this.#showControls();
    this.#showFound();
    this.totals.update(this.view, state.before === 0 ? "the attach" : this.timeline.name(state.before));
    this.timeline.update(state);
    this.memory.update(state);
    this.sites.update(this.view);
    this.largest.update(this.view);
    this.#showPanel();
    this.#showGraph();
    this.#writeAddress();
  }

  get tree() {
    const { inverted } = this.state;
    if (!this.trees.has(inverted)) this.trees.set(inverted, new Tree(this.trace, inverted));
    return this.trees.get(inverted);
  }

  /** Growth is since the baseline that the user marked last, or since the first report. */
  #firstChoice() {
    const { data, moments, last } = this.trace;
    const marked = moments.findLastIndex((moment, at) => moment.marked && at < last);
    return {
      view: "flame",
      measure: data.measure === "growth" && last < 2 ? "outstanding" : data.measure,
      unit: data.unit,
      before: marked > 0 ? marked : Math.max(0, Math.min(1, last - 1)),
      after: last,
      process: -1,
      module: 0,
      allocator: "",
      hideYoung: data.older_ns > 0,
      showAll: false,
      query: "",
      onlyMatches: false,
      inverted: data.inverted,
      colour: "module",
    };
  }

  /** What there is to show of what is chosen: values by site, which of them are shown, sums by node of the tree. */
  #look() {
    const { trace, state, tree } = this;
    const matches = matcher(state.query);
    const found = matches && tree.search(matches);
    const values = trace.values(state);
    const selected = trace.select(state, state.onlyMatches && found ? found.sites : null);
    return {
      state,
      values,
      selected,
      found,
      variances: trace.variances(state),
      totals: tree.sum(values, selected),
      isFound: (site) => !found || found.sites[site.index] === 1,
    };
  }

  // What is shown.

  #hideWhatDoesNotApply() {
    const { trace } = this;
    const older = trace.data.older_ns;
    const young = byId("hide-young").parentElement;
    young.hidden = !older;
    if (older) young.lastElementChild.textContent = `hide blocks younger than ${duration(older)}`;
    byId("show-all").parentElement.hidden = trace.sites.every((site) => site.isSuspect);
    document.querySelector("input[value=growth]").parentElement.hidden = trace.last < 2;
    document.querySelector("input[value=peak]").parentElement.hidden = !trace.data.peak;
    document.querySelector("input[value=definitely-lost]").parentElement.hidden = !trace.data.verdict;
    document.querySelector("input[value=pinned]").parentElement.hidden = !trace.data.pinned;
    byId("tab-memory").hidden = !this.memory.hasAny;
    byId("tab-holders").hidden = !this.holders.hasAny;
  }

  #showControls() {
    const { state, trace } = this;
    for (const name of ["measure", "unit"]) {
      document.querySelector(`input[name=${name}][value=${state[name]}]`).checked = true;
    }
    byId("hide-young").checked = state.hideYoung;
    byId("show-all").checked = state.showAll;
    byId("only-matches").checked = state.onlyMatches;
    byId("only-matches").parentElement.hidden = !this.view.found;
    if (byId("search").value !== state.query) byId("search").value = state.query;
    byId("direction").value = state.inverted ? "allocating" : "callers";
    byId("colour").value = state.colour;
    const alone = trace.sites.filter((site) => site.merged === 0);
    const processes = [...new Set(alone.map((site) => site.process))];
    const allocators = [...new Set(alone.map((site) => trace.allocatorOf(site)))].sort();
    const modules = this.colours.modules.map((module) => [module, trace.modules[module].name]);
    const named = processes.map((number) => [number, trace.processName(number)]);
    this.#options("module", [[0, "all modules"], ...modules]);
    this.#options("process", [[-1, "all processes"], ...named]);
    this.#options("allocator", [["", "all allocators"], ...allocators.map((name) => [name, name])]);
  }

  /** Choices of a list, which is hidden if there is nothing to choose. */
  #options(id, choices) {
    const select = byId(id);
    select.parentElement.hidden = choices.length <= 2;
    if (select.options.length !== choices.length) {
      fill(select, choices.map(([value, name]) => element("option", { value }, name)));
    }
    select.value = this.state[id];
  }

  /** How much a search found. */
  #showFound() {
    const { view, state, tree } = this;
    if (!view.found) {
      byId("found").textContent = "";
      return;
    }
    const has = this.trace.sites.filter(({ index }) => view.selected[index] && view.values[index] > 0);
    const sites = has.filter(view.isFound);
    const boxes = new Set();
    for (let node = 1; node < tree.size; node += 1) {
      if (view.found.nodes[node] && view.totals[node] > 0) boxes.add(tree.box[node]);
    }
    const [part, all] = [sites, has].map((some) => sumOf(some, ({ index }) => view.values[index]));
    const matches = counted(boxes.size, "match", "matches");
    const number = counted(numberOfSites(sites), "site");
    byId("found").textContent = `${matches} in ${number}: ${amount(part, state.unit)}, ${percent(part, all)}`;
  }

  #showPanel() {
    for (const panel of document.querySelectorAll("[role=tabpanel]")) {
      const isChosen = panel.id === this.state.view;
      panel.classList.toggle("chosen", isChosen);
      const tab = byId(`tab-${panel.id}`);
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
    }
  }

  #showGraph() {
    const { state, view, tree } = this;
    for (const id of ["graph", "details"]) byId(id).hidden = !(view.totals[0] > 0);
    this.flame.show(tree, view.totals, {
      matches: view.found?.nodes ?? null,
      colour: (node) => this.colours.of(tree, node, state.colour),
    });
    this.colours.showLegend(state.colour, state.module);
    byId("graph-note").textContent = this.#graphNote();
  }

  /** What is not in the picture. */
  #graphNote() {
    const { state, view } = this;
    const shown = view.totals[0];
    if (state.measure !== "growth") {
      return shown > 0 ? "" : "Nothing to draw: no site that is shown has any of this.";
    }
    const shrinking = this.trace.sites.filter(({ index }) => view.selected[index] && view.values[index] < 0);
    const shrunk = -sumOf(shrinking, ({ index }) => view.values[index]);
    const others = shrunk > 0 ? `; others shrank by ${amount(shrunk, state.unit)}, and are in the table only` : "";
    return `Sites that grew, by ${amount(shown, state.unit)} together${others}.`;
  }

  #describe(node, narrow) {
    const zoom = this.flame?.zoom ?? 0;
    if (narrow) this.details.showNarrow(this.view, narrow.count, narrow.parent, zoom);
    else this.details.show(this.tree, this.view, node, zoom);
  }

  #showInGraph(site) {
    this.change({ view: "flame" });
    const leaf = this.tree.leaf[site.index];
    this.flame.host.focus();
    if (!(this.view.totals[leaf] > 0)) return;
    if (this.flame.placeOf(leaf)) this.flame.focusOn(leaf);
    else this.flame.zoomTo(leaf);
  }

  // Input.

  #listen() {
    const on = (id, event, change) => {
      byId(id).addEventListener(event, ({ target }) => this.change(change(target)));
    };
    for (const input of document.querySelectorAll("input[type=radio]")) {
      input.addEventListener("change", () => this.change({ [input.name]: input.value }));
    }
    on("search", "input", ({ value: query }) => ({ query, onlyMatches: query && this.state.onlyMatches }));
    on("only-matches", "change", ({ checked: onlyMatches }) => ({ onlyMatches }));
    on("hide-young", "change", ({ checked: hideYoung }) => ({ hideYoung }));
    on("show-all", "change", ({ checked: showAll }) => ({ showAll }));
    on("module", "change", ({ value }) => ({ module: Number(value) }));
    on("process", "change", ({ value }) => ({ process: Number(value) }));
    on("allocator", "change", ({ value: allocator }) => ({ allocator }));
    on("direction", "change", ({ value }) => ({ inverted: value === "allocating" }));
    on("colour", "change", ({ value: colour }) => ({ colour }));
    byId("zoom-out").addEventListener("click", () => this.flame.zoomOut());
    byId("help-button").addEventListener("click", () => byId("help").showModal());
    this.#listenToTabs();
    this.#listenToKeys();
    window.addEventListener("hashchange", () => {
      this.#readAddress();
      this.change({});
    });
  }

  #listenToTabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.change({ view: tab.getAttribute("aria-controls") }));
      tab.addEventListener("keydown", ({ key }) => {
        const visible = tabs.filter(({ hidden }) => !hidden);
        const at = visible.indexOf(tab);
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: visible.length - 1 }[key];
        if (to === undefined) return;
        const next = visible[(to + visible.length) % visible.length];
        next.focus();
        next.click();
      });
    }
  }

  #listenToKeys() {
    const search = byId("search");
    search.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.change({ query: "", onlyMatches: false });
        this.flame.host.focus();
      } else if (event.key === "Enter") {
        this.change({ view: "flame" });
        this.flame.host.focus();
        this.flame.focusFirstMatch();
      } else return;
      event.preventDefault();
    });
    const typing = "input:not([type=radio], [type=checkbox], [type=range]), select";
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.matches?.(typing);
      if (isTyping || event.altKey || event.ctrlKey || event.metaKey || byId("help").open) return;
      if (event.key === "/") search.focus();
      else if (event.key === "?") byId("help").showModal();
      else if (event.key === "Escape") this.flame.zoomOut();
      else return;
      event.preventDefault();
    });
  }

  // The choice as part of the address, so that a link can lead to it.

  #writeAddress() {
    const { view, measure, unit, query, before, after } = this.state;
    const moments = this.trace.last > 1 ? { before, after } : {};
    const parts = Object.entries({ view, measure, unit, ...moments, q: query });
    const address = `#${new URLSearchParams(parts.filter(([, value]) => value !== ""))}`;
    if (address !== window.location.hash) window.history.replaceState(null, "", address);
  }

  /** An address can say anything. */
  #readAddress() {
    const parts = new URLSearchParams(window.location.hash.slice(1));
    const { state, trace } = this;
    const choose = (key, allowed) => {
      if (allowed.includes(parts.get(key))) state[key] = parts.get(key);
    };
    choose("view", ["flame", "sites", "holders", "memory", "health"]);
    const measures = ["outstanding", "allocated"];
    if (trace.last > 1) measures.push("growth");
    if (trace.data.peak) measures.push("peak");
    if (trace.data.verdict) measures.push("definitely-lost");
    if (trace.data.pinned) measures.push("pinned");
    choose("measure", measures);
    choose("unit", ["bytes", "blocks"]);
    state.query = parts.get("q") ?? "";
    const [before, after] = ["before", "after"].map((key) => Number.parseInt(parts.get(key), 10));
    if (before >= 0 && after > before && after <= trace.last) Object.assign(state, { before, after });
  }
}

const page = new Page(JSON.parse(byId("data").textContent));

/** For tests, and for those who look at the page with the browser's tools. */
window.memleak = {
  state: () => ({ ...page.state }),
  boxes: () => page.flame.boxes(),
  placeOf: (node) => page.flame.placeOf(node),
  zoom: () => page.flame.boxes().find(({ node }) => node === page.flame.zoom),
  focus: () => page.flame.boxes().find(({ node }) => node === page.flame.focus),
};
