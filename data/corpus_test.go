package data

import (
	"encoding/json"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// mapFS returns a file system of text files.
func mapFS(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return fsys
}

func TestCorpusHashIsStable(t *testing.T) {
	c, err := OpenEmbedded(mapFS(map[string]string{
		"b.go":     "package b\n",
		"a/a.go":   "package a\n",
		"a-b/c.go": "package c\n",
	}), Options{ValBytes: 100})
	require.NoError(t, err)
	// SHA-256 of "a-b/c.go", 0, 10 as eight bytes, "package c\n", and so on,
	// computed independently.
	require.Equal(t, "f113b391726cdf4e63bfe1d6266a928378f0c4b857b13a1990a563eae090ebdc", c.Info.SHA256)
	require.Equal(t, "package c\n\x00package a\n\x00package b\n", string(c.Train.(Text)))
}

func TestCorpusHashCoversPathsAndOrder(t *testing.T) {
	hash := func(files map[string]string) string {
		c, err := OpenEmbedded(mapFS(files), Options{})
		require.NoError(t, err)
		return c.Info.SHA256
	}
	base := hash(map[string]string{"a.go": "xy", "b.go": "z"})
	for name, files := range map[string]map[string]string{
		"content":  {"a.go": "xx", "b.go": "z"},
		"path":     {"a.go": "xy", "c.go": "z"},
		"boundary": {"a.go": "x", "b.go": "yz"},
		"order":    {"b.go": "xy", "a.go": "z"},
		"more":     {"a.go": "xy", "b.go": "z", "c.go": "w"},
	} {
		require.NotEqual(t, base, hash(files), name)
	}
	require.Equal(t, base, hash(map[string]string{"a.go": "xy", "b.go": "z", "empty.go": ""}))
}

func TestCheckSame(t *testing.T) {
	saved := Info{Kind: KindGoSource, GoVersion: "go1.26.7", SHA256: "aaaa", TrainTokens: 90, ValTokens: 10}
	require.NoError(t, CheckSame(saved, saved))

	opened := saved
	opened.SHA256, opened.GoVersion = "bbbb", "go1.26.8"
	err := CheckSame(saved, opened)
	for _, part := range []string{"aaaa", "bbbb", "go1.26.7", "go1.26.8", "new run"} {
		require.ErrorContains(t, err, part)
	}

	// The error names the first file that differs, which may be the run's own log.
	saved.Files = []File{{Path: "a.txt", Bytes: 1, HeldOut: 1}, {Path: "b.txt", Bytes: 2}}
	opened = saved
	opened.SHA256 = "bbbb"
	for want, files := range map[string][]File{
		`"log.txt" is new`:               {saved.Files[0], saved.Files[1], {Path: "log.txt", Bytes: 3}},
		`"a.txt" is missing`:             {saved.Files[1]},
		`"b.txt" has 3 bytes, not 2`:     {saved.Files[0], {Path: "b.txt", Bytes: 3}},
		"with unchanged names and sizes": saved.Files,
		`"b.txt" is new`:                 {saved.Files[0], saved.Files[1], saved.Files[1]}, // the second from another folder
		"go1.26.7, 2 files), but this":   {saved.Files[0], saved.Files[1]},
		"go1.26.7, 1 file);":             saved.Files[:1],
	} {
		opened.Files = files
		require.ErrorContains(t, CheckSame(saved, opened), want)
	}

	opened = saved
	opened.TrainTokens, opened.ValTokens = 80, 20
	require.ErrorContains(t, CheckSame(saved, opened), "data.val_bytes")
}

func TestInfoSurvivesJSON(t *testing.T) {
	c, err := OpenEmbedded(mapFS(map[string]string{"a.go": "xy", "b.go": "z"}), Options{ValBytes: 10})
	require.NoError(t, err)
	text, err := json.Marshal(c.Info)
	require.NoError(t, err)
	var back Info
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, c.Info, back)
	require.NoError(t, CheckSame(back, c.Info))
}

func TestReadTokensOutOfRange(t *testing.T) {
	shards, _ := openTestShards(t, Options{}, shardFile{"a.bin", ramp(0, 10)})
	for name, tokens := range map[string]Tokens{"text": Text("0123456789"), "shards": shards.Train} {
		require.EqualValues(t, 10, tokens.Len())
		for _, at := range []int64{-1, 7, 10, 1 << 62, -1 << 63} {
			require.ErrorContains(t, tokens.ReadTokens(make([]int32, 4), at), "outside the stream", "%s at %d", name, at)
		}
		require.NoError(t, tokens.ReadTokens(make([]int32, 4), 6), name)
		require.NoError(t, tokens.ReadTokens(nil, 10), name)
		require.Error(t, tokens.ReadTokens(make([]int32, 11), 0), name)
	}
}
