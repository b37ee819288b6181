"use strict";
// What a page does beyond forms: sliders that answer at once, an audit that tells when it is done, printing.

function number(text) {
  const value = Number(text);
  return value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: 6 });
}

function fields(form, prefix) {
  const found = {};
  for (const one of new FormData(form)) {
    if (one[0].startsWith(prefix)) found[one[0].slice(prefix.length)] = one[1];
  }
  return found;
}

function whatIf(form) {
  const live = form.querySelector(".live");
  const out = (name) => live.querySelector(`[data-out=${name}]`);
  let timer = 0;
  let asked = null;

  async function ask() {
    if (asked) asked.abort();
    asked = new AbortController();
    try {
      const answer = await fetch("/case/whatif", {
        method: "POST",
        signal: asked.signal,
        credentials: "same-origin",
        headers: { "Content-Type": "application/json", "Accept": "application/json", "X-CSRF-Token": form.dataset.token },
        body: JSON.stringify({ row: fields(form, "f."), other: fields(form, "w.") }),
      });
      const told = await answer.json();
      if (!answer.ok) {
        out("decision").textContent = told.detail;
        return;
      }
      out("decision").textContent = told.then.favourable ? live.dataset.accepted : live.dataset.declined;
      const proved = told.valid && told.radius > 0;
      out("radius").textContent = proved ? (Math.floor(told.radius * 1000) / 1000).toFixed(3) : live.dataset.none;
      out("cost").textContent = told.cost.toFixed(3);
    } catch (error) {
      if (error.name !== "AbortError") out("decision").textContent = "–";
    }
  }

  form.addEventListener("input", (event) => {
    const shown = event.target.parentElement.querySelector("output");
    if (shown) shown.textContent = number(event.target.value);
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
  for (const range of form.querySelectorAll("[data-missing]")) range.disabled = true;
  ask();
}

function watchJob(place) {
  const bar = place.querySelector("progress");
  async function look() {
    const answer = await fetch(`/compliance/audits/${place.dataset.job}/progress`, { credentials: "same-origin" });
    if (!answer.ok) return;
    const job = await answer.json();
    bar.value = job.progress;
    if (job.state === "waiting" || job.state === "running") setTimeout(look, 400);
    else location.reload();
  }
  setTimeout(look, 300);
}

document.querySelectorAll("form[data-whatif]").forEach(whatIf);
document.querySelectorAll("[data-job]").forEach(watchJob);
document.querySelectorAll("[data-print]").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", () => window.print());
});
const result = document.getElementById("decision");
if (result) {
  result.tabIndex = -1;
  result.focus({ preventScroll: false });
}
