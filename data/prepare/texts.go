package prepare

import (
	"context"

	"octet/data"
	"octet/tokenizer"
)

// Texts calls visit with the text of each document of the sources, files and folders as in Options, in
// order. A long text comes in parts; last says that it ends with this one. field is that of JSON lines
// and the column of tables; empty: text. text is valid until visit returns. leftOut counts files in
// folders that are not text.
func Texts(ctx context.Context, sources []string, field string, visit func(text []byte, last bool)) (leftOut int64, err error) {
	o := &Options{Sources: sources, Kind: data.KindDocuments, Field: field, Tokenizer: tokenizer.OfBytes()}
	if err := o.check(); err != nil {
		return 0, err
	}
	list, leftOut, err := findSources(o)
	if err != nil {
		return 0, err
	}
	b, w := &batch{}, newWorker(o)
	fresh := func() *batch {
		*b = batch{items: b.items[:0], bytes: b.bytes[:0], ends: b.ends[:0]}
		return b
	}
	send := func(b *batch) error {
		for i := range b.items {
			it := &b.items[i]
			switch {
			case it.leftOut:
				leftOut++
			case !it.json:
				visit(b.span(it.first), !it.part || it.ends)
			default:
				if err := w.record.parseLine(b.span(it.first), o); err != nil {
					return badInput("%s: %w", placeOf(list, it.next), err)
				}
				visit(w.record.values[0], true)
				w.record.forget()
			}
		}
		return b.err
	}
	r := &reader{Options: o, ctx: ctx, sources: list, fresh: fresh, send: send}
	return leftOut, r.run(position{})
}
