// Octet trains large language models in FP8. See README.md, and `octet help`.
package main

import (
	"os"

	_ "octet/backend/cuda"
	_ "octet/backend/emu"
	"octet/backend/gaudi"
	"octet/internal/cli"
)

func main() {
	gaudi.RunWorker()
	os.Exit(cli.Main(os.Args, sources))
}
