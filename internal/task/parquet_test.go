package task

import (
	"bytes"
	"encoding/json"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
)

type arcRow struct {
	Question string `parquet:"question"`
	Choices  struct {
		Text  []string `parquet:"text,list"`
		Label []string `parquet:"label,list"`
	} `parquet:"choices"`
	AnswerKey *string `parquet:"answerKey"`
	Label     int64   `parquet:"number"`
}

func arcTable(t testing.TB, groups int) []byte {
	t.Helper()
	var file bytes.Buffer
	w := pq.NewGenericWriter[arcRow](&file)
	for range groups {
		for i, key := range []string{"B", "A"} {
			row := arcRow{Question: "é?", AnswerKey: &key, Label: int64(i)}
			row.Choices.Text, row.Choices.Label = []string{"one", "two"}[:2-i], []string{"A", "B"}[:2-i]
			_, err := w.Write([]arcRow{row})
			require.NoError(t, err)
		}
		require.NoError(t, w.Flush())
	}
	require.NoError(t, w.Close())
	return file.Bytes()
}

// A row of a table is what a line of JSON lines has: lists and structures, in several row groups.
func TestParquetRows(t *testing.T) {
	raw := arcTable(t, 3)
	var rows []string
	require.NoError(t, EachParquetRow(bytes.NewReader(raw), int64(len(raw)), func(r Row) error {
		line, err := json.Marshal(r)
		rows = append(rows, string(line))
		return err
	}))
	require.Len(t, rows, 6)
	require.JSONEq(t, `{"question":"é?","choices":{"text":["one","two"],"label":["A","B"]},"answerKey":"B","number":0}`, rows[0])
	require.JSONEq(t, `{"question":"é?","choices":{"text":["one"],"label":["A"]},"answerKey":"A","number":1}`, rows[5])

	c, err := ConverterOf("arc_easy")
	require.NoError(t, err)
	err = EachParquetRow(bytes.NewReader(raw), int64(len(raw)), func(r Row) error {
		r["answerKey"] = json.RawMessage(`"Z"`)
		_, err := c.Document(r)
		return err
	})
	require.EqualError(t, err, `row 1: choices: 2 texts with the labels ["A" "B"]; the answerKey is "Z"`)
	for _, damaged := range [][]byte{nil, raw[:len(raw)-1], raw[len(raw)-8:], append(bytes.Clone(raw[:4]), raw[60:]...)} {
		require.Error(t, EachParquetRow(bytes.NewReader(damaged), int64(len(damaged)), func(Row) error { return nil }))
	}
}

func FuzzParquetRows(f *testing.F) {
	f.Add(arcTable(f, 1))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<12 {
			t.Skip()
		}
		n := 0
		_ = EachParquetRow(bytes.NewReader(raw), int64(len(raw)), func(Row) error {
			if n++; n == 1000 {
				return bytes.ErrTooLarge
			}
			return nil
		})
	})
}
