// Package page writes HTML pages that need no other file: tables, figures with their numbers,
// text. They follow the reader's colour scheme, and a content security policy forbids
// everything that they do not need.
package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"octet/internal/chart"
)

// Page is an HTML page that is being written. Every text on it goes through chart.Escape. The
// zero value is empty.
type Page struct {
	body  bytes.Buffer
	links []link // of the navigation
}

type link struct{ to, title string }

// styles are the rules of the page, beside those of the charts.
const styles = `:root{color-scheme:light dark;--back:#fff;--text:#1f2328;--soft:#59636e;--edge:#d8dee4;--bad:#b3261e;--link:#0550ae}` +
	`@media(prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9aa4ae;--edge:#30363d;--bad:#ff8a80;--link:#79b8ff}}` +
	`body{margin:0 auto;max-width:1200px;padding:1rem;background:var(--back);color:var(--text);overflow-wrap:anywhere;font:15px/1.5 system-ui,sans-serif}` +
	`h1{font-size:1.5rem}h2{font-size:1.2rem;border-top:1px solid var(--edge);padding-top:1rem;margin-top:2rem}h3{font-size:1rem}` +
	`a{color:var(--link)}nav a{margin-right:1rem;white-space:nowrap}.soft{color:var(--soft)}.bad{color:var(--bad)}` +
	`.charts{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;flex:1 1 420px;min-width:0;max-width:590px}figure.wide{flex-basis:100%;max-width:900px}` +
	`svg.chart{width:100%;height:auto;display:block}.scroll{overflow-x:auto}figure.wide svg.chart{min-width:640px}` +
	`table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.15rem .7rem;border-bottom:1px solid var(--edge);text-align:right;white-space:nowrap}` +
	`th:first-child,td:first-child{text-align:left}th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--link)}` +
	`th[aria-sort=ascending] button::after{content:" ▲"}th[aria-sort=descending] button::after{content:" ▼"}summary{cursor:pointer;color:var(--soft)}pre{overflow-x:auto;font-size:13px}`

// HTML returns the whole page. script, if it is not empty, is a program that the page may run;
// it may connect to the page's server only.
func (p *Page) HTML(title, script string) []byte {
	style := styles + chart.Style()
	policy := fmt.Sprintf("default-src 'none'; img-src data:; style-src '%s'; base-uri 'none'; form-action 'self'", hash(style))
	if script != "" {
		policy += fmt.Sprintf("; script-src '%s'; connect-src 'self'", hash(script))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="%s">`+
		`<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><title>%s</title><style>%s</style></head><body><h1>%[2]s</h1>`,
		policy, chart.Escape(title), style)
	if len(p.links) > 0 {
		b.WriteString(`<nav aria-label="Sections">`)
		for _, l := range p.links {
			fmt.Fprintf(&b, `<a href="%s">%s</a>`, chart.Escape(l.to), chart.Escape(l.title))
		}
		b.WriteString("</nav>")
	}
	b.WriteString("<main>")
	b.Write(p.body.Bytes())
	b.WriteString("</main>")
	if script != "" {
		fmt.Fprintf(&b, "<script>%s</script>", script)
	}
	b.WriteString("</body></html>\n")
	return b.Bytes()
}

// hash is the source of a policy that allows a text within the page.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Link adds a link to the navigation.
func (p *Page) Link(to, title string) { p.links = append(p.links, link{to, title}) }

// Raw writes HTML.
func (p *Page) Raw(html string) { p.body.WriteString(html) }

// Section begins a section; id is unique.
func (p *Page) Section(id, title string) {
	p.Link("#"+id, title)
	fmt.Fprintf(&p.body, `<h2 id="%s">%s</h2>`, id, chart.Escape(title))
}

func (p *Page) Heading(title string) { fmt.Fprintf(&p.body, "<h3>%s</h3>", chart.Escape(title)) }

func (p *Page) Paragraph(class, text string) {
	fmt.Fprintf(&p.body, `<p class="%s">%s</p>`, class, chart.Escape(text))
}

// Charts surrounds figures that stand side by side where there is room.
func (p *Page) Charts(figures ...func()) {
	p.body.WriteString(`<div class="charts">`)
	for _, figure := range figures {
		figure()
	}
	p.body.WriteString("</div>")
}

// Figure writes a drawing and, folded, its numbers.
func (p *Page) Figure(title string, svg []byte, numbers chart.Table, wide bool) {
	class := ""
	if wide {
		class = ` class="wide"`
	}
	fmt.Fprintf(&p.body, `<figure%s><div class="scroll">`, class)
	p.body.Write(svg)
	fmt.Fprintf(&p.body, `</div><details><summary>Numbers of %s</summary>`, chart.Escape(title))
	p.Table(title, numbers)
	p.body.WriteString("</details></figure>")
}

// Table writes a table that scrolls on narrow screens, also by keys.
func (p *Page) Table(name string, t chart.Table) {
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

// Folded writes text of fixed width that a reader can open.
func (p *Page) Folded(title, text string) {
	fmt.Fprintf(&p.body, `<details><summary>%s</summary><pre tabindex="0">%s</pre></details>`, chart.Escape(title), chart.Escape(text))
}
