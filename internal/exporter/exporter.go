// Package exporter answers Prometheus: GET /metrics, in its text format, says where a
// run is. GET /healthz says whether it makes steps, for a supervisor that restarts
// what hangs. Nothing else in octet listens on the network, or speaks to it.
//
// A run publishes what a step had to say; a request is answered from what was
// published last, so that it never waits for a step, nor a step for it. The numbers
// are those of metrics.jsonl and timing.jsonl, in the base units that Prometheus asks
// for (seconds, bytes, hertz), and moments are given as Unix times: the age of a
// checkpoint is time() - octet_checkpoint_timestamp_seconds, which goes on growing
// while a run hangs.
//
// Prometheus's own client library does all this too, with seven modules behind it and
// registries that a single run has no use for.
package exporter

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"octet/internal/writers"
)

// A scrape is one small request a few seconds. Whoever is slower, or comes in
// numbers, must not keep sockets that checkpoints may need as files.
const (
	patience       = 5 * time.Second
	maxConnections = 16
	maxHeader      = 16 << 10 // bytes
)

// Exporter listens until it is closed. A nil Exporter takes what is published and
// tells nobody.
type Exporter struct {
	server  *http.Server
	address string
	build   Build
	latest  atomic.Pointer[State] // nil before the first step
	ended   atomic.Pointer[end]   // nil while the run trains
	now     func() time.Time
}

// end is how training ended.
type end struct{ err error }

// Build is the program that answers.
type Build struct{ Version, Go string }

// State is what a run publishes behind a step. It is not changed any more.
type State struct {
	At      time.Time     // when the step was over
	Timeout time.Duration // the run hangs if the next step takes longer
	Steps   int           // of the whole run
	Metrics writers.Metrics
	Timing  writers.Timing
	Recipe  string
	Backend string
	Tokens  int64           // trained on by this process; a rewind takes none away, as it does from Metrics
	ValLoss *writers.Float  // the latest, of this process
	Skipped int             // updates that were left out, by this process
	Health  writers.Metrics // of the last step of this process whose casts and channels were measured; Step 0: none

	Checkpoint   int       // step of the latest; 0: none
	CheckpointAt time.Time // when it was whole; zero: before this process began
}

// Open listens on an address as Address understands it. Port 0 is one that is free.
func Open(address string, b Build) (*Exporter, error) { return listen(address, b, patience) }

// listen gives a client so long to ask, and as long to take the answer.
func listen(address string, b Build, patience time.Duration) (*Exporter, error) {
	at, err := Address(address)
	if err != nil {
		return nil, err
	}
	network := "tcp" // of [::], every address of both families
	if at.Addr().Is4() {
		network = "tcp4" // 0.0.0.0 with tcp would listen for IPv6, too
	}
	l, err := net.Listen(network, at.String())
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr %s: %w; name another port, or 0 for one that is free", address, err)
	}
	e := &Exporter{address: l.Addr().String(), build: b, now: time.Now}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.answer)
	mux.HandleFunc("GET /healthz", e.answerHealth)
	e.server = &http.Server{
		Handler: mux, ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // the terminal is the run's
	}
	go func() { _ = e.server.Serve(&limited{Listener: l}) }() // it ends with Close
	return e, nil
}

// Address reads HOST:PORT. Without a host it is this machine's loopback: only who
// names another address lets others read. Names are not looked up, but for localhost,
// since that would ask the network.
func Address(text string) (netip.AddrPort, error) {
	full := text
	if !strings.Contains(full, ":") {
		full = ":" + full
	}
	if host, port, err := net.SplitHostPort(full); err == nil && (host == "" || host == "localhost") {
		full = net.JoinHostPort("127.0.0.1", port)
	}
	at, err := netip.ParseAddrPort(full)
	if err != nil {
		return at, fmt.Errorf("--metrics-addr %q is no HOST:PORT: give a port, such as 9100, for this machine alone, or an IP address with it, such as 0.0.0.0:9100 or [::]:9100, for others to read", text)
	}
	return at, nil
}

// URL is what to give to who reads.
func (e *Exporter) URL() string { return "http://" + e.address + "/metrics" }

// Publish replaces what is told.
func (e *Exporter) Publish(s *State) {
	if e != nil {
		e.latest.Store(s)
	}
}

// End tells that training ended: with the error that stopped it, or nil.
func (e *Exporter) End(err error) {
	if e != nil {
		e.ended.Store(&end{err})
	}
}

// answerHealth answers 200 while the run starts, makes steps or is done, and 503
// where no step came within State.Timeout or an error stopped training. The body is one
// line that says why.
func (e *Exporter) answerHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	status, text := e.health()
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // a client that closed the connection gets no answer
}

func (e *Exporter) health() (status int, text string) {
	if end := e.ended.Load(); end != nil {
		if end.err != nil {
			return http.StatusServiceUnavailable, fmt.Sprintf("training stopped: %v", end.err)
		}
		return http.StatusOK, "training is over"
	}
	s := e.latest.Load()
	if s == nil {
		return http.StatusOK, "starting: no step is done yet"
	}
	last, since := fmt.Sprintf("step %d of %d", s.Metrics.Step, s.Steps), e.now().Sub(s.At)
	if since > s.Timeout {
		return http.StatusServiceUnavailable, fmt.Sprintf("no step since %s, %s ago; the next one was expected within %s", last, since.Round(time.Second), s.Timeout.Round(time.Second))
	}
	return http.StatusOK, fmt.Sprintf("training: %s, %s ago", last, since.Round(time.Second))
}

// Close ends all connections.
func (e *Exporter) Close() error {
	if e == nil {
		return nil
	}
	return e.server.Close()
}

func (e *Exporter) answer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.text()) // a client that closed the connection gets no answer
}

// limited is a listener with so many connections at a time. Who comes when all are
// taken is let in, and the oldest goes: an answer takes less than a millisecond, so
// that the oldest is one who asks for nothing. However many of those there are, who
// asks is answered.
type limited struct {
	net.Listener
	mu   sync.Mutex
	open []*slot // oldest first, maxConnections at most
}

func (l *limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &slot{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == maxConnections {
		_ = l.open[0].Conn.Close() // the server, which is reading from it, does the rest
		l.open = slices.Delete(l.open, 0, 1)
	}
	l.open = append(l.open, s)
	return s, nil
}

type slot struct {
	net.Conn
	of *limited
}

func (s *slot) Close() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.open = slices.DeleteFunc(s.of.open, func(o *slot) bool { return o == s })
	return s.Conn.Close()
}
