package prepare

import (
	"errors"
	"fmt"
	"io"

	pq "github.com/parquet-go/parquet-go"

	"octet/data"
	"octet/internal/parquet"
)

// parquet reads the rows of a table: its columns page by page, so that no more than a page of each is
// in memory.
func (r *reader) parquet(o *opened, at position) (err error) {
	// The library panics at some damaged files.
	defer func() {
		if p := recover(); p != nil {
			err = badInput("%s is damaged: %v", o.source.Path, p)
		}
		if err != nil && o.failed != nil {
			err = o.failed
		}
	}()
	f, err := parquet.Open(o, o.source.Bytes)
	if err != nil {
		return badInput("%s is %w", o.source.Path, err)
	}
	names, err := r.columns(f)
	if err != nil {
		return badInput("%s: %w", o.source.Path, err)
	}
	skip, rows := at.Number, f.NumRows()
	r.skipped += o.source.part(skip, rows)
	at.Number = 0
	for _, group := range f.RowGroups() {
		if n := group.NumRows(); skip >= n {
			skip, at.Number = skip-n, at.Number+n
			continue
		}
		at.Number += skip
		if err := r.rowGroup(o, group, names, skip, &at, rows); err != nil {
			return err
		}
		skip = 0
	}
	return nil
}

// part returns the bytes of a part of the rows.
func (s *source) part(rows, all int64) int64 {
	return int64(float64(s.Bytes) * float64(rows) / float64(max(all, 1)))
}

// columns returns the indices of the columns to read: those of the fields, or the role and the content
// of messages.
func (r *reader) columns(f *pq.File) (list []int, err error) {
	var there []string
	for _, c := range f.Root().Columns() {
		there = append(there, fmt.Sprintf("%.80q", c.Name()))
	}
	for _, name := range r.fields() {
		c := f.Root().Column(name)
		switch {
		case c == nil:
			return nil, missingField(name, r.Kind, there)
		case r.Kind == data.KindMessages:
			role, content := leafOf(c, "role"), leafOf(c, "content")
			if role == nil || content == nil || role.MaxRepetitionLevel() != 1 || content.MaxRepetitionLevel() != 1 {
				return nil, fmt.Errorf("the column %q is not a list of structures with role and content", name)
			}
			if !isText(role) || !isText(content) {
				return nil, fmt.Errorf("role or content of the column %q is not of strings", name)
			}
			return []int{role.Index(), content.Index()}, nil
		case !c.Leaf() || c.Repeated() || !isText(c):
			return nil, fmt.Errorf("the column %q is not of strings", name)
		}
		list = append(list, c.Index())
	}
	return list, nil
}

func isText(c *pq.Column) bool { return c.Leaf() && c.Type().Kind() == pq.ByteArray }

// leafOf returns the leaf with a name below a column.
func leafOf(c *pq.Column, name string) *pq.Column {
	for _, child := range c.Columns() {
		if child.Leaf() && child.Name() == name {
			return child
		}
		if found := leafOf(child, name); found != nil {
			return found
		}
	}
	return nil
}

// rowGroup reads rows of a group.
func (r *reader) rowGroup(o *opened, group pq.RowGroup, columns []int, skip int64, at *position, rows int64) error {
	var list []*column
	defer func() {
		for _, c := range list {
			_ = c.pages.Close() // it was only read
		}
	}()
	for _, i := range columns {
		c := &column{pages: group.ColumnChunks()[i].Pages()}
		list = append(list, c)
		if skip > 0 {
			if err := c.pages.SeekToRow(skip); err != nil {
				return badInput("%s is damaged: %w", o.source.Path, err)
			}
		}
	}
	total := at.Number - skip + group.NumRows()
	for at.Number < total {
		at.Number++
		if err := r.row(o, list, *at); err != nil {
			var damaged *damagedPage
			if errors.As(err, &damaged) {
				return badInput("%s is damaged at row %d: %w", o.source.Path, at.Number, damaged.error)
			}
			return err
		}
		o.read = o.source.part(at.Number, rows)
		if err := r.full(o); err != nil {
			return err
		}
	}
	return nil
}

// row reads a row.
func (r *reader) row(o *opened, list []*column, at position) error {
	values := make([][]pq.Value, len(list))
	for i, c := range list {
		var err error
		if values[i], err = c.row(); err != nil {
			return err
		}
	}
	size := 0
	for _, v := range values {
		for _, x := range v {
			size += len(x.ByteArray())
		}
	}
	if size > r.limits.document {
		return badInput("%s: row %d has more than %d MiB: octet reads a document from each row", o.source.Path, at.Number, r.limits.document>>20)
	}
	b := r.batch
	it := item{next: at}
	if r.Kind == data.KindMessages {
		if len(values[0]) != len(values[1]) {
			return &damagedPage{errors.New("role and content differ in number")}
		}
		for k := range values[0] {
			for i := range 2 {
				v := values[i][k]
				if v.IsNull() {
					if len(values[0]) == 1 && values[0][0].IsNull() && values[1][0].IsNull() {
						b.add(it) // without messages
						return nil
					}
					return badInput("%s: row %d: message %d has a %s that is null, not a string", o.source.Path, at.Number, k+1, []string{"role", "content"}[i])
				}
				b.bytes = append(b.bytes, v.ByteArray()...)
				b.endSpan()
				it.spans++
			}
		}
		b.add(it)
		return nil
	}
	for i, v := range values {
		if len(v) != 1 || v[0].IsNull() {
			return badInput("%s: row %d: the column %q is null, not a string", o.source.Path, at.Number, r.fields()[i])
		}
		b.bytes = append(b.bytes, v[0].ByteArray()...)
		b.endSpan()
		it.spans++
	}
	b.add(it)
	return nil
}

// damagedPage is an error of the library.
type damagedPage struct{ error }

// column reads the values of one column of a row group.
type column struct {
	pages  pq.Pages
	page   pq.Page
	reader pq.ValueReader
	buffer [64]pq.Value
	ahead  []pq.Value // of buffer, not returned yet
	values []pq.Value // of the row
	ended  bool
}

// row returns the values of the next row, which are valid until the next call.
func (c *column) row() ([]pq.Value, error) {
	c.values = c.values[:0]
	for {
		if len(c.ahead) == 0 {
			if err := c.fill(); err != nil {
				return nil, err
			}
			if c.ended {
				break
			}
		}
		if len(c.values) > 0 && c.ahead[0].RepetitionLevel() == 0 {
			break
		}
		c.values = append(c.values, c.ahead[0])
		c.ahead = c.ahead[1:]
	}
	if len(c.values) == 0 {
		return nil, &damagedPage{io.ErrUnexpectedEOF}
	}
	return c.values, nil
}

// fill reads values of the current page or the next one. Values point into their page, so those of an
// unfinished row are copied before it goes.
func (c *column) fill() error {
	for !c.ended {
		if c.reader != nil {
			n, err := c.reader.ReadValues(c.buffer[:])
			if err != nil && !errors.Is(err, io.EOF) {
				return &damagedPage{err}
			}
			if n > 0 {
				c.ahead = c.buffer[:n]
				return nil
			}
			for i := range c.values {
				c.values[i] = c.values[i].Clone()
			}
			pq.Release(c.page)
			c.reader, c.page = nil, nil
		}
		page, err := c.pages.ReadPage()
		if errors.Is(err, io.EOF) {
			c.ended = true
			break
		}
		if err != nil {
			return &damagedPage{err}
		}
		c.page, c.reader = page, page.Values()
	}
	return nil
}
