package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"octet/backend"
	"octet/internal/disk"
	"octet/internal/report"
	"octet/internal/runs"
	"octet/internal/sweep"
	"octet/internal/writers"
	"octet/run"
	"octet/train"
)

type reportCmd struct {
	Folders []string `arg:"" name:"folder" help:"Run folders, or folders that hold runs, such as that of a sweep."`
	Out     string   `short:"o" default:"report.html" placeholder:"FILE" help:"The page to write; default: ${default}. A name that ends in .svg gets a picture of the training losses instead."`
}

// Help returns the text that report --help adds.
func (reportCmd) Help() string {
	return `The page is one HTML file that needs no other file and no network. Runs whose configurations differ in their seed only form one line; the first configuration is the baseline of the others.

Examples:
  octet report runs/bf16 runs/fp8-smooth
  octet report sweeps/first -o first.html
  octet report runs/bf16 runs/fp8-smooth -o loss.svg`
}

func (c reportCmd) Run(t *terminal) error {
	ext := filepath.Ext(c.Out)
	if !slices.Contains([]string{".html", ".htm", ".svg"}, ext) {
		return badInput(fmt.Errorf("-o %s: octet report writes .html and .svg, not %q", c.Out, ext))
	}
	groups, err := c.groups()
	if err != nil {
		return badInput(err)
	}
	content := report.Picture
	if ext != ".svg" {
		content = func(groups []*runs.Group) []byte {
			return report.Page(report.Options{Title: "Octet: " + title(c.Folders), Describe: describeConfig}, groups)
		}
	}
	if err := disk.WriteAtomic(c.Out, content(groups)); err != nil {
		return badInput(err)
	}
	n, warnings := 0, prose(&printable{to: t.err}) // folders and their files may hold control characters
	for _, g := range groups {
		n += len(g.Runs)
		for _, r := range g.Runs {
			if len(r.Problems) > 0 {
				fmt.Fprintf(warnings, "octet: %s: %s\n", r.Dir, r.Problems[0])
			}
		}
	}
	fmt.Fprintf(t.out, "%s  %s\n", c.Out, counted(n, "run"))
	return nil
}

// groups returns the variants of a sweep, or the runs by their configuration.
func (c reportCmd) groups() ([]*runs.Group, error) {
	if len(c.Folders) == 1 {
		groups, err := sweep.Groups(c.Folders[0])
		if !errors.Is(err, fs.ErrNotExist) {
			if err == nil && len(groups) == 0 {
				err = fmt.Errorf("no run of the sweep in %s has begun", c.Folders[0])
			}
			return groups, err
		}
	}
	list, err := runs.OpenAll(c.Folders...)
	if err != nil {
		return nil, err
	}
	return runs.GroupsOf(list), nil
}

// describeConfig returns the recipe's table and the memory plan of a run, on the device that
// it names; nothing for a run of another version, or of a backend that this binary lacks.
func describeConfig(r *runs.Run) (list []report.Text) {
	cfg, err := run.ConfigOf(r.Dir)
	if err != nil || r.Device() == "" {
		return nil
	}
	driver, device, err := backend.Find(r.Device())
	if err != nil {
		return nil
	}
	spec, err := driver.Spec(device)
	if err != nil {
		return nil
	}
	job, _, memory, err := train.LargestJob(cfg, spec)
	if err != nil {
		return nil
	}
	var text bytes.Buffer
	if err := describeRecipes(&text, job); err == nil {
		list = append(list, report.Text{Title: "Recipe", Body: text.String()})
	}
	var lines strings.Builder
	w := tabwriter.NewWriter(&lines, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, g := range memoryGroups(memory) {
		fmt.Fprintf(w, "%s\t  %s\t\n", writers.Bytes(g.N), g.Name)
	}
	fmt.Fprintf(w, "%s\t  in total\t\n", writers.Bytes(memory.Total()))
	if err := w.Flush(); err == nil {
		list = append(list, report.Text{Title: "Memory plan", Body: lines.String()})
	}
	return list
}

// title names a page by its folders.
func title(folders []string) string {
	if len(folders) == 1 {
		return filepath.Base(filepath.Clean(folders[0]))
	}
	return fmt.Sprintf("%d folders of runs", len(folders))
}
