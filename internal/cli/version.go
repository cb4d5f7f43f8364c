package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

type versionCmd struct{}

func (versionCmd) Run(t *terminal) error {
	fmt.Fprintf(prose(t.out), "octet %s, %s %s/%s, %s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, tags())
	return nil
}

// version returns the version and the commit of a release, else the commit of the build or the
// version of the module.
func version() string {
	if stampedVersion != "" {
		revision := stampedRevision[:min(12, len(stampedRevision))]
		if strings.Contains(stampedVersion, revision) {
			return stampedVersion
		}
		return stampedVersion + " " + revision
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return noCommit
	}
	return versionOf(info)
}

// noCommit is the version of a binary without VCS information: built in a linked worktree,
// by go run, or with -buildvcs=false.
const noCommit = "devel (commit unknown: built without VCS information)"

func versionOf(info *debug.BuildInfo) string {
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " dirty"
		}
	}
	switch v := info.Main.Version; {
	case revision != "":
		return "devel " + revision + dirty
	case v != "" && v != "(devel)":
		return v
	}
	return noCommit
}

// tags returns the build tags of this binary, and whether it lacks cgo, without which the
// tags have no effect.
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
