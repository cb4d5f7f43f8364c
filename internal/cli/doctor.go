package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"octet/backend"
	"octet/backend/conformance"
	"octet/internal/trial"
)

type doctorCmd struct {
	Backend string `placeholder:"NAME" help:"Check this backend: its libraries, every op, and on an accelerator some training steps."`
	Report  string `placeholder:"FILE" help:"Also write the output to this file."`
}

// Help returns the text that doctor --help adds.
func (doctorCmd) Help() string {
	return `Lists each backend and what it needs, with the fix below what is missing: ✓ is present, ✗ is missing, - is missing and optional. With --backend, every op runs against the float64 reference; the exit status is 0 if all pass.

Examples:
  octet doctor
  octet doctor --backend cuda --report doctor.txt`
}

func (c doctorCmd) Run(ctx context.Context, t *terminal) (err error) {
	if c.Backend != "" {
		if _, err := backend.SpecOf(c.Backend); err != nil { // an unknown name
			return badInput(err)
		}
	}
	out := prose(t.out)
	if c.Report != "" {
		f, createErr := os.Create(c.Report)
		if createErr != nil {
			return badInput(fmt.Errorf("--report: %w", createErr))
		}
		report := &stdout{to: f}
		defer func() { err = errors.Join(err, report.err, f.Close()) }()
		out = io.MultiWriter(out, report)
	}
	fmt.Fprintf(out, "octet %s, %s, %s/%s, %s, %d processors\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, tags(), runtime.NumCPU())
	fmt.Fprintln(out, installed())
	fmt.Fprintf(out, "%s%s\n\n", time.Now().UTC().Format("2006-01-02 15:04 MST"), system())
	for _, d := range backend.Drivers() {
		findings := d.Probe()
		switch err := d.Available(""); {
		case err == nil:
			fmt.Fprintf(out, "✓ %s\n", d.Name)
		case slices.ContainsFunc(findings, func(f backend.Finding) bool { return explains(f, err) }):
			fmt.Fprintf(out, "✗ %s\n", d.Name)
		default:
			fmt.Fprintf(out, "✗ %s: %v\n", d.Name, err)
		}
		for _, f := range findings {
			printFinding(out, f)
		}
	}
	if c.Backend == "" {
		fmt.Fprintf(out, "\n%s doctor --backend emu runs every op of a backend against the float64 reference.\n", t.name)
		return nil
	}
	return c.check(ctx, out)
}

// system returns the kernel release and the name of the distribution on Linux, for a report
// that is read elsewhere.
func system() (text string) {
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		text = ", Linux " + strings.TrimSpace(string(release))
	}
	distribution, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(distribution)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			text += ", " + strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return text
}

// explains reports whether a finding already contains the text of an error.
func explains(f backend.Finding, err error) bool {
	return !f.OK && !f.Optional && strings.Contains(err.Error(), f.Detail) && strings.Contains(err.Error(), f.Fix)
}

func printFinding(out io.Writer, f backend.Finding) {
	mark := "✓"
	switch {
	case !f.OK && f.Optional:
		mark = "-"
	case !f.OK:
		mark = "✗"
	}
	fmt.Fprintf(out, "  %s %s: %s\n", mark, f.What, f.Detail)
	if f.Fix != "" {
		fmt.Fprintf(out, "    %s\n", f.Fix)
	}
}

// check runs all checks of a backend, even after one has failed, so that the report is
// complete.
func (c doctorCmd) check(ctx context.Context, out io.Writer) error {
	driver, device, err := backend.Find(c.Backend)
	if err != nil {
		return badInput(err)
	}
	spec, err := driver.Spec(device)
	if err != nil {
		return badInput(err)
	}
	if driver.Available("") != nil {
		return badInput(fmt.Errorf("backend %s is not available here: see what is marked with ✗ above", driver.Name))
	}
	if err := driver.Available(device); err != nil {
		return badInput(err)
	}
	// Open the device first: one that is unavailable gives one error, not one for each case.
	d, err := driver.Open(device, backend.Options{})
	if err != nil {
		fmt.Fprintf(out, "\n✗ %v\n", err)
		return badInput(err)
	}
	if err := d.Close(); err != nil {
		return err
	}
	complete := true
	if driver.Examine != nil {
		fmt.Fprintf(out, "\n%s, in detail\n", c.Backend)
		programs, err := trial.Programs(spec)
		if err != nil {
			return err
		}
		for f := range driver.Examine(device, programs) {
			printFinding(out, f)
			complete = complete && (f.OK || f.Optional)
		}
	}
	healthy := c.conformance(ctx, out, driver, device)
	if !spec.HostMemory {
		fmt.Fprintln(out)
		healthy = trial.Compare(ctx, out, c.Backend) && healthy
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	switch {
	case !healthy:
		return fmt.Errorf("backend %s failed its checks: see the errors above", c.Backend)
	case !complete:
		return fmt.Errorf("backend %s computes correctly, but something is missing: see what is marked with ✗ above", c.Backend)
	}
	return nil
}

func (c doctorCmd) conformance(ctx context.Context, out io.Writer, driver backend.Driver, device string) bool {
	passed, declined, failed := 0, 0, 0
	declines := map[string]int{} // by op
	for test := range conformance.Cases() {
		err := test.Run(ctx, driver, device)
		switch {
		case err == nil:
			passed++
		case errors.Is(err, backend.ErrUnsupported):
			declined++
			op, _, _ := strings.Cut(test.Name, "/")
			declines[op]++
		default:
			failed++
			fmt.Fprintf(out, "✗ %v\n", err)
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, backend.ErrDeviceLost) {
			fmt.Fprintln(out, "  the device is lost to this process: the remaining cases are skipped")
			break
		}
	}
	fmt.Fprintf(out, "\nconformance of %s: %d passed, %d failed, %d declined\n", c.Backend, passed, failed, declined)
	if declined > 0 { // mostly formats and layouts of other devices
		line := "declined:"
		for _, op := range slices.Sorted(maps.Keys(declines)) {
			line += fmt.Sprintf(" %s %d", op, declines[op])
		}
		fmt.Fprintln(out, line)
	}
	return failed == 0
}
