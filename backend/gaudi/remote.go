package gaudi

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// remote is a Gaudi that a worker process serves. Calls run one after the other, and each
// waits for its answer. A run is one call, however many launches it has.
type remote struct {
	mu   sync.Mutex
	in   *gob.Decoder
	out  *gob.Encoder
	info hardware
	// explain returns the root cause when the worker does not answer or its device fails;
	// close ends this rank, abortAll ends all ranks.
	explain  func(error) error
	close    func() error
	abortAll func(error) // nil: there is no other rank
	late     *time.Timer // ends a call that exceeds limit
	limit    time.Duration
}

// A request is a method of synapse with its arguments.
type request struct {
	Method         method
	At             libsynapse.Ptr
	Bytes          int64
	Value          byte
	Data           []byte
	Programs       []program
	Commands       []command
	List, From, To int
	Ranks, Rank    int
}

type method uint8

const (
	methodMemory method = iota
	methodAlloc
	methodFree
	methodFill
	methodWrite
	methodRead
	methodCompile
	methodPrepare
	methodRun
	methodTime
	methodForget
	methodSynchronize
	methodUniqueID
	methodJoin
	methodRelease
)

// An answer is a method's result.
type answer struct {
	Hardware    hardware
	Free, Total uint64
	At          libsynapse.Ptr
	Data        []byte
	Recipes     []compiled
	List        int
	Took        time.Duration
	Failure     *failure
}

// A failure is an error in transit: its text, and what errors.Is and errors.As need to
// recognize it.
type failure struct {
	Text     string
	Sentinel int // index into sentinels plus 1; 0: none
	Cause    *libsynapse.Error
}

var sentinels = []error{backend.ErrNoDevice, backend.ErrOutOfMemory, backend.ErrDeviceLost, backend.ErrUnsupported}

func (f *failure) Error() string { return f.Text }

func (f *failure) Unwrap() (list []error) {
	if f.Sentinel > 0 {
		list = append(list, sentinels[f.Sentinel-1])
	}
	if f.Cause != nil {
		list = append(list, f.Cause)
	}
	return list
}

func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error()}
	f.Sentinel = 1 + slices.IndexFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	errors.As(err, &f.Cause)
	return f
}

// dial waits for the worker's description of its device. A call that takes longer than
// limit calls silent, which has to end the worker.
func dial(conn io.ReadWriter, explain func(error) error, end func() error, limit time.Duration, silent func()) (*remote, error) {
	r := &remote{in: gob.NewDecoder(conn), out: gob.NewEncoder(conn), explain: explain, close: end, limit: limit}
	r.late = time.AfterFunc(limit, silent)
	defer r.late.Stop()
	a, err := r.receive()
	r.info = a.Hardware
	return r, err
}

// call sends a request and waits for the answer.
func (r *remote) call(q request) (answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q.Method.waits() {
		r.late.Reset(r.limit)
		defer r.late.Stop()
	}
	if err := r.out.Encode(q); err != nil {
		return answer{}, r.explain(err)
	}
	return r.receive()
}

func (r *remote) receive() (a answer, err error) {
	if err := r.in.Decode(&a); err != nil {
		return a, r.explain(err)
	}
	switch {
	case a.Failure == nil:
		return a, nil
	case a.Failure.Cause != nil, errors.Is(a.Failure, backend.ErrDeviceLost): // another rank may be the cause
		return a, r.explain(a.Failure)
	}
	return a, a.Failure
}

func (r *remote) do(q request) error {
	_, err := r.call(q)
	return err
}

func (r *remote) hardware() hardware { return r.info }

func (r *remote) memory() (free, total uint64, err error) {
	a, err := r.call(request{Method: methodMemory})
	return a.Free, a.Total, err
}

func (r *remote) alloc(bytes int64) (libsynapse.Ptr, error) {
	a, err := r.call(request{Method: methodAlloc, Bytes: bytes})
	return a.At, err
}

func (r *remote) free(at libsynapse.Ptr) error {
	return r.do(request{Method: methodFree, At: at})
}

func (r *remote) fill(to libsynapse.Ptr, value byte, bytes int64) error {
	return r.do(request{Method: methodFill, At: to, Value: value, Bytes: bytes})
}

// chunkBytes is the payload of one message, far below gob's limit of 1 GB.
const chunkBytes = 4 << 20

func (r *remote) write(to libsynapse.Ptr, src []byte) error {
	for len(src) > 0 {
		n := min(len(src), chunkBytes)
		if err := r.do(request{Method: methodWrite, At: to, Data: src[:n]}); err != nil {
			return err
		}
		to, src = to+libsynapse.Ptr(n), src[n:]
	}
	return nil
}

