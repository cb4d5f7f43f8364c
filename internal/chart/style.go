package chart

import (
	"fmt"
	"strings"
)

// Colors is the number of colours of lines.
const Colors = len(lightLines)

// lightLines and darkLines are the colours of lines on a light and on a dark background.
// Each has a contrast of at least three to one, and colour-blind readers can tell them
// apart.
var (
	lightLines = [...]string{"#0072b2", "#c64f00", "#00805a", "#a8508a", "#8a6000", "#3a3ab8", "#222222", "#767676"}
	darkLines  = [...]string{"#56b4e9", "#ff8a4c", "#3cc79a", "#e59ac8", "#f0b429", "#a5a5ff", "#eeeeee", "#a0a0a0"}
)

// dashes are the patterns of lines; lines of equal colour have different ones.
var dashes = []string{"", "6 3", "2 2", "8 2 2 2", "1 3", "10 4"}

// Style returns the CSS rules of the elements that SVG methods return.
func Style() string {
	var b strings.Builder
	rules := func(background, text, grid string, lines [Colors]string) string {
		var b strings.Builder
		fmt.Fprintf(&b, ".chart{--back:%s;--text:%s;--grid:%s;", background, text, grid)
		for i, color := range lines {
			fmt.Fprintf(&b, "--line%d:%s;", i, color)
		}
		b.WriteString("}")
		return b.String()
	}
	b.WriteString(rules("#ffffff", "#1f2328", "#d8dee4", lightLines))
	fmt.Fprintf(&b, "@media(prefers-color-scheme:dark){%s}", rules("#0d1117", "#e6edf3", "#30363d", darkLines))
	b.WriteString(".chart text{fill:var(--text);font:13px system-ui,sans-serif}.chart .title{font-weight:600;font-size:15px}.chart .row{font-size:11px}" +
		".chart .grid{stroke:var(--grid);fill:none}.chart .frame{fill:var(--back)}.chart .line{fill:none;stroke-width:1.6;stroke-linejoin:round}" +
		".chart .band{opacity:.18;stroke:none}.chart .dot{stroke:none}.chart .bar{stroke:var(--back)}.chart .mark{stroke:var(--text);stroke-dasharray:2 3;fill:none}" +
		".chart image{image-rendering:pixelated}")
	for i := range lightLines {
		fmt.Fprintf(&b, ".chart .c%d{stroke:var(--line%[1]d)}.chart .b%[1]d{fill:var(--line%[1]d)}", i)
	}
	return b.String()
}

// look returns the colour class and the dashes of line i.
func look(i int) (color int, dash string) {
	return i % Colors, dashes[i/Colors%len(dashes)]
}
