package config

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// read parses a config from a file's text, without recipe and checks.
func read(text string) (train.Config, error) {
	var c train.Config
	s, err := parse("test", text)
	if err != nil {
		return c, err
	}
	return c, s.each(func(k key, value reflect.Value) { k.field(&c).Set(value) })
}

// fill sets a field to a random value, often a difficult one.
func fill(v reflect.Value, r *rand.Rand) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), r)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), r)
		}
	case reflect.Slice:
		if n := r.IntN(4); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(v.Index(i), r)
			}
		}
	case reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), r)
		}
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(r.Uint64()))
	case reflect.Float64:
		bits := r.Uint64()
		if math.IsNaN(math.Float64frombits(bits)) {
			bits = 1 << 63 // minus zero
		}
		v.SetFloat(math.Float64frombits(bits))
	case reflect.String:
		words := []string{"", "a b", `"`, `\`, "é\n\t\x00\x7f", "'", "#=[]", "layers.0.*", "\U0001f600", "\u2028"}
		v.SetString(words[r.IntN(len(words))])
	}
}

func bits(c train.Config) (list []uint64) {
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Float64:
			list = append(list, math.Float64bits(v.Float()))
		}
	}
	walk(reflect.ValueOf(c))
	return list
}

// Writing and reading preserves all values of a config.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var c train.Config
		fill(reflect.ValueOf(&c).Elem(), r)
		text, err := Marshal(c)
		require.NoError(t, err)
		again, err := read(string(text))
		require.NoError(t, err, string(text))
		require.Equal(t, c, again, string(text))
		require.Equal(t, bits(c), bits(again), "minus zero is not zero")
	}
}

func TestMarshalNamesWhatItCannotWrite(t *testing.T) {
	c := train.Default()
	c.Model.Init = "\xff"
	_, err := Marshal(c)
	require.ErrorContains(t, err, "model.init")
}

// Marshal refuses a config that is too long to be read again: a run could not be resumed.
func TestMarshalOfTooMuch(t *testing.T) {
	c := train.Default()
	for len(c.Data.Paths)*50 < maxFile {
		c.Data.Paths = append(c.Data.Paths, fmt.Sprintf("/data/%044d.txt", len(c.Data.Paths)))
	}
	_, err := Marshal(c)
	require.ErrorContains(t, err, "data.paths")
	c.Data.Paths = c.Data.Paths[:len(c.Data.Paths)/2]
	text, err := Marshal(c)
	require.NoError(t, err)
	_, err = parse("c.toml", string(text))
	require.NoError(t, err)
}

// Any text gives a config or an error, and a config that was read can be
// written and read again.
func FuzzRead(f *testing.F) {
	f.Add(contract)
	for _, s := range []string{
		"", "=", "[", "[[", "a", "[model]\n[model]", "model.layers = 0x10", "precision.rows = [{scope='a'}, {gemm=\"x\"}]",
		"[[precision.rows]]\n[[precision.rows]]", "[model]\nlayers=1\nlayers=2", "model={layers=3, dim=1}", "[precision.rows.x]\na=1",
		"data.paths=[\n\"a\",\n]", "optimizer.betas=[nan,-inf]", "seed=1979-05-27T07:32:00Z", "\xef\xbb\xbfseed=1", "precision=[]", "''=1", "model.''=1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := read(text)
		if err != nil || len(text) > maxFile/16 { // a short form may be too long when written in full
			return
		}
		written, err := Marshal(c)
		require.NoError(t, err)
		again, err := read(string(written))
		require.NoError(t, err, string(written))
		second, err := Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(written), string(second))
	})
}

// Any argument gives a config or an error. Written to a file and read again, the config is
// the same, as a run's config.toml requires.
func FuzzAssignment(f *testing.F) {
	for _, s := range []string{
		"seed=1", "data.paths=[\"a\"]", "precision.rows=[{scope=\"a\",format=\"bf16\"}]", "optimizer.betas=[1,", "model.init=\"\"\"x", "=", "..=1", "precision.rows={}",
		`model.preset="small"`, `recipe="bf16"`, "precision.schedule=[{step=9,recipe=\"bf16\"}]", "precision.history=1", "model.tied=true", `model.activation="relu"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Load(Args{Assignments: []string{text}})
		require.True(t, (l == nil) == (err != nil))
		if err != nil {
			return
		}
		written, err := Marshal(l.Config)
		require.NoError(t, err)
		file, err := parse("config.toml", string(written))
		require.NoError(t, err)
		again, err := resolve(file, nil, "")
		require.NoError(t, err)
		require.Equal(t, l.Config, again.Config)
	})
}
