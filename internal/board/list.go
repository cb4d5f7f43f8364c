package board

import (
	"fmt"

	"octet/internal/chart"
	"octet/internal/page"
)

// columns are the columns of the list: a heading, and a row's cell.
var columns = []struct {
	head string
	key  string // of Row in JSON, by which the script sorts
	cell func(Row) string
}{
	{"run", "name", func(r Row) string { return r.Name }},
	{"recipe", "recipe", func(r Row) string { return r.Recipe }},
	{"seed", "seed", func(r Row) string { return r.Seed }},
	{"device", "device", func(r Row) string { return r.Device }},
	{"state", "state", func(r Row) string { return r.State }},
	{"step", "step", func(r Row) string { return fmt.Sprint(r.Step) }},
	{"of", "steps", func(r Row) string { return fmt.Sprint(r.Steps) }},
	{"loss", "loss", func(r Row) string { return cell(r.Loss) }},
	{"validation", "val_loss", func(r Row) string { return cell(r.ValLoss) }},
	{"tokens/s", "tokens_per_s", func(r Row) string { return cell(r.Tokens) }},
	{"warnings", "warnings", func(r Row) string { return fmt.Sprint(r.Warnings) }},
	{"problems", "problems", func(r Row) string { return fmt.Sprint(r.Problems) }},
	{"last step at", "written", func(r Row) string { return r.Written }},
}

func cell(x *float64) string {
	if x == nil {
		return ""
	}
	return chart.Number(*x)
}

// listPage returns the page of all runs. It is complete without its script, which sorts,
// filters and updates it.
func listPage(dir string, rows []Row, err error) []byte {
	var p page.Page
	p.Link("/report", "Compare all runs")
	if err != nil {
		p.Paragraph("bad", err.Error())
	}
	p.Raw(`<p><label>Filter: <input id="filter" type="search" autocomplete="off"></label> <span id="count" role="status" class="soft"></span></p>` +
		`<form action="/report"><div class="scroll" tabindex="0" role="region" aria-label="Runs"><table id="runs"><thead><tr>`)
	for i, c := range columns {
		sort := ""
		if i == 0 {
			sort = ` aria-sort="ascending"`
		}
		p.Raw(fmt.Sprintf(`<th scope="col" data-key="%s"%s><button type="button">%s</button></th>`, c.key, sort, chart.Escape(c.head)))
	}
	p.Raw("</tr></thead><tbody>")
	for _, r := range rows {
		p.Raw(fmt.Sprintf(`<tr><th scope="row"><input type="checkbox" name="run" value="%s" aria-label="choose %[1]s"> <a href="%s">%[1]s</a></th>`,
			chart.Escape(r.Name), chart.Escape(reportPath(r.Name))))
		for _, c := range columns[1:] {
			p.Raw("<td>" + chart.Escape(c.cell(r)) + "</td>")
		}
		p.Raw("</tr>")
	}
	p.Raw(`</tbody></table></div><p><button type="submit" id="compare">Compare the chosen runs</button> <span id="chosen" role="status" class="soft"></span></p></form>`)
	return p.HTML("Runs in "+dir, pollScript+listScript)
}

// pollScript calls a function with the rows once and after each change, one call at a time.
const pollScript = `"use strict";
const pause = ms => new Promise(end => setTimeout(end, ms));
async function poll(changed) {
  for (let version = "", wait = 0; ; await pause(wait)) {
    wait = 500;
    try {
      const answer = await fetch("/rows?version=" + version);
      if (answer.status !== 200) continue;
      const news = await answer.json();
      version = news.version;
      await changed(news.rows);
    } catch (e) { wait = 3000; } // the board has ended; another may start
  }
}
`

// listScript sorts, filters and updates the list. Cells get text only, so that names cannot
// hold markup. Runs stay chosen while the filter hides them.
const listScript = `const table = document.getElementById("runs"), body = table.tBodies[0], filter = document.getElementById("filter");
const heads = [...table.tHead.rows[0].cells];
const chosen = new Set(), compareButton = document.getElementById("compare");
let rows = null, key = "name", up = true;
const order = new Intl.Collator("en", {numeric: true}).compare;
function text(v) { return v === null ? "" : typeof v === "number" && !Number.isInteger(v) ? String(Number(v.toPrecision(4))) : String(v); }
function compare(a, b) {
  const x = a[key], y = b[key];
  if (x === null || y === null) return (x === null) - (y === null);
  return (up ? 1 : -1) * (typeof x === "number" && typeof y === "number" ? x - y : order(x, y)) || order(a.name, b.name);
}
function show() {
  if (!rows) return;
  const focus = document.activeElement && body.contains(document.activeElement) ? [document.activeElement.tagName, document.activeElement.closest("tr").dataset.name] : null;
  const words = filter.value.toLowerCase().split(/\s+/).filter(w => w);
  const kept = rows.filter(r => words.every(w => (r.name + " " + r.recipe + " " + r.device).toLowerCase().includes(w)));
  kept.sort(compare);
  body.replaceChildren(...kept.map(r => {
    const tr = document.createElement("tr");
    tr.dataset.name = r.name;
    heads.forEach((h, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.textContent = text(r[h.dataset.key]);
      else {
        cell.scope = "row";
        const box = document.createElement("input"), link = document.createElement("a");
        box.type = "checkbox"; box.name = "run"; box.value = r.name; box.checked = chosen.has(r.name);
        box.setAttribute("aria-label", "choose " + r.name);
        link.href = "/report?" + new URLSearchParams({run: r.name}); link.textContent = r.name;
        cell.append(box, " ", link);
      }
      tr.append(cell);
    });
    if (focus && focus[1] === r.name) setTimeout(() => { const e = tr.querySelector(focus[0]); if (e) e.focus(); });
    return tr;
  }));
  count();
  document.getElementById("count").textContent = kept.length + " of " + rows.length + " runs";
}
function count() {
  document.getElementById("chosen").textContent = chosen.size + " chosen";
  compareButton.disabled = chosen.size === 0;
}
body.addEventListener("change", e => {
  if (e.target.checked) chosen.add(e.target.value); else chosen.delete(e.target.value);
  count();
});
compareButton.form.addEventListener("submit", e => { // the filter may hide chosen runs
  e.preventDefault();
  location.href = "/report?" + new URLSearchParams([...chosen].map(name => ["run", name]));
});
heads.forEach(h => h.firstChild.addEventListener("click", () => {
  up = key === h.dataset.key ? !up : true;
  key = h.dataset.key;
  heads.forEach(o => o.removeAttribute("aria-sort"));
  h.setAttribute("aria-sort", up ? "ascending" : "descending");
  show();
}));
filter.addEventListener("input", show);
poll(news => { rows = news; show(); });
`

// reportScript replaces the report by its newer version after the runs have changed. Open
// details stay open. A page that takes long to make is fetched less often.
const reportScript = `let first = true;
poll(async () => {
  if (first) { first = false; return; }
  const begin = performance.now(), answer = await fetch(location.href);
  if (answer.ok) {
    const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    const main = document.querySelector("main"), open = [...main.querySelectorAll("details")].map(d => d.open);
    [...next.querySelectorAll("details")].forEach((d, i) => { d.open = open[i] === true; });
    main.replaceWith(next);
  }
  await pause(Math.max(2000, 30 * (performance.now() - begin)));
});
`
