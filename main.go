// Octet trains large language models in FP8. See README.md, and `octet help`.
package main

import (
	"os"

	_ "octet/backend/cuda"
	_ "octet/backend/emu"
	_ "octet/backend/gaudi"
	"octet/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args, sources))
}
