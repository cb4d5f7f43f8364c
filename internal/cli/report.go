package cli

import (
	"fmt"
	"path/filepath"

	"octet/internal/disk"
	"octet/internal/report"
	"octet/internal/runs"
)

type reportCmd struct {
	Folders []string `arg:"" name:"folder" help:"Run folders, or folders that hold runs, such as that of a sweep."`
	Out     string   `short:"o" default:"report.html" placeholder:"FILE" help:"The page to write; default: ${default}."`
}

// Help returns the text that report --help adds.
func (reportCmd) Help() string {
	return `The page is one HTML file that needs no other file and no network. Runs whose configurations differ in their seed only form one line; the first configuration is the baseline of the others.

Examples:
  octet report runs/bf16 runs/fp8-smooth
  octet report sweeps/first -o first.html`
}

func (c reportCmd) Run(t *terminal) error {
	list, err := runs.OpenAll(c.Folders...)
	if err != nil {
		return badInput(err)
	}
	page := report.Page(report.Options{Title: "Octet: " + title(c.Folders)}, runs.GroupsOf(list))
	if err := disk.WriteAtomic(c.Out, page); err != nil {
		return badInput(err)
	}
	for _, r := range list {
		if len(r.Problems) > 0 {
			fmt.Fprintf(prose(t.err), "octet: %s: %s\n", r.Dir, r.Problems[0])
		}
	}
	fmt.Fprintf(t.out, "%s  %d runs\n", c.Out, len(list))
	return nil
}

// title names a page by its folders.
func title(folders []string) string {
	if len(folders) == 1 {
		return filepath.Base(filepath.Clean(folders[0]))
	}
	return fmt.Sprintf("%d folders of runs", len(folders))
}
