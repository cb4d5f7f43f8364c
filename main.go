// Octet trains large language models in FP8. See README.md, and `octet help`.
package main

import (
	"os"

	"octet/command"
)

func main() {
	os.Exit(command.Main(os.Args, sources))
}
