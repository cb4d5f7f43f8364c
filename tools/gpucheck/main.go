// Gpucheck tabulates the results of gpu-check.sh against their targets:
//
//	gpucheck FOLDER
//
// It reads the files of the parts in the folder, prints the table and writes it there, as
// table.md and as figures.json. A figure that was not measured has the reason in the
// table. A missed target is not an error: the exit status is 1 only if the folder cannot
// be read or written, 2 if none was given.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gpucheck FOLDER, the output folder of gpu-check.sh")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

// write prints and writes the table of a folder.
func write(dir string, out io.Writer) error {
	r, err := open(dir)
	if err != nil {
		return err
	}
	figures := r.figures()
	text := table(r.versions, figures)
	list, err := json.MarshalIndent(figures, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "table.md"), []byte(text), 0o666),
		os.WriteFile(filepath.Join(dir, "figures.json"), append(list, '\n'), 0o666))
}

// table returns Markdown: the versions, and a line for each figure.
func table(versions []string, figures []Figure) string {
	var b strings.Builder
	for _, line := range versions {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	b.WriteString("\n| figure | measured | asked | verdict |\n|---|---|---|---|\n")
	cell := strings.NewReplacer("|", "\\|", "\n", " ")
	for _, f := range figures {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.Name, cell.Replace(f.Measured), f.Asked, cell.Replace(f.Verdict))
	}
	return b.String()
}