func (r *remote) read(dst []byte, from libsynapse.Ptr) error {
	for len(dst) > 0 {
		n := min(len(dst), chunkBytes)
		a, err := r.call(request{Method: methodRead, At: from, Bytes: int64(n)})
		if err != nil {
			return err
		}
		copy(dst, a.Data)
		from, dst = from+libsynapse.Ptr(n), dst[n:]
	}
	return nil
}

func (r *remote) compile(list []program) ([]compiled, error) {
	a, err := r.call(request{Method: methodCompile, Programs: list})
	return a.Recipes, err
}

func (r *remote) prepare(list []command) (int, error) {
	a, err := r.call(request{Method: methodPrepare, Commands: list})
	return a.List, err
}

func (r *remote) run(list, from, to int) error {
	return r.do(request{Method: methodRun, List: list, From: from, To: to})
}

func (r *remote) time(list, from, to int) (time.Duration, error) {
	a, err := r.call(request{Method: methodTime, List: list, From: from, To: to})
	return a.Took, err
}

func (r *remote) forget(list int) error {
	return r.do(request{Method: methodForget, List: list})
}

func (r *remote) synchronize() error { return r.do(request{Method: methodSynchronize}) }

func (r *remote) uniqueID() ([]byte, error) {
	a, err := r.call(request{Method: methodUniqueID})
	return a.Data, err
}

func (r *remote) join(id []byte, ranks, rank int) error {
	return r.do(request{Method: methodJoin, Data: id, Ranks: ranks, Rank: rank})
}

func (r *remote) abort(why error) {
	if r.abortAll != nil {
		r.abortAll(why)
	}
}

func (r *remote) release() error { return r.close() }

// waits reports whether a call is subject to the timeout, because it waits for the device
// or other ranks. A compilation may take any time.
func (m method) waits() bool { return m != methodCompile }

// serveHooks are what serve calls besides the device.
type serveHooks struct {
	afterRun     func()        // after each run
	disconnected func()        // as soon as the connection ends, even during a call
	limit        time.Duration // timeout of one call
	timedOut     func() error  // the answer to a call that exceeds limit
}

// serve answers the requests for s until the connection ends.
func serve(conn io.ReadWriter, s synapse, w serveHooks) error {
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	var mu sync.Mutex // guards the variables below
	var pending bool  // a call is unanswered
	var since time.Time
	var err error
	reply := func(a answer) { // answers the pending call, at most once
		if pending && err == nil {
			err = out.Encode(a)
		}
		pending = false
	}
	late := time.AfterFunc(w.limit, func() {
		mu.Lock()
		defer mu.Unlock()
		if pending && time.Since(since) >= w.limit { // else the timer fired for the previous call
			reply(answer{Failure: failureOf(w.timedOut())})
		}
	})
	late.Stop()
	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var q request
			if in.Decode(&q) != nil {
				w.disconnected()
				return
			}
			requests <- q
		}
	}()
	mu.Lock()
	pending = true
	reply(answer{Hardware: s.hardware()})
	mu.Unlock()
	for q := range requests {
		mu.Lock()
		over := err != nil
		pending, since = true, time.Now()
		mu.Unlock()
		if over {
			continue // drain until the connection ends
		}
		if q.Method.waits() {
			late.Reset(w.limit)
		}
		a := serveOne(s, q)
		late.Stop()
		if q.Method == methodRun {
			w.afterRun()
		}
		mu.Lock()
		reply(a)
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	return err
}

// refuse answers that there is no device to serve, and why.
func refuse(conn io.ReadWriter, why error) error {
	if err := gob.NewEncoder(conn).Encode(answer{Failure: failureOf(why)}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn) // until the parent has read it
	return err
}

func serveOne(s synapse, q request) (a answer) {
	var err error
	switch q.Method {
	case methodMemory:
		a.Free, a.Total, err = s.memory()
	case methodAlloc:
		a.At, err = s.alloc(q.Bytes)
	case methodFree:
		err = s.free(q.At)
	case methodFill:
		err = s.fill(q.At, q.Value, q.Bytes)
	case methodWrite:
		err = s.write(q.At, q.Data)
	case methodRead:
		a.Data = make([]byte, q.Bytes)
		err = s.read(a.Data, q.At)
	case methodCompile:
		a.Recipes, err = s.compile(q.Programs)
	case methodPrepare:
		a.List, err = s.prepare(q.Commands)
	case methodRun:
		err = s.run(q.List, q.From, q.To)
	case methodTime:
		a.Took, err = s.time(q.List, q.From, q.To)
	case methodForget:
		err = s.forget(q.List)
	case methodSynchronize:
		err = s.synchronize()
	case methodUniqueID:
		a.Data, err = s.uniqueID()
	case methodJoin:
		err = s.join(q.Data, q.Ranks, q.Rank)
	case methodRelease:
		err = s.release()
	default:
		err = fmt.Errorf("unknown method %d", q.Method)
	}
	a.Failure = failureOf(err)
	return a
}
