package cli

import (
	"context"
	"fmt"
	"os"

	"octet/internal/board"
)

type boardCmd struct {
	Dir  string `arg:"" name:"folder" default:"runs" help:"A folder of runs; default: ${default}."`
	Port int    `default:"0" placeholder:"N" help:"The port of this machine's loopback address; 0 is a free one; default: ${default}."`
}

// Help returns the text that board --help adds.
func (boardCmd) Help() string {
	return `The board shows the runs in a folder while they train: a list that sorts and filters, and a report of each run. It reads the folder only, and answers this machine only. To see the board of another machine, forward its port: ssh -L 8000:localhost:8000 MACHINE octet board runs --port 8000.

Examples:
  octet board
  octet board /data/runs --port 8000`
}

func (c boardCmd) Run(ctx context.Context, t *terminal) error {
	info, err := os.Stat(c.Dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder: name the folder that holds the runs", c.Dir)
	}
	if err != nil {
		return badInput(err)
	}
	if c.Port < 0 || c.Port > 65535 {
		return badInput(fmt.Errorf("--port %d: expected 0 to 65535", c.Port))
	}
	b, err := board.Listen(c.Dir, c.Port)
	if err != nil {
		return badInput(fmt.Errorf("--port %d: %w", c.Port, err))
	}
	s := catchSignals(ctx, 0, func(int) {})
	defer s.stop()
	fmt.Fprintf(t.out, "%s  (Ctrl-C ends it)\n", b.URL())
	return b.Serve(s.ctx)
}
