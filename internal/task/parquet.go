package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	pq "github.com/parquet-go/parquet-go"

	"octet/internal/parquet"
)

// EachParquetRow calls f with each row of a Parquet table of this many bytes. Errors have the number
// of the row.
func EachParquetRow(file io.ReaderAt, size int64, f func(Row) error) (err error) {
	defer func() { // the library panics at some damaged files
		if p := recover(); p != nil {
			err = fmt.Errorf("the Parquet table is damaged: %v", p)
		}
	}()
	table, err := parquet.Open(file, size)
	if err != nil {
		return fmt.Errorf("it is %w", err)
	}
	number := 0
	for _, group := range table.RowGroups() {
		rows := group.Rows()
		buffer := make([]pq.Row, 64)
		for {
			n, err := rows.ReadRows(buffer)
			if err != nil && !errors.Is(err, io.EOF) {
				return errors.Join(fmt.Errorf("row %d: the Parquet table is damaged: %w", number+1, err), rows.Close())
			}
			for _, r := range buffer[:n] {
				number++
				row, err := rowOf(table.Schema(), r)
				if err == nil {
					err = f(row)
				}
				if err != nil {
					return errors.Join(fmt.Errorf("row %d: %w", number, err), rows.Close())
				}
			}
			if err != nil || n == 0 {
				break
			}
		}
		if err := rows.Close(); err != nil {
			return err
		}
	}
	return nil
}

// rowOf returns a row as a line of a JSONL export has it.
func rowOf(schema *pq.Schema, r pq.Row) (Row, error) {
	var value any
	if err := schema.Reconstruct(&value, r); err != nil {
		return nil, err
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("it has no columns")
	}
	row := Row{}
	for name, v := range fields {
		raw, err := json.Marshal(plain(v))
		if err != nil {
			return nil, fmt.Errorf("the column %s: %w", name, err)
		}
		row[name] = raw
	}
	return row, nil
}

// plain returns a value without Parquet's structure of lists: a group list of a group with one field.
func plain(v any) any {
	switch v := v.(type) {
	case []byte:
		return string(v)
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = plain(e)
		}
		return list
	case map[string]any:
		if items, ok := v["list"].([]any); ok && len(v) == 1 {
			list := make([]any, len(items))
			for i, e := range items {
				list[i] = plain(e)
				if m, ok := e.(map[string]any); ok && len(m) == 1 {
					for _, only := range m {
						list[i] = plain(only)
					}
				}
			}
			return list
		}
		fields := make(map[string]any, len(v))
		for name, e := range v {
			fields[name] = plain(e)
		}
		return fields
	}
	return v
}
