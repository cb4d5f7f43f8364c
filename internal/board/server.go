package board

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"octet/internal/report"
	"octet/internal/runs"
)

// Server serves the pages.
type Server struct {
	watch    watch
	listener net.Listener // nil without Listen
}

// Listen returns a server for the runs in a folder, which listens on a port of this machine's
// loopback address; port 0 is a free one.
func Listen(dir string, port int) (*Server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	// Pages stay open when a board ends and another starts, whose versions must be others.
	return &Server{watch{dir: dir, version: int(time.Now().Unix())}, l}, nil
}

// URL returns the address of the list.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// headerTimeout is the time that a client has to send a request's header.
const headerTimeout = 5 * time.Second

// Serve answers requests until ctx is cancelled.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns its reason
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler answers these requests, and refuses all others:
//
//	GET /                     the list of runs
//	GET /rows?version=N       its rows as JSON; no content if N is their version
//	GET /report?run=A&run=B   a report of some runs, or of all
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.list)
	mux.HandleFunc("GET /rows", s.rows)
	mux.HandleFunc("GET /report", s.report)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("X-Frame-Options", "DENY")
		if fromElsewhere(r) {
			http.Error(w, "the board answers its own pages only", http.StatusForbidden)
			return
		}
		if !forThisMachine(r.Host) {
			// A page from elsewhere whose name resolves to this machine would be of its own
			// origin here.
			http.Error(w, "the board answers for localhost only: open http://localhost:PORT", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// forThisMachine reports whether a request's Host names this machine, with any port, as
// that of a tunnel.
func forThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// fromElsewhere reports whether a page of another origin makes a request, other than by a link
// to the board. Browsers let no such page read the answer, but it could make the board work.
func fromElsewhere(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return r.Header.Get("Sec-Fetch-Mode") != "navigate"
	}
	origin := r.Header.Get("Origin")
	_, host, _ := strings.Cut(origin, "://")
	return origin != "" && host != r.Host
}

func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	rows, _, err := s.watch.rows()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(listPage(s.watch.dir, rows, err)) // the reader may have left
}

// report serves a report of the runs that the query names.
func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	names := r.URL.Query()["run"]
	var html []byte
	s.watch.with(names, func(list []*runs.Run) {
		if len(list) > 0 {
			html = report.Page(report.Options{Title: title(names, list), Script: pollScript + reportScript, Back: "/"}, runs.GroupsOf(list))
		}
	})
	if html == nil {
		http.Error(w, fmt.Sprintf("%s holds no run of this name", s.watch.dir), http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(html)
}

func title(names []string, list []*runs.Run) string {
	if len(names) == 1 {
		return list[0].Name
	}
	return fmt.Sprintf("%d runs", len(list))
}

// reportPath returns the address of a run's report.
func reportPath(name string) string { return "/report?" + url.Values{"run": {name}}.Encode() }

// rows answers with the rows and their version. Pages ask twice a second. Streams of
// events would block the seventh tab, since a browser has six connections to a server.
func (s *Server) rows(w http.ResponseWriter, r *http.Request) {
	rows, version, _ := s.watch.rows() // after an error these are the last ones that were read
	if r.URL.Query().Get("version") == strconv.Itoa(version) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(rowsAnswer{version, rows}) // the reader may have left
}

// rowsAnswer is the answer to GET /rows.
type rowsAnswer struct {
	Version int   `json:"version"`
	Rows    []Row `json:"rows"`
}
