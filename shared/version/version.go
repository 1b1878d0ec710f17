// Package version says which build of drawbridge this is. The same value stands
// in the MCP serverInfo, in the broker's Server header and in every receipt.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Version is set at link time, with
// -ldflags "-X drawbridge/shared/version.Version=$(git describe --tags --always --dirty)".
// A build without it names the revision that the Go command recorded.
var Version string

// Unknown is the version of a build that carries neither.
const Unknown = "unknown"

// revisionLength is how much of a commit id stands in for a missing version.
const revisionLength = 12

// Info is what is known about this build.
type Info struct {
	Version string // never empty
	Commit  string // whole commit id; "" when not recorded
	Dirty   bool   // the tree had changes that are in no commit
	Go      string // "go1.26.8"
}

// Get reads the build's own records once.
var Get = sync.OnceValue(func() Info {
	settings := map[string]string{}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			settings[s.Key] = s.Value
		}
	}
	return from(Version, settings)
})

// String is the version alone.
func String() string { return Get().Version }

func from(stamp string, settings map[string]string) Info {
	info := Info{
		Version: strings.TrimSpace(stamp),
		Commit:  settings["vcs.revision"],
		Dirty:   settings["vcs.modified"] == "true",
		Go:      runtime.Version(),
	}
	if info.Version == "" && info.Commit != "" {
		info.Version = info.Commit[:min(revisionLength, len(info.Commit))]
		if info.Dirty {
			info.Version += "-dirty"
		}
	}
	if info.Version == "" {
		info.Version = Unknown
	}
	return info
}
