package board

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeRun(t *testing.T, dir, metrics string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte("recipe = \"bf16\"\n[train]\nsteps = 9\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(metrics), 0o600))
}

// get requests a path under a Host and returns the answer.
func get(h http.Handler, method, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestHandler(t *testing.T) {
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "a"), `{"step":1,"loss":2.5}`+"\n"+`{"step":2,"loss":null}`+"\n")
	writeRun(t, filepath.Join(dir, "sub", "b<i>"), "")
	h := (&Server{watch: watch{dir: dir}}).Handler()
	for _, c := range []struct {
		method, host, path string
		status             int
		text               string
	}{
		{"GET", "localhost:1234", "/", 200, "sub/b&lt;i&gt;"},
		{"GET", "127.0.0.1", "/", 200, "Compare all runs"},
		{"GET", "[::1]:80", "/report?run=a", 200, "<h1>a</h1>"},
		{"GET", "localhost", "/report?run=sub/b%3Ci%3E", 200, "<h1>sub/b&lt;i&gt;</h1>"},
		{"GET", "localhost", "/report", 200, "2 runs"},
		{"GET", "localhost", "/report?run=../a", 404, "holds no run of this name"},
		{"GET", "localhost", "/report?run=/etc", 404, "holds no run"},
		{"GET", "localhost", "/a/config.toml", 404, ""},
		{"POST", "localhost", "/", 405, ""},
		{"DELETE", "localhost", "/report?run=a", 405, ""},
		{"GET", "evil.example", "/", 403, "localhost only"},
		{"GET", "127.0.0.1.evil.example:80", "/events", 403, "localhost only"},
		{"GET", "192.168.0.1", "/", 403, "localhost only"},
	} {
		w := get(h, c.method, c.host, c.path)
		require.Equal(t, c.status, w.Code, "%+v", c)
		require.Contains(t, w.Body.String(), c.text, "%+v", c)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
}

// TestEvents receives rows after each change.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "a")
	writeRun(t, run, `{"step":1,"loss":2.5}`+"\n")
	server := httptest.NewServer((&Server{watch: watch{dir: dir}}).Handler())
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events", nil)
	require.NoError(t, err)
	answer, err := server.Client().Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	lines := bufio.NewReader(answer.Body)
	next := func() (rows []Row) {
		text, err := lines.ReadString('\n')
		require.NoError(t, err)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		data, ok := strings.CutPrefix(text, "data: ")
		require.True(t, ok, text)
		require.NoError(t, json.Unmarshal([]byte(data), &rows))
		return rows
	}
	rows := next()
	require.Len(t, rows, 1)
	require.Equal(t, 1, rows[0].Step)
	require.Equal(t, 2.5, *rows[0].Loss)
	require.Equal(t, 9, rows[0].Steps)
	require.Equal(t, "not done", rows[0].State)
	f, err := os.OpenFile(filepath.Join(run, "metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"step":9,"loss":null}` + "\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	rows = next()
	require.Equal(t, 9, rows[0].Step)
	require.Nil(t, rows[0].Loss)
	require.Equal(t, "done", rows[0].State)
}

// TestConcurrentReaders asks for everything at once; the race detector watches.
func TestConcurrentReaders(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		writeRun(t, filepath.Join(dir, fmt.Sprint(i)), `{"step":1,"loss":2.5}`+"\n")
	}
	h := (&Server{watch: watch{dir: dir}}).Handler()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, path := range []string{"/", "/report", "/report?run=1"} {
				get(h, "GET", "localhost", path)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 200, get(h, "GET", "localhost", "/report?run=3").Code)
}
