// Command amplify shows what a large channel costs each recipe. It takes trained models, and the
// channel of each layer whose rows of w1 and w2 align most, as training left it. It multiplies both
// rows by √κ and divides the channel's column of w3 by κ, so the channel's activation grows κ times
// and the model computes nearly the same. It changes no direction, no other weight and no text.
//
//	go run ./study/amplify -models sweeps/emerge -write sweeps/amplified
//	octet sweep sweeps/amplified/size.toml -o sweeps/amplified/size
//	octet sweep sweeps/amplified/rescue.toml -o sweeps/amplified/rescue
//	go run ./study/amplify -read sweeps/amplified
//
// The channel is large in every batch. study/aligned has a channel that few batches excite, which
// tells delayed from current scaling.
package main

import (
	"errors"
	"flag"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	models := flag.String("models", "sweeps/emerge", "folder of the sweep whose models to amplify")
	write := flag.String("write", "", "folder to write models and sweep files to, if it does not exist")
	read := flag.String("read", "", "that folder, when its sweeps are done: prints tables and predictions")
	out := flag.String("o", "docs/evidence", "folder of the figures")
	flag.Parse()
	var err error
	switch {
	case *write != "":
		err = writeAll(*models, *write)
	case *read != "":
		err = describe(*read, *out)
	default:
		err = errors.New("give -write or -read")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// describe prints what the sweeps below dir measured, and draws it.
func describe(dir, figures string) error {
	sizes, err := readResults(dir + "/size")
	if err != nil {
		return err
	}
	rescues, err := readResults(dir + "/rescue")
	if err != nil {
		return err
	}
	return errors.Join(
		sizes.lossTable(), sizes.trainTable(), sizes.onsetTable(), sizes.signalTable(), sizes.predictions().Write(os.Stdout), sizes.draw(figures), sizes.drawSignals(figures),
		rescues.rescueTable(), rescues.rescuePredictions().Write(os.Stdout), rescues.drawRescue(figures))
}
