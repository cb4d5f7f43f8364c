package board

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

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
		{"GET", "127.0.0.1.evil.example:80", "/rows", 403, "localhost only"},
		{"GET", "192.168.0.1", "/", 403, "localhost only"},
	} {
		w := get(h, c.method, c.host, c.path)
		require.Equal(t, c.status, w.Code, "%+v", c)
		require.Contains(t, w.Body.String(), c.text, "%+v", c)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	}
}

// TestForeignPages refuses requests that pages of other origins make; a link to the board works.
func TestForeignPages(t *testing.T) {
	h := (&Server{watch: watch{dir: t.TempDir()}}).Handler()
	for _, c := range []struct {
		site, mode, origin string
		status             int
	}{
		{"", "", "", 200},
		{"none", "navigate", "", 200},
		{"same-origin", "cors", "http://localhost:80", 200},
		{"", "", "http://localhost:80", 200},
		{"cross-site", "navigate", "", 200},
		{"cross-site", "no-cors", "", 403},
		{"same-site", "cors", "http://localhost:81", 403},
		{"", "", "http://evil.example", 403},
		{"", "", "http://localhost:8080", 403},
		{"", "", "null", 403},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = "localhost:80"
		for name, value := range map[string]string{"Sec-Fetch-Site": c.site, "Sec-Fetch-Mode": c.mode, "Origin": c.origin} {
			if value != "" {
				r.Header.Set(name, value)
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, c.status, w.Code, "%+v", c)
	}
}

// TestRows asks for rows before and after changes.
func TestRows(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "a")
	writeRun(t, run, `{"step":1,"loss":2.5}`+"\n")
	s := &Server{watch: watch{dir: dir}}
	next := func(version int) (a rowsAnswer) {
		w := get(s.Handler(), "GET", "localhost", fmt.Sprint("/rows?version=", version))
		require.Equal(t, "application/json", w.Header().Get("Content-Type"))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
		require.Len(t, a.Rows, 1)
		return a
	}
	a := next(-1)
	require.Equal(t, 1, a.Rows[0].Step)
	require.Equal(t, 2.5, *a.Rows[0].Loss)
	require.Equal(t, 9, a.Rows[0].Steps)
	require.Equal(t, "not done", a.Rows[0].State)
	s.watch.read = time.Time{}
	w := get(s.Handler(), "GET", "localhost", fmt.Sprint("/rows?version=", a.Version))
	require.Equal(t, http.StatusNoContent, w.Code)
	require.Empty(t, w.Body.String())

	f, err := os.OpenFile(filepath.Join(run, "metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"step":9,"loss":null}` + "\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	s.watch.read = time.Time{}
	a = next(a.Version)
	require.Equal(t, 9, a.Rows[0].Step)
	require.Nil(t, a.Rows[0].Loss)
	require.Equal(t, "done", a.Rows[0].State)
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
			for _, path := range []string{"/", "/rows", "/report", "/report?run=1"} {
				get(h, "GET", "localhost", path)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 200, get(h, "GET", "localhost", "/report?run=3").Code)
}
