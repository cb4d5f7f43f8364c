package cli

import (
	"context"
	"errors"
	"os"

	"octet/internal/serve"
)

type serveCmd struct {
	Stdio   bool `help:"Answer requests on standard input and output, for the Python package."`
	Threads int  `placeholder:"N" help:"Worker threads of emu; default: all processors."`
}

// Help returns the text that serve --help adds.
func (serveCmd) Help() string {
	return `Requests and replies are frames: the length of a JSON header in four bytes, little-endian, the header, and raw buffers. The Python package octet starts this command; see docs/python.md.

Example:
  octet serve --stdio`
}

func (c serveCmd) Run(ctx context.Context, t *terminal) error {
	if !c.Stdio {
		return badInput(errors.New("serve answers on standard input and output alone: give --stdio"))
	}
	if err := (device{Threads: c.Threads}).check(); err != nil {
		return badInput(err)
	}
	return serve.Serve(ctx, os.Stdin, t.out, serve.Options{Version: version(), Threads: c.Threads})
}
