package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

type versionCmd struct{}

func (versionCmd) Run(t *terminal) error {
	fmt.Fprintf(t.out, "octet %s, %s %s/%s, %s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, tags())
	return nil
}

// version is the module's version, or the commit that was built.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " with changes"
		}
	}
	if revision != "" {
		return "devel " + revision + dirty
	}
	return "devel"
}

// tags are those that this octet was built with. Without cgo they bring nothing.
func tags() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "tags unknown"
	}
	tags, cgo := "no tags", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "-tags" && s.Value != "":
			tags = "tags " + s.Value
		case s.Key == "CGO_ENABLED" && s.Value == "0":
			cgo = " without cgo"
		}
	}
	if tags == "no tags" {
		return tags
	}
	return tags + cgo
}
