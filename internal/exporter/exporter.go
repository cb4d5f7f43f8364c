// Package exporter serves the metrics of a run to Prometheus: GET /metrics returns them in
// its text format. GET /healthz says whether the run makes steps, for a supervisor that
// restarts hung runs. Beside octet board, no other part of Octet uses the network.
//
// A run publishes the state of each step. A request is answered from the last published
// state, so requests and steps never wait for each other. The values are those of
// metrics.jsonl and timing.jsonl in the base units of Prometheus (seconds, bytes, hertz).
// Points in time are Unix times: the age of a checkpoint is
// time() - octet_checkpoint_timestamp_seconds, which keeps growing while a run hangs.
//
// Prometheus's own client library would add seven modules and registries that a single run
// does not need.
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

// Limits for clients. A scrape is one small request every few seconds. Slow or numerous
// clients must not use up the file descriptors that checkpoints need.
const (
	requestTimeout = 5 * time.Second
	maxConnections = 16
	maxHeader      = 16 << 10 // bytes
)

// Exporter listens until it is closed. A nil Exporter discards what is published.
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

// Build identifies the program.
type Build struct{ Version, Go string }

// State is what a run publishes after a step. It must not change afterwards.
type State struct {
	At      time.Time     // end of the step
	Timeout time.Duration // the run hangs if the next step takes longer
	Steps   int           // of the whole run
	Metrics writers.Metrics
	Timing  writers.Timing
	Recipe  string
	Backend string
	Tokens  int64           // trained on by this process; unlike Metrics.Tokens, a rewind does not reduce it
	ValLoss *writers.Float  // the latest of this process
	Skipped int             // updates skipped by this process
	Health  writers.Metrics // of the last step of this process whose casts and channels were measured; Step 0: none

	Checkpoint   int       // step of the latest; 0: none
	CheckpointAt time.Time // when it was complete; zero: before this process began

	Ranks   []Rank                       // times of all ranks in the step before; nil: one rank, or the first step
	Silence func(rank int) time.Duration // since the last sign of life of one of Ranks
}

// Rank are the times of a rank in a step.
type Rank struct {
	Own  time.Duration // outside collectives
	Wait time.Duration // in collectives, and in the exchange before the step
}

// Open listens on an address, see Address. Port 0 selects a free port.
func Open(address string, b Build) (*Exporter, error) { return listen(address, b, requestTimeout) }

// listen is Open with a timeout for a client to send its request, and to read the answer.
func listen(address string, b Build, timeout time.Duration) (*Exporter, error) {
	at, err := Address(address)
	if err != nil {
		return nil, err
	}
	network := "tcp" // [::] listens on all addresses of both families
	if at.Addr().Is4() {
		network = "tcp4" // with tcp, 0.0.0.0 would also listen on IPv6
	}
	l, err := net.Listen(network, at.String())
	if err != nil {
		return nil, fmt.Errorf("--metrics-addr %s: %w; name another port, or 0 for a free one", address, err)
	}
	e := &Exporter{address: l.Addr().String(), build: b, now: time.Now}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.answer)
	mux.HandleFunc("GET /healthz", e.answerHealth)
	e.server = &http.Server{
		Handler: mux, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // the terminal shows only the run's output
	}
	go func() { _ = e.server.Serve(&boundedListener{Listener: l}) }() // Close ends it
	return e, nil
}

// Address parses HOST:PORT. Without a host it returns the loopback address, so other
// machines can read only if the user names another address. The only host name is
// localhost, since a lookup would use the network.
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
		return at, fmt.Errorf("--metrics-addr %q is not HOST:PORT: give a port, such as 9100, to serve this machine only, or an IP address and a port, such as 0.0.0.0:9100 or [::]:9100, to serve others", text)
	}
	return at, nil
}

// URL returns the address of the metrics.
func (e *Exporter) URL() string { return "http://" + e.address + "/metrics" }

// Publish replaces the published state.
func (e *Exporter) Publish(s *State) {
	if e != nil {
		e.latest.Store(s)
	}
}

// End publishes that training has ended, with the error that stopped it or nil.
func (e *Exporter) End(err error) {
	if e != nil {
		e.ended.Store(&end{err})
	}
}

// answerHealth answers 200 while the run starts, makes steps or is done. It answers 503 if
// no step came within State.Timeout or an error stopped training. The body is one line with
// the reason.
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
		return http.StatusServiceUnavailable, fmt.Sprintf("no step since %s, %s ago; the next one was due within %s", last, since.Round(time.Second), s.Timeout.Round(time.Second))
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

// boundedListener accepts at most maxConnections at a time. For a new connection beyond
// that, it closes the oldest one: an answer takes less than a millisecond, so the oldest
// connection is idle. Idle clients thus never keep others from an answer.
type boundedListener struct {
	net.Listener
	mu   sync.Mutex
	open []*trackedConn // oldest first, maxConnections at most
}

func (l *boundedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &trackedConn{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) == maxConnections {
		_ = l.open[0].Conn.Close() // the server's read then fails, and the server cleans up
		l.open = slices.Delete(l.open, 0, 1)
	}
	l.open = append(l.open, s)
	return s, nil
}

// trackedConn removes itself from the listener's list when it is closed.
type trackedConn struct {
	net.Conn
	of *boundedListener
}

func (s *trackedConn) Close() error {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.open = slices.DeleteFunc(s.of.open, func(o *trackedConn) bool { return o == s })
	return s.Conn.Close()
}
