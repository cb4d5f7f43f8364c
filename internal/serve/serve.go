// Package serve answers the requests of a program in another language over a pair of pipes:
// casts, GEMMs, and the content of run folders. octet serve --stdio runs it for the Python
// package.
//
// A frame in either direction is
//
//	length   4 bytes, little-endian, of the header
//	header   a JSON object; its key "buffers" has the sizes of the buffers in bytes
//	buffers  raw bytes, one after another: little-endian elements in C order
//
// The server begins with a frame that has its protocol and its version. After that it answers
// each request with one frame, in order. A request's header has the key "op", which names the
// operation, and the operation's own keys, each a field of the type beside it:
//
//	cast         castRequest        values to codes, with a scale that the client gives
//	decode       decodeRequest      codes to values
//	quantize     quantizeRequest    values to codes, with scales from the values
//	scaled_mm    multiplyRequest    a GEMM of codes
//	run          pathRequest        configuration, metrics and checkpoints of a run folder
//	checkpoint   pathRequest        the list of a checkpoint's tensors
//	tensor       tensorRequest      one tensor of a checkpoint
//
// Each of these types describes the buffers of the request and of the reply, in order. A key without
// a default is required where its zero value is not allowed. A value that is NaN or infinite is null.
//
// The reply of an operation that fails has the keys "error" and "kind": "value" for a wrong request,
// "missing" for a file that does not exist, "failure" for the rest. The server then goes on with the
// next request. A malformed frame ends the server, because the start of the next frame is unknown.
package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"octet/backend"
	"octet/backend/arith"
)

// Protocol is the version of the frames and operations. A client refuses any other.
const Protocol = 1

// hello is the header of the first frame.
type hello struct {
	Protocol int      `json:"protocol"`
	Version  string   `json:"version"`
	Devices  []string `json:"devices"` // the device models of emu
}

// operation answers a request.
type operation func(context.Context, *server, *request) (reply, error)

var operations = map[string]operation{
	"cast":       cast,
	"decode":     decode,
	"quantize":   quantizeMatrix,
	"scaled_mm":  multiply,
	"run":        openRun,
	"checkpoint": listTensors,
	"tensor":     readTensor,
}

// server is the state between requests.
type server struct {
	threads int
	loaded  cache
	folders folders
}

// Options are the settings of Serve.
type Options struct {
	Version string // of this binary
	Threads int    // worker threads of a device; 0: all processors
}

// Serve answers the requests that r holds, until r ends. It checks ctx between requests only.
func Serve(ctx context.Context, r io.Reader, w io.Writer, o Options) (err error) {
	s := &server{threads: o.Threads}
	defer func() { err = errors.Join(err, s.loaded.trim(0), s.folders.trim(0)) }()
	in, out := bufio.NewReaderSize(r, 1<<16), bufio.NewWriterSize(w, 1<<16)
	if err := (reply{fields: hello{Protocol, o.Version, arith.Names()}}).write(out); err != nil {
		return err
	}
	for ctx.Err() == nil {
		q, err := readRequest(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		a := s.answer(ctx, q)
		// The client sends all buffers before it reads, so the server must read them all.
		if err := q.skip(); err != nil {
			return fmt.Errorf("request %s: %w", q.Op, err)
		}
		if err := a.write(out); err != nil {
			return fmt.Errorf("reply to %s: %w", q.Op, err)
		}
	}
	return ctx.Err()
}

// answer runs the operation of a request.
func (s *server) answer(ctx context.Context, q *request) reply {
	a, err := s.run(ctx, q)
	if err != nil {
		return failed(err)
	}
	return a
}

func (s *server) run(ctx context.Context, q *request) (reply, error) {
	do, ok := operations[q.Op]
	if !ok {
		return reply{}, wrong("operation %q: expected one of %v", q.Op, slices.Sorted(maps.Keys(operations)))
	}
	return do(ctx, s, q)
}

// valueError is a wrong request.
type valueError struct{ error }

func (e valueError) Unwrap() error { return e.error }

func wrong(format string, args ...any) error { return valueError{fmt.Errorf(format, args...)} }

func kindOf(err error) string {
	var value valueError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "missing"
	case errors.As(err, &value), errors.Is(err, backend.ErrUnsupported):
		return "value"
	}
	return "failure"
}
