package report

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"octet/internal/chart"
)

// page is an HTML page that is being written. Every text on it goes through chart.Escape.
type page struct {
	body  bytes.Buffer
	links []link // to the sections
}

type link struct{ id, title string }

// styles are the rules of the page, beside those of the charts.
const styles = `:root{color-scheme:light dark;--back:#fff;--text:#1f2328;--soft:#59636e;--edge:#d8dee4;--bad:#b3261e;--link:#0550ae}` +
	`@media(prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9aa4ae;--edge:#30363d;--bad:#ff8a80;--link:#79b8ff}}` +
	`body{margin:0 auto;max-width:1200px;padding:1rem;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}` +
	`h1{font-size:1.5rem}h2{font-size:1.2rem;border-top:1px solid var(--edge);padding-top:1rem;margin-top:2rem}h3{font-size:1rem}` +
	`a{color:var(--link)}nav a{margin-right:1rem;white-space:nowrap}.soft{color:var(--soft)}.bad{color:var(--bad)}` +
	`.charts{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 420px;min-width:0;max-width:590px}figure.wide{flex-basis:100%;max-width:900px}` +
	`svg.chart{width:100%;height:auto;display:block}.scroll{overflow-x:auto}figure.wide svg.chart{min-width:640px}` +
	`table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.15rem .7rem;border-bottom:1px solid var(--edge);text-align:right;white-space:nowrap}` +
	`th:first-child,td:first-child{text-align:left}summary{cursor:pointer;color:var(--soft)}pre{overflow-x:auto;font-size:13px}`

// write returns the whole page.
func (p *page) write(title string) []byte {
	style := styles + chart.Style()
	sum := sha256.Sum256([]byte(style))
	var b bytes.Buffer
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" `+
		`content="default-src 'none'; img-src data:; style-src 'sha256-%s'"><meta name="viewport" content="width=device-width">`+
		`<link rel="icon" href="data:,"><title>%s</title><style>%s</style></head><body><h1>%[2]s</h1><nav aria-label="Sections">`,
		base64.StdEncoding.EncodeToString(sum[:]), chart.Escape(title), style)
	for _, l := range p.links {
		fmt.Fprintf(&b, `<a href="#%s">%s</a>`, l.id, chart.Escape(l.title))
	}
	b.WriteString("</nav><main>")
	b.Write(p.body.Bytes())
	b.WriteString("</main></body></html>\n")
	return b.Bytes()
}

// section begins a section; id is unique.
func (p *page) section(id, title string) {
	p.links = append(p.links, link{id, title})
	fmt.Fprintf(&p.body, `<h2 id="%s">%s</h2>`, id, chart.Escape(title))
}

func (p *page) heading(title string) { fmt.Fprintf(&p.body, "<h3>%s</h3>", chart.Escape(title)) }

func (p *page) paragraph(class, text string) {
	fmt.Fprintf(&p.body, `<p class="%s">%s</p>`, class, chart.Escape(text))
}

// charts surrounds figures that stand side by side where there is room.
func (p *page) charts(figures ...func()) {
	p.body.WriteString(`<div class="charts">`)
	for _, figure := range figures {
		figure()
	}
	p.body.WriteString("</div>")
}

// tableRows is the number of rows of the table behind a chart.
const tableRows = 20

// figure writes a drawing and, folded, its numbers.
func (p *page) figure(title string, svg []byte, numbers chart.Table, wide bool) {
	class := ""
	if wide {
		class = ` class="wide"`
	}
	fmt.Fprintf(&p.body, `<figure%s><div class="scroll">`, class)
	p.body.Write(svg)
	fmt.Fprintf(&p.body, `</div><details><summary>Numbers of %s</summary>`, chart.Escape(title))
	p.table(title, numbers)
	p.body.WriteString("</details></figure>")
}

// table writes a table that scrolls on narrow screens, also by keys.
func (p *page) table(name string, t chart.Table) {
	fmt.Fprintf(&p.body, `<div class="scroll" tabindex="0" role="region" aria-label="%s"><table><thead><tr>`, chart.Escape(name))
	for _, cell := range t.Head {
		fmt.Fprintf(&p.body, `<th scope="col">%s</th>`, chart.Escape(cell))
	}
	p.body.WriteString("</tr></thead><tbody>")
	for _, row := range t.Rows {
		p.body.WriteString("<tr>")
		for i, cell := range row {
			if i == 0 {
				fmt.Fprintf(&p.body, `<th scope="row">%s</th>`, chart.Escape(cell))
			} else {
				fmt.Fprintf(&p.body, "<td>%s</td>", chart.Escape(cell))
			}
		}
		p.body.WriteString("</tr>")
	}
	p.body.WriteString("</tbody></table></div>")
}

// folded writes text of fixed width that a reader can open.
func (p *page) folded(title, text string) {
	fmt.Fprintf(&p.body, `<details><summary>%s</summary><pre tabindex="0">%s</pre></details>`, chart.Escape(title), chart.Escape(text))
}
