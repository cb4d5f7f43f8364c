// Package command is the octet command, for a binary with recipes, activations or ops of
// its own:
//
//	func main() {
//		if err := recipe.Register(mine); err != nil {
//			log.Fatal(err)
//		}
//		os.Exit(command.Main(os.Args, nil))
//	}
//
// Every subcommand of that binary knows what was registered before Main. The package
// imports all backends.
package command

import (
	"io/fs"

	_ "octet/backend/cuda" // registers itself
	"octet/backend/emu"
	_ "octet/backend/gaudi" // registers itself
	"octet/internal/cli"
)

// Main runs a command line, whose first argument is the program's name, with the process's
// standard streams and signals. It returns the exit status: 0, 1 for a failure after the
// start, 2 for bad input, 128 and the signal's number after a signal. Sources is the text
// to train on without data.paths on a machine without a Go installation; it may be nil.
//
// Ranks of cuda and gaudi are processes, which are this program with the same arguments. In a
// process that uses MPI, Main ends the process instead of returning.
func Main(args []string, sources fs.FS) int {
	status := cli.Main(args, sources)
	emu.Exit(status)
	return status
}
