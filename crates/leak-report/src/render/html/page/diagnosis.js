// Why memory grows, if `memleak why` made the page: above all else, in the words of text reports.

/** Shows the headline and the causes; nothing without a diagnosis. */
function drawDiagnosis(host, diagnosis) {
  host.hidden = !diagnosis;
  if (!diagnosis) return;
  const fact = ([label, text]) => element("div", {}, element("dt", {}, label), element("dd", {}, foreign(text)));
  const cause = ({ title, facts }) =>
    element("li", {}, foreign(title), element("dl", { class: "facts" }, facts.map(fact)));
  fill(
    host,
    element("h2", { id: "diagnosis-title" }, "Why memory grows"),
    element("p", {}, foreign(diagnosis.headline)),
    diagnosis.causes.length > 0 ? element("ol", {}, diagnosis.causes.map(cause)) : null,
    diagnosis.steps ? element("p", {}, foreign(diagnosis.steps)) : null,
  );
}
